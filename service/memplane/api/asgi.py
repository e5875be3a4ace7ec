"""The few pieces of ASGI that the service's hot path speaks by itself: heads, bodies, answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any

from starlette.types import Receive, Send

from memplane.api import strict_json
from memplane.api.errors import HttpError
from memplane.api.request_context import RequestContext
from memplane.errors import MemplaneError
from memplane.runtime.transports.draining import end_unread

AsgiScope = MutableMapping[str, Any]

JSON_TYPE = b"application/json"


class ClientGone(MemplaneError):  # noqa: N818 - reads as what happened
    """The client closed the connection before its request was complete: there is nobody to answer."""


def header_map(scope: AsgiScope) -> dict[bytes, bytes]:
    """The request's headers by lower-case name; of repeated ones the last."""
    return dict(scope["headers"])


def check_json_type(headers: Mapping[bytes, bytes]) -> None:
    """Raise 415 unless the body is declared to be JSON.

    It is a defence too: a web page cannot send this type to another origin unasked.
    """
    declared = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if declared != JSON_TYPE:
        raise HttpError(415, "UNSUPPORTED_MEDIA_TYPE", "Content-Type must be application/json")


async def read_body(headers: Mapping[bytes, bytes], receive: Receive, limit: int) -> bytes:
    """The whole body. Raises 413 as soon as it is known to be too large, before the rest is read."""
    declared = headers.get(b"content-length")
    if declared is not None and declared.isdigit() and int(declared[:20]) > limit:
        raise _too_large(limit)
    message = await receive()
    first: bytes = message.get("body", b"")
    if message["type"] == "http.request" and not message.get("more_body") and len(first) <= limit:
        return first
    chunks = bytearray()
    while True:
        if message["type"] == "http.disconnect":
            raise ClientGone("the client closed the connection while it sent its request")
        chunks += message.get("body", b"")
        if len(chunks) > limit:
            raise _too_large(limit)
        if not message.get("more_body"):
            return bytes(chunks)
        message = await receive()


def _too_large(limit: int) -> HttpError:
    # The rest of the body stays unread, so the connection cannot be used again.
    return HttpError(413, "TOO_LARGE", f"The body may have {limit} bytes at most", {"Connection": "close"})


async def send_json(
    send: Send,
    status: int,
    body: bytes,
    request: RequestContext,
    extra: Iterable[tuple[bytes, bytes]] = (),
    *,
    more_body: bool = False,
) -> None:
    """Answer with a JSON body that is already rendered. `more_body`: the caller ends the answer itself."""
    headers = [
        (b"content-type", JSON_TYPE),
        (b"content-length", b"%d" % len(body)),
        (b"x-request-id", request.request_id.encode("ascii")),
        *extra,
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": more_body})


def error_body(code: str, message: str, request: RequestContext) -> bytes:
    """The body of every answer that is not 200."""
    return strict_json.render({"error": {"code": code, "message": message}, "requestId": request.request_id})


async def send_error(receive: Receive, send: Send, error: HttpError, request: RequestContext) -> None:
    """Answer with an error; when it closes the connection, only after the client had time to finish sending."""
    extra = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in error.headers.items()]
    closes = error.headers.get("Connection") == "close"
    body = error_body(error.code, error.message, request)
    await send_json(send, error.status, body, request, extra, more_body=closes)
    if closes:
        await end_unread(receive, send)
