"""A raw socket that speaks (or breaks) the HTTP protocol, without any client library."""

from __future__ import annotations

import asyncio
import json
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

TOKEN = "secret-token"


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self):
        return json.loads(self.body)


async def connect(url, receive_buffer=None):
    parts = urlsplit(url)
    if receive_buffer is None:
        return await asyncio.open_connection(parts.hostname, parts.port)
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)  # before connecting, else the kernel grows it
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, (parts.hostname, parts.port))
    return await asyncio.open_connection(sock=sock)


async def read_answer(reader, timeout=10):
    async with asyncio.timeout(timeout):
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        lines = head.split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
        body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Answer(int(lines[0].split(" ")[1]), headers, body)


def request(body=b"{}", *, path="/ditto/invoke", method="POST", headers=None, length=None):
    """The bytes of a request. `headers` replaces or, with None, removes the usual ones."""
    usual = {
        "Host": "localhost",
        "Authorization": f"Bearer {TOKEN}",
        "x-ditto-protocol": "1",
        "Content-Type": "application/json",
        "Content-Length": str(len(body) if length is None else length),
    }
    usual.update(headers or {})
    lines = "".join(f"{name}: {value}\r\n" for name, value in usual.items() if value is not None)
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + body


async def exchange(url, data):
    reader, writer = await connect(url)
    try:
        writer.write(data)
        await writer.drain()
        return await read_answer(reader)
    finally:
        writer.close()
        await writer.wait_closed()


def invocation(address, value, node="A.ECHO", **changes):
    document = {"id": "call-1", "node": node, "target": dict(address), "payload": {"kind": "inline", "value": value}}
    document.update(changes)
    return {key: item for key, item in document.items() if item is not ...}


def compact(document):
    return json.dumps(document, separators=(",", ":")).encode()
