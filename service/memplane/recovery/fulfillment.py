"""The reference fulfilment service: the HTTP contract that an external system must keep for the flows to be safe.

For experiments, tests and as an example workload. It listens on loopback unless told otherwise: it knows no callers, so
beyond loopback something else must say who may connect. Source: seed `004`, behaviours 6.2.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from memplane.recovery.documents import KINDS, normalised_order
from memplane.recovery.errors import RecoveryError
from memplane.recovery.ledger import KeyConflict, Ledger, LedgerClosed

MAX_BODY = 8192
MAX_DRAINED = 1024 * 1024
"""Bytes of a body over the limit that are read and dropped before the refusal."""
CLOSE_SECONDS = 5.0
"""How long `close` waits for requests that are being answered."""
_STATUS = {"pending": 202, "committed": 200, "rejected": 422}


@dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong on purpose. All off by default."""

    primary_unavailable: bool = False
    catalog_delay_ms: int = 0
    lookup_unavailable: bool = False
    lookup_unavailable_after_write: bool = False
    reject_shipping: bool = False
    reject_release: bool = False
    drop_reservation_response: bool = False
    reservation_delay_ms: int = 0

    @classmethod
    def of(cls, faults: Mapping[str, Any] | None) -> Faults:
        """From names. Raises `RecoveryError` for an unknown one."""
        unknown = set(faults or ()) - set(cls.__dataclass_fields__)
        if unknown:
            raise RecoveryError(f"Unknown faults: {', '.join(sorted(unknown))}")
        return cls(**dict(faults or {}))


