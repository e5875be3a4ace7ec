"""The peer of the HTTP GET row: an empty FastAPI endpoint behind the product's own authentication.

`python -m bench.empty_endpoint PORT KEYS_FILE`. Event loop and HTTP parser are those of the product's server.
"""

from __future__ import annotations

import sys
from pathlib import Path

import uvicorn
import uvloop
from fastapi import Depends, FastAPI, Request

from memplane.api.asgi import header_map
from memplane.api.auth.api_keys import ApiKeys
from memplane.api.auth.identity import Identity

keys = ApiKeys(Path(sys.argv[2])) if __name__ == "__main__" else None
app = FastAPI()


async def identity(request: Request) -> Identity:
    assert keys is not None
    return await keys.authenticate(header_map(request.scope))


@app.get("/livez")
async def livez() -> dict[str, str]:
    return {}


@app.post("/empty")
async def empty(_: Identity = Depends(identity)) -> dict[str, str]:  # noqa: B008 - FastAPI's own form
    return {}


async def main() -> None:
    assert keys is not None
    await keys.start()
    config = uvicorn.Config(
        app,
        host="127.0.0.1",
        port=int(sys.argv[1]),
        loop="asyncio",
        http="h11",
        access_log=False,
        log_level="warning",
        timeout_keep_alive=65,
    )
    await uvicorn.Server(config).serve()


if __name__ == "__main__":
    uvloop.run(main())
