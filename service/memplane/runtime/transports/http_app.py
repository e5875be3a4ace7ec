"""The server side of the HTTP transport as a plain ASGI application. Source: behaviours H-01 … H-07.

Checks in this order: route, token, protocol, size, JSON, envelope, execution. Whatever fails in execution is one answer
without details. A client may be slow, stop in the middle or send garbage: it costs one bounded body and one wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Protocol, TypeAlias

from memplane.runtime.envelope import InvalidInvocation
from memplane.runtime.transports.draining import Receive, Send, end_unread
from memplane.runtime.transports.protocol import (
    DEFAULT_MAX_BODY_BYTES,
    PATH,
    PROTOCOL_HEADER,
    PROTOCOL_VERSION,
    authorized,
    check_size,
    decode,
    encode,
    token_digest,
)

logger = logging.getLogger(__name__)

Scope: TypeAlias = MutableMapping[str, Any]
Headers: TypeAlias = Iterable[tuple[bytes, bytes]]

BODY_SECONDS = 30.0
"""Longest time that a client may take for its body."""


class Receiver(Protocol):
    """What answers invocations: a `Runtime`, or a view on one that is bound to a caller."""

    async def receive(self, envelope: object) -> dict[str, Any]: ...


Authorize: TypeAlias = Callable[[Headers], Awaitable[Receiver | None]]
"""Who answers for a request with these headers; None refuses it (401)."""


class Refused(Exception):  # noqa: N818 - an answer, not a fault
    """The request is answered with this status and error. `unread`: part of the body was not read."""

    def __init__(self, status: int, error: str, *, unread: bool = False) -> None:
        super().__init__(error)
        self.status, self.error, self.unread = status, error, unread


class Disconnected(Exception):  # noqa: N818 - a state
    """The client has gone before its body was complete."""


def create_http_app(runtime: Receiver, *, token: str, max_body_bytes: int = DEFAULT_MAX_BODY_BYTES) -> InvokeApp:
    """An ASGI application that lets whoever has the token call this runtime's exposed nodes.

    max_body_bytes: largest request and largest answer. Raises `DefinitionError` on a blank token.
    """
    expected = token_digest(token)

    async def authorize(headers: Headers) -> Receiver | None:
        return runtime if authorized(only_header(headers, b"authorization"), expected) else None

    return InvokeApp(authorize, max_body_bytes=max_body_bytes)


class InvokeApp:
    """`POST /ditto/invoke` with any way to authorize. See `create_http_app` for the one by token."""

    def __init__(
        self,
        authorize: Authorize,
        *,
        max_body_bytes: int = DEFAULT_MAX_BODY_BYTES,
        body_seconds: float = BODY_SECONDS,
    ) -> None:
        self._authorize = authorize
        self._max_body_bytes = check_size("max_body_bytes", max_body_bytes)
        self._body_seconds = body_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1000})
            return
        unread = False
        try:
            status, body = 200, await self._answer(scope, receive)
        except Disconnected:
            return
        except Refused as refused:
            status, body, unread = refused.status, encode({"error": refused.error}), refused.unread
        await _respond(receive, send, status, body, unread=unread)

    async def _answer(self, scope: Scope, receive: Receive) -> bytes:
        path = scope.get("raw_path") or scope["path"].encode()
        if scope["method"] != "POST" or path != PATH.encode() or scope["query_string"]:
            raise Refused(404, "Not found", unread=True)
        headers: Headers = scope["headers"]
        receiver = await self._authorize(headers)
        if receiver is None:
            raise Refused(401, "Unauthorized", unread=True)
        if only_header(headers, PROTOCOL_HEADER.encode()) != PROTOCOL_VERSION.encode():
            raise Refused(400, "Unsupported protocol", unread=True)
        body = await self._read(headers, receive)
        try:
            document = decode(body)
        except ValueError:
            raise Refused(400, "Invalid JSON") from None
        return await self._execute(receiver, document)

    async def _execute(self, receiver: Receiver, document: object) -> bytes:
        try:
            answer = encode(await receiver.receive(document))
        except InvalidInvocation:
            raise Refused(400, "Invalid invocation") from None
        except Exception as error:  # noqa: BLE001 - an endpoint's last resort
            # Handlers raise anything. The caller learns that it failed and nothing else; the log gets the kind alone.
            logger.warning("remote invocation failed: %s", type(error).__name__)
            raise Refused(500, "Worker invocation failed") from None
        if len(answer) > self._max_body_bytes:
            raise Refused(413, "Response too large")
        return answer

    async def _read(self, headers: Headers, receive: Receive) -> bytes:
        announced = only_header(headers, b"content-length")
        if announced is not None and announced.isdigit() and int(announced[:20]) > self._max_body_bytes:
            raise Refused(413, "Request too large", unread=True)
        body = bytearray()
        try:
            async with asyncio.timeout(self._body_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Disconnected
                    body += message.get("body", b"")
                    if len(body) > self._max_body_bytes:
                        raise Refused(413, "Request too large", unread=bool(message.get("more_body")))
                    if not message.get("more_body"):
                        return bytes(body)
        except TimeoutError:
            raise Refused(408, "Request timeout", unread=True) from None


def only_header(headers: Headers, name: bytes) -> bytes | None:
    """The value of a header that is there exactly once."""
    values = [value for key, value in headers if key.lower() == name]
    return values[0] if len(values) == 1 else None


def response_headers(length: int, *, close: bool) -> list[tuple[bytes, bytes]]:
    """The headers of every answer."""
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(length).encode()),
        (PROTOCOL_HEADER.encode(), PROTOCOL_VERSION.encode()),
    ]
    return [*headers, (b"connection", b"close")] if close else headers


async def _respond(receive: Receive, send: Send, status: int, body: bytes, *, unread: bool) -> None:
    headers = response_headers(len(body), close=unread)
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": unread})
    if unread:
        await end_unread(receive, send)


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