class DropConnection(Exception):  # noqa: N818 - an outcome on purpose
    """Answer nothing: destroy the connection."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], ledger: Ledger, faults: Faults) -> None:
        super().__init__(address, _Handler)
        self.ledger, self.faults = ledger, faults
        self._closing = threading.Event()
        self._answering = 0
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """A request that `close_ledger` waits for."""
        with self._changed:
            self._answering += 1
        try:
            yield
        finally:
            with self._changed:
                self._answering -= 1
                self._changed.notify_all()

    def delay(self, milliseconds: int) -> None:
        """A fault's pause (0: none). Raises `DropConnection` when the service is being closed."""
        if self._closing.wait(milliseconds / 1000):
            raise DropConnection

    def close_ledger(self) -> None:
        """End pauses, let what is being answered end, and close; who comes later is not answered."""
        self._closing.set()
        with self._changed:
            self._changed.wait_for(lambda: self._answering == 0, CLOSE_SECONDS)
        self.ledger.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """What a handler let out. A client that has left in the middle of its request is nothing to tell."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 30
    server: _Server

    def do_GET(self) -> None:
        with self.server.answering():
            self._answer("GET")

    def do_POST(self) -> None:
        with self.server.answering():
            self._answer("POST")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Requests are noted in the ledger."""

    def _answer(self, method: str) -> None:
        url = urlsplit(self.path)
        try:
            self.server.delay(0)
            self.server.ledger.log(method, url.path)
            status, body = self._route(method, url.path, parse_qs(url.query))
        except (DropConnection, LedgerClosed):
            self.close_connection = True
            with contextlib.suppress(OSError):  # the client has left first
                self.connection.shutdown(socket.SHUT_RDWR)
            return
        except (RecoveryError, ValueError, KeyError, TypeError):
            status, body = 500, {"code": "SERVICE_ERROR"}
        data = json.dumps(body, ensure_ascii=False).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            if self.close_connection:
                self.send_header("Connection", "close")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except OSError:
            self.close_connection = True  # the client has left; what was done stays done

    def _sent(self) -> bytes | None:
        """The request's body, None when it is over the limit.

        It is always read: what stays unread would be taken for the next request, or reset the connection when it is
        closed, and a client that still sends would not see its answer.
        """
        length = int(self.headers.get("Content-Length") or 0)
        if length <= MAX_BODY:
            return self.rfile.read(max(length, 0))
        self.rfile.read(min(length, MAX_DRAINED))
        self.close_connection = True
        return None

    def _route(self, method: str, path: str, query: Mapping[str, list[str]]) -> tuple[int, dict[str, Any]]:
        sent = self._sent()
        if sent is None:
            return 413, {"code": "BODY_LIMIT"}
        parts = path.strip("/").split("/")
        if method == "GET" and len(parts) == 2 and parts[0] == "catalog":
            return self._catalog(parts[1], query)
        if method == "GET" and len(parts) == 2 and parts[0] == "operations":
            return self._lookup(parts[1])
        if method == "POST" and len(parts) == 1 and parts[0] in KINDS:
            return self._operate(parts[0], sent)
        return 404, {"code": "NOT_FOUND"}

    def _catalog(self, name: str, query: Mapping[str, list[str]]) -> tuple[int, dict[str, Any]]:
        if name not in ("primary", "backup"):
            return 404, {"code": "NOT_FOUND"}
        faults = self.server.faults
        if name == "primary":
            self.server.delay(faults.catalog_delay_ms)
            if faults.primary_unavailable:
                return 503, {"code": "UNAVAILABLE"}
        sku = query["sku"][0]
        normalised_order({"sku": sku, "quantity": 1, "address": "-"})
        available = self.server.ledger.available(sku)
        if available is None:
            return 404, {"code": "SKU_NOT_FOUND"}
        return 200, {"sku": sku, "available": available, "source": name}

    def _lookup(self, key: str) -> tuple[int, dict[str, Any]]:
        faults, ledger = self.server.faults, self.server.ledger
        if faults.lookup_unavailable or (faults.lookup_unavailable_after_write and ledger.operations_exist()):
            return 503, {"code": "LOOKUP_UNAVAILABLE"}
        return 200, ledger.operation(key).as_wire()

    def _operate(self, kind: Any, sent: bytes) -> tuple[int, dict[str, Any]]:
        body = json.loads(sent)
        key, reservation, order = body["key"], body["reservationKey"], normalised_order(body["order"])
        for name in (key, reservation):
            normalised_order({"sku": name, "quantity": 1, "address": "-"})
        ledger, faults = self.server.ledger, self.server.faults
        try:
            operation, fresh = ledger.claim(key, kind, order, reservation)
        except KeyConflict:
            return 409, {"code": "IDEMPOTENCY_CONFLICT"}
        if fresh:
            if kind == "reserve":
                self.server.delay(faults.reservation_delay_ms)
            rejections = {
                "ship": "ADDRESS_REJECTED" if faults.reject_shipping else None,
                "release": "RELEASE_REJECTED" if faults.reject_release else None,
            }
            operation = ledger.execute(key, kind, order, reservation, reject=rejections.get(kind))
            if kind == "reserve" and faults.drop_reservation_response:
                raise DropConnection
        return _STATUS[operation.state], operation.as_wire()


class FulfillmentService:
    """A running service: `url`, `writes(path)`, `close()`."""

    def __init__(self, server: _Server, thread: threading.Thread) -> None:
        self._server, self._thread = server, thread
        self.url = "http://{}:{}".format(*server.server_address[:2])

    def writes(self, path: str) -> int:
        """How many POSTs to a path arrived since the ledger was made."""
        return self._server.ledger.writes(path)

    async def close(self) -> None:
        """Stop listening, end what is being answered and close the ledger. Idempotent.

        A request in a fault's pause is not answered, and what it asked for stays pending.
        """
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()
            self._server.close_ledger()


async def start_fulfillment_service(
    path: str | Path,
    inventory: Sequence[Mapping[str, Any]],
    faults: Mapping[str, Any] | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
) -> FulfillmentService:
    """Start the service with its ledger at `path`; existing stock and operations are kept.

    host: an IPv4 address or name; every caller that reaches it is served. Raises `OSError`: the address is taken.
    """
    chosen = Faults.of(faults)

    def start() -> FulfillmentService:
        server = _Server((host, port), Ledger(Path(path), inventory), chosen)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        return FulfillmentService(server, thread)

    return await asyncio.to_thread(start)
