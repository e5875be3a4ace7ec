"""A scripted model behind the OpenAI chat protocol: real HTTP, known answers, counted calls."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ORDER = {"sku": "SKU-731", "quantity": 2, "address": "Dock-North"}
STATE_PREFIX = "Current state: "

Answer = Callable[[Mapping[str, Any]], str]
"""Request body → text of the answer."""


def faithful(body: Mapping[str, Any]) -> str:
    """The order of the request; in a session, the state that the conversation states last."""
    texts = [str(message["content"]) for message in body["messages"]]
    states = [text for text in texts if text.startswith(STATE_PREFIX)]
    return states[-1].removeprefix(STATE_PREFIX) if states else json.dumps(ORDER)


class ModelServer:
    """A running endpoint: `url` for clients, `calls` so far, `answer` may be replaced, `finish_reason` too."""

    def __init__(self, answer: Answer = faithful) -> None:
        self.answer = answer
        self.finish_reason = "stop"
        self.status = 200
        self.calls = 0
        self._lock = threading.Lock()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 30

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status, document = endpoint.respond(self.path, body)
                data = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
                """Calls are counted instead."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def respond(self, path: str, body: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        """One answer in the protocol's shape."""
        if path != "/v1/chat/completions":
            return 404, {"error": {"message": "no such path"}}
        with self._lock:
            self.calls += 1
        if self.status != 200:
            return self.status, {"error": {"message": "scripted failure"}}
        message = {"role": "assistant", "content": self.answer(body)}
        choice = {"index": 0, "message": message, "finish_reason": self.finish_reason}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        return 200, {"id": "scripted", "object": "chat.completion", "choices": [choice], "usage": usage}

    def close(self) -> None:
        """Stop listening. Idempotent."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
