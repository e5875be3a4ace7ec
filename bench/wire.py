"""A bare HTTP/1.1 client on one kept connection, so that little but the server is measured."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any


async def whole_body(receive: Any) -> bytes:
    """A request's body as an ASGI application receives it."""
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


class Client:
    """One connection to a server on loopback; one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, port: int) -> Client:
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=2**24))

    async def send(self, request: bytes) -> tuple[int, bytes]:
        """Send a prepared request; returns status and body. Raises `EOFError` when the server hangs up."""
        self._writer.write(request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
        return int(head[9:12]), await self._reader.readexactly(length)

    def close(self) -> None:
        self._writer.close()


def post(path: str, document: Any, headers: Mapping[str, str]) -> bytes:
    """A prepared POST of a JSON document."""
    body = json.dumps(document).encode()
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: 127.0.0.1",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
