"""The settings document of a backend's processes, validated by the service's own models.

Secrets never stand in it: it names the files under which they are mounted.
"""

from __future__ import annotations

from typing import Any

import yaml

from memplane_operator.api.spec import Embedding, Projection, SecretKeyRef
from memplane_operator.desired.context import Backend, Manifest
from memplane_operator.desired.labels import metadata

CONFIG_PATH = "/etc/memplane/memplane.yaml"
SECRET_PATH = "/var/run/secrets/memplane"  # noqa: S105 - a folder, not a secret
CONNECTION_FILE = f"{SECRET_PATH}/store/dsn"
"""The store's connection Secret as every process finds it."""
HTTP_PORT = 8080


def config_name(backend: Backend) -> str:
    return f"{backend.name}-config"


def api_key_name(backend: Backend) -> str:
    """The Secret that the operator makes when no auth is declared."""
    return f"{backend.name}-api-key"


def status_key_name(backend: Backend) -> str:
    """The Secret with the key by which the operator reads the service's status."""
    return f"{backend.name}-status-key"


def secret_files(backend: Backend) -> dict[str, SecretKeyRef]:
    """Each mounted file (a path below SECRET_PATH) and the Secret key it comes from."""
    spec = backend.spec
    files = {"store/dsn": spec.store.connection_secret_ref}
    if spec.projections.milvus is not None:
        files["milvus/uri"] = spec.projections.milvus.connection_secret_ref
    if spec.projections.neo4j is not None:
        files["neo4j/uri"] = spec.projections.neo4j.connection_secret_ref
    if spec.embedding.credentials_secret_ref is not None:
        files["embedding/api-key"] = spec.embedding.credentials_secret_ref
    if spec.embedding_previous is not None and spec.embedding_previous.credentials_secret_ref is not None:
        files["embedding-previous/api-key"] = spec.embedding_previous.credentials_secret_ref
    if spec.auth is None:
        files["auth/keys"] = SecretKeyRef(name=api_key_name(backend), key="keys.yaml")
    elif spec.auth.mode == "apiKeys":
        own = spec.auth.api_keys
        files["auth/keys"] = own.secret_ref if own else SecretKeyRef(name=api_key_name(backend), key="keys.yaml")
    files["status/key"] = SecretKeyRef(name=status_key_name(backend), key="key")
    return files


def settings(backend: Backend) -> dict[str, Any]:
    """The settings document as a mapping."""
    spec = backend.spec
    document: dict[str, Any] = {
        **_postgres(backend),
        "store": {"plugin": spec.store.plugin, "options": _store_options(backend)},
        "search": {"plugin": spec.search.plugin, "options": spec.search.options or {}},
        "embedding": _embedding(spec.embedding, "embedding"),
        "defaults": {"query_limit": spec.defaults.query_limit, "search_limit": spec.defaults.search_limit},
        "auth": _auth(backend),
        "service": {"host": "0.0.0.0", "port": HTTP_PORT},  # noqa: S104 - the pod's own address
        "worker": {"host": "0.0.0.0", "port": HTTP_PORT},  # noqa: S104
    }
    if spec.embedding_previous is not None:
        document["embedding_previous"] = _embedding(spec.embedding_previous, "embedding-previous")
    for target, projection in (("milvus", spec.projections.milvus), ("neo4j", spec.projections.neo4j)):
        if projection is not None:
            document[target] = {"uri_file": f"{SECRET_PATH}/{target}/uri"}
    return document


def worker_settings(projection: Projection) -> dict[str, str]:
    """Environment of one target's workers, on top of the shared document."""
    worker = projection.worker
    return {
        "MEMPLANE_OUTBOX__BATCH_SIZE": str(worker.batch_size),
        "MEMPLANE_OUTBOX__CONCURRENCY": str(worker.concurrency),
        "MEMPLANE_OUTBOX__MAX_ATTEMPTS": str(worker.max_attempts),
        "MEMPLANE_OUTBOX__MODE": projection.mode,
    }


def schema_name(backend: Backend) -> str:
    """The PostgreSQL schema of the backend (`store.options.schema`)."""
    return str((backend.spec.store.options or {}).get("schema", "memplane"))


def _postgres(backend: Backend) -> dict[str, Any]:
    """The section of the same name; with another store there is no PostgreSQL."""
    if backend.spec.store.plugin != "postgres":
        return {}
    return {"postgres": {"dsn_file": CONNECTION_FILE, "schema_name": schema_name(backend)}}


def _store_options(backend: Backend) -> dict[str, Any]:
    """The plugin's document. Built-in plugins find their connection; a plugin of your own is given the path."""
    options = dict(backend.spec.store.options or {})
    match backend.spec.store.plugin:
        case "postgres":
            options.pop("schema", None)
        case "mysql" if "dsn" not in options:
            options.setdefault("dsn_file", CONNECTION_FILE)
        case "milvus":
            options["milvus"] = {"uri_file": CONNECTION_FILE, **(options.get("milvus") or {})}
    return options


def _embedding(embedding: Embedding, folder: str) -> dict[str, Any]:
    """A section of the settings; `folder` holds its Secret's file."""
    options = dict(embedding.options or {})
    if embedding.credentials_secret_ref is not None:
        options["api_key_file"] = f"{SECRET_PATH}/{folder}/api-key"
    return {"plugin": embedding.plugin, "options": options, "batch_size": embedding.batch_size}


def _auth(backend: Backend) -> dict[str, Any]:
    auth = backend.spec.auth
    document: dict[str, Any] = {"mode": "apiKeys", "api_keys_file": f"{SECRET_PATH}/auth/keys"}
    if auth is not None and auth.mode == "jwt" and auth.jwt is not None:
        jwt = {"issuer": auth.jwt.issuer, "audience": auth.jwt.audience, "jwks_url": auth.jwt.jwks_url}
        document = {"mode": "jwt", "jwt": jwt}
    return {**document, "status_key_file": f"{SECRET_PATH}/status/key"}


def config_map(backend: Backend) -> Manifest:
    """The ConfigMap that holds the settings document."""
    text = yaml.safe_dump(settings(backend), sort_keys=True, allow_unicode=True)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(backend, config_name(backend), "config"),
        "data": {"memplane.yaml": text},
    }
