"""An adoption in a process of its own, for tests that kill it: `python -m tests.adoption.adopting DSN SETTINGS`.

Each stage is a line on stdout as soon as it begins. The command line does the same, but takes seconds to be imported.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from pydantic import SecretStr

from memplane.adoption.run import adopt
from memplane.schema.database import Database
from memplane.settings import AdoptionSettings, PostgresSettings


async def main(dsn: str, settings: str) -> None:
    database = Database(PostgresSettings(dsn=SecretStr(dsn)))
    told = ""

    def show(stage: str, _: int, __: int) -> None:
        nonlocal told
        if stage != told:
            told = stage
            print(stage, flush=True)

    state = await adopt(database, AdoptionSettings.model_validate_json(settings), targets=(), show=show)
    await database.close()
    assert state is not None
    assert state.stage == "adopted"


def start(dsn: str, settings: AdoptionSettings, log: Path) -> subprocess.Popen[bytes]:
    """The process; its lines go to the end of `log`."""
    command = [sys.executable, "-m", "tests.adoption.adopting", dsn, settings.model_dump_json()]
    with log.open("ab") as output:
        return subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
