"""An OTLP collector in the test's process: it keeps what is sent to it."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Received:
    """A span as it came over the wire."""

    service: str
    name: str
    trace: str
    id: str
    parent: str
    links: list[str]
    """Span ids."""
    failed: bool
    attributes: dict[str, Any]
    began: int
    ended: int


@dataclass
class Collector:
    url: str = ""
    spans: list[Received] = field(default_factory=list)

    def accept(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            service = next(a.value.string_value for a in resource.resource.attributes if a.key == "service.name")
            for scope in resource.scope_spans:
                self.spans += [_received(service, span) for span in scope.spans]


def _received(service: str, span: Any) -> Received:
    return Received(
        service,
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        [link.span_id.hex() for link in span.links],
        span.status.code == 2,
        {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes},
        span.start_time_unix_nano,
        span.end_time_unix_nano,
    )


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            collector.accept(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    collector.url = f"http://127.0.0.1:{server.server_port}/v1/traces"
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
