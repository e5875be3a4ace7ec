"""Secrets: read one by one by name, never listed or watched; their content leaves this module only as keyed digests.

The operator makes two kinds itself: the API key of a backend that declares no `auth`, and the key by which the operator
reads a backend's status. Both are created once and never overwritten.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

import yaml

from memplane_operator.api.spec import SecretKeyRef
from memplane_operator.cluster import SECRETS, Cluster
from memplane_operator.desired.config import api_key_name, secret_files, status_key_name
from memplane_operator.desired.context import Backend, Manifest
from memplane_operator.desired.labels import metadata
from memplane_operator.errors import Conflict, NotFound, Waiting


@dataclass(frozen=True, slots=True)
class SecretFacts:
    """Keyed digests of every Secret key a backend uses, and the key for reading its status."""

    checksums: Mapping[str, str]
    status_key: str


async def ensure_own_secrets(cluster: Cluster, backend: Backend) -> None:
    """Create the Secrets that the operator owns, where they are missing."""
    await _create_once(cluster, backend, status_key_name(backend), lambda: {"key": secrets.token_urlsafe(32)})
    auth = backend.spec.auth
    if auth is None or (auth.mode == "apiKeys" and auth.api_keys is None):
        await _create_once(cluster, backend, api_key_name(backend), new_api_key)


def new_api_key() -> dict[str, str]:
    """A fresh key and the service's record of its hash: tenant `default`, all users, reader and writer."""
    identifier = secrets.token_hex(6)
    key = f"mp_{identifier}_{secrets.token_urlsafe(32)}"
    record = {
        "id": identifier,
        "name": "made by the operator",
        "sha256": hashlib.sha256(key.encode()).hexdigest(),
        "tenant": "default",
        "users": "*",
        "roles": ["reader", "writer"],
    }
    return {"key": key, "keys.yaml": yaml.safe_dump({"keys": [record]}, sort_keys=False)}


async def _create_once(cluster: Cluster, backend: Backend, name: str, content: object) -> None:
    try:
        await cluster.get(SECRETS, backend.namespace, name)
    except NotFound:
        assert callable(content)
        manifest: Manifest = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": metadata(backend, name, "secret"),
            "type": "Opaque",
            "stringData": content(),
        }
        try:
            await cluster.create(manifest)
        except Conflict:
            return  # somebody was faster; what exists stays


async def read_secrets(cluster: Cluster, backend: Backend, hmac_key: bytes) -> SecretFacts:
    """Read every Secret key the backend uses. Raises `Waiting` naming the first that is missing."""
    objects: dict[str, Mapping[str, str]] = {}
    checksums: dict[str, str] = {}
    status_key = ""
    for path, ref in secret_files(backend).items():
        value = await _value(cluster, backend, ref, objects)
        checksums[f"{ref.name}/{ref.key}"] = hmac.new(hmac_key, value, hashlib.sha256).hexdigest()[:32]
        if path == "status/key":
            status_key = value.decode()
    return SecretFacts(checksums, status_key)


async def _value(cluster: Cluster, backend: Backend, ref: SecretKeyRef, objects: dict[str, Mapping[str, str]]) -> bytes:
    if ref.name not in objects:
        try:
            objects[ref.name] = (await cluster.get(SECRETS, backend.namespace, ref.name)).get("data") or {}
        except NotFound:
            text = f"Secret {ref.name} does not exist in namespace {backend.namespace}: create it with key {ref.key}"
            raise Waiting("Reconciled", "SecretMissing", text) from None
    encoded = objects[ref.name].get(ref.key)
    if encoded is None:
        text = f"Secret {ref.name} has no key {ref.key}: add it, or name another key in the MemoryBackend"
        raise Waiting("Reconciled", "SecretKeyMissing", text)
    return base64.b64decode(encoded)
