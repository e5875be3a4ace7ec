"""Reads a backend's numbers from its own service, never from its database. Source: design section 9."""

from __future__ import annotations

import json
from typing import Any

import httpx

from memplane_operator.desired.context import Backend
from memplane_operator.desired.service import endpoint

TIMEOUT_SECONDS = 5.0


async def fetch_status(backend: Backend, status_key: str, client: httpx.AsyncClient) -> dict[str, Any] | None:
    """The document of `/v1/admin/status`, or None when the service does not answer it."""
    try:
        response = await client.get(
            f"{endpoint(backend)}/v1/admin/status",
            headers={"Authorization": f"Bearer {status_key}"},
            timeout=TIMEOUT_SECONDS,
        )
        if response.status_code != 200:
            return None
        document = response.json()
    except (httpx.HTTPError, json.JSONDecodeError, UnicodeDecodeError):
        return None
    return document if isinstance(document, dict) else None
