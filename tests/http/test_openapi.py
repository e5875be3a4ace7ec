"""Schemathesis over the OpenAPI document of a running service: nothing is answered by a 5xx or against the document.

`negative_data_rejection` is not among the checks: a node's wrong input is answered 200 with a failed NodeResult, as the
node contract wants it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.generation import GenerationMode
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from memplane.api.auth.identity import Role
from memplane.api.auth.key_file import KeyFile, new_key, render_key_file
from memplane.settings import Settings
from tests.http.processes import child, wait_ready, write_settings
from tests.http.world import Keys

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
EXAMPLES = 12


@pytest.fixture
def running(settings: Settings, keys: Keys, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """The service as a process of its own, and a key with every role."""
    key, entry = new_key(tenant="acme", users="*", roles=list(Role))
    keys.file.write_text(render_key_file(KeyFile(keys=[entry])))
    config = write_settings(settings, tmp_path / "settings.yaml")
    with child(config, tmp_path / "log", "serve") as served:
        wait_ready(served.url)
        yield served.url, key
        assert served.end() == 0


def test_the_service_keeps_its_document(running: tuple[str, str]) -> None:
    url, key = running
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    operations: list[APIOperation[Any, Any, Any, Any]] = []
    for result in schema.get_all_operations():
        assert isinstance(result, Ok), "an operation of the document cannot be read"
        operations.append(result.ok())
    names = {operation.label for operation in operations}
    assert {
        f"POST /v1/nodes/MEMORY.{name}" for name in ("GET", "QUERY", "SEARCH", "WRITE", "UPDATE", "DELETE")
    } <= names
    assert {"GET /v1/admin/status", "GET /readyz", "GET /metrics"} <= names
    for operation in operations:
        for mode in GenerationMode:
            if mode is GenerationMode.NEGATIVE and not _takes_input(operation):
                continue
            _fuzz(operation, mode, key)


def _takes_input(operation: APIOperation[Any, Any, Any, Any]) -> bool:
    return bool(operation.body or operation.query or operation.headers or operation.path_parameters)


def _fuzz(operation: APIOperation[Any, Any, Any, Any], mode: GenerationMode, key: str) -> None:
    @hypothesis_settings(
        max_examples=EXAMPLES if operation.method == "post" else 4,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case: Any) -> None:
        headers = {"Authorization": f"Bearer {key}"}
        if mode is GenerationMode.POSITIVE:
            headers["X-Memory-User"] = "ann"
        case.call_and_validate(headers=headers, checks=CHECKS, timeout=20)

    check()
