"""The JSON schema of `memplane.yaml`, for editors. `python -m memplane.runtime.config.schema` prints it for `docs/`."""

from __future__ import annotations

import json
import sys
from typing import Any

from memplane.runtime.config.layout import FILE


def config_schema() -> dict[str, Any]:
    """Draft 2020-12, generated from the same tables that check a file."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://memplane.dev/schemas/memplane.yaml.json",
        "title": "memplane.yaml",
        **FILE.schema(),
    }


def render() -> str:
    """The text of the file in `docs/`."""
    return json.dumps(config_schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(render())
