"""Addresses, credentials and permissions from the environment. Source: behaviours C-06, C-07.

    MEMPLANE_RUNTIME_ENV                    development | test | production
    MEMPLANE_RUNTIME_WORKSPACE              directory of the sandbox's files
    MEMPLANE_SHARED_PROVIDERS               names, comma separated; then for each NAME in capitals:
    MEMPLANE_SHARED_PROVIDER_<NAME>_KIND    openai-compatible (the default)
    MEMPLANE_SHARED_PROVIDER_<NAME>_BASE_URL, _API_KEY, _MODEL
    MEMPLANE_WORKER_INFER_MODEL_PROVIDER, MEMPLANE_WORKER_INFER_MODEL      both or neither
    MEMPLANE_SHARED_SANDBOX_ALLOW_TOOLS, _MCP, _SKILLS, _NETWORK           names, comma separated
    MEMPLANE_SHARED_SANDBOX_ALLOW_READ, _WRITE, _EXECUTE                   true | false
    MEMPLANE_TRANSPORT_HTTP_WORKER_TOKEN    token of the HTTP transport

Only the mapping that is passed in is read. No error repeats a value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from pydantic import SecretStr

from memplane.errors import SettingsError
from memplane.runtime.config.layout import PROVIDER_NAME
from memplane.runtime.errors import DefinitionError
from memplane.runtime.sandbox import check_policy

PREFIX = "MEMPLANE_"
OLD_PREFIX = "DITTO_"
GROUPS = ("RUNTIME", "SHARED", "WORKER", "TRANSPORT")
"""Groups of variables that belong to this file alone; `MEMPLANE_` variables of other groups are the service's."""

MOVED = MappingProxyType(
    {
        "MEMPLANE_RUNTIME_TIMEOUT_MS": "runtime.timeoutMs",
        "MEMPLANE_RUNTIME_MAX_TURNS": "runtime.maxTurns",
        "MEMPLANE_RUNTIME_GRAPH_CONCURRENCY": "runtime.graphConcurrency",
        "MEMPLANE_RUNTIME_LOOP_MAX_ITERATIONS": "runtime.loopMaxIterations",
        "MEMPLANE_WORKER_MEMORY_QUERY_LIMIT": "workers.memory.queryLimit",
        "MEMPLANE_WORKER_MEMORY_SEARCH_LIMIT": "workers.memory.searchLimit",
        "MEMPLANE_WORKER_RETRIEVAL_SEARCH_LIMIT": "workers.retrieval.searchLimit",
    }
)
"""Behaviour that has its place in the file."""

ENVIRONMENTS = ("development", "test", "production")
KINDS = ("openai-compatible",)
_FIXED = frozenset(
    {
        "MEMPLANE_RUNTIME_ENV",
        "MEMPLANE_RUNTIME_WORKSPACE",
        "MEMPLANE_SHARED_PROVIDERS",
        "MEMPLANE_WORKER_INFER_MODEL_PROVIDER",
        "MEMPLANE_WORKER_INFER_MODEL",
        "MEMPLANE_TRANSPORT_HTTP_WORKER_TOKEN",
        *(f"MEMPLANE_SHARED_SANDBOX_ALLOW_{name.upper()}" for name in ("tools", "mcp", "skills", "network")),
        *(f"MEMPLANE_SHARED_SANDBOX_ALLOW_{name.upper()}" for name in ("read", "write", "execute")),
    }
)
_PROVIDER_FIELDS = ("KIND", "BASE_URL", "API_KEY", "MODEL")


@dataclass(frozen=True, slots=True)
class Environment:
    """What the environment says. `providers` maps a name to `kind, baseUrl, apiKey?, model?`; keys are `SecretStr`."""

    environment: str
    workspace: str | None
    providers: Mapping[str, Mapping[str, Any]]
    model: Mapping[str, str] | None
    sandbox: Mapping[str, Any]
    transport: Mapping[str, Any]


def read_environment(env: Mapping[str, str]) -> Environment:
    """Read and check. Raises `SettingsError`."""
    names = _names(env, "MEMPLANE_SHARED_PROVIDERS")
    _check_names(names)
    _refuse_unknown(env, names)
    providers = MappingProxyType({name: _provider(env, name) for name in names})
    token = env.get("MEMPLANE_TRANSPORT_HTTP_WORKER_TOKEN", "")
    return Environment(
        environment=_one_of(env, "MEMPLANE_RUNTIME_ENV", ENVIRONMENTS, "development"),
        workspace=env.get("MEMPLANE_RUNTIME_WORKSPACE") or None,
        providers=providers,
        model=_model(env, providers),
        sandbox=_policy(env),
        transport=MappingProxyType({"httpWorkerToken": SecretStr(token)} if token else {}),
    )


def _check_names(names: tuple[str, ...]) -> None:
    for index, name in enumerate(names):
        if not re.fullmatch(PROVIDER_NAME, name) or name in names[:index]:
            raise SettingsError(f"Invalid or duplicate provider: {name}")


def _refuse_unknown(env: Mapping[str, str], names: tuple[str, ...]) -> None:
    known = _FIXED | {
        f"MEMPLANE_SHARED_PROVIDER_{name.upper()}_{field}" for name in names for field in _PROVIDER_FIELDS
    }
    for key in env:
        if key.startswith(OLD_PREFIX):
            raise SettingsError(f"Legacy env key {key}: names start with {PREFIX}")
        if key in MOVED:
            raise SettingsError(f"{key} has moved to memplane.yaml as {MOVED[key]}")
        if key not in known and _is_ours(key):
            if re.fullmatch(rf"MEMPLANE_SHARED_PROVIDER_[A-Z0-9_]+_({'|'.join(_PROVIDER_FIELDS)})", key):
                continue  # a provider that is prepared but not enabled
            raise SettingsError(f"Unknown env key {key}")


def _is_ours(key: str) -> bool:
    """Whether a variable is of our groups; `MEMPLANE_WORKER__PORT` is a field of the service's section `worker`."""
    return any(re.match(rf"{PREFIX}{group}_(?!_)", key) for group in GROUPS)


def _provider(env: Mapping[str, str], name: str) -> Mapping[str, Any]:
    prefix = f"MEMPLANE_SHARED_PROVIDER_{name.upper()}_"
    provider: dict[str, Any] = {"kind": _one_of(env, f"{prefix}KIND", KINDS, KINDS[0])}
    provider["baseUrl"] = _url(env, f"{prefix}BASE_URL")
    if env.get(f"{prefix}API_KEY"):
        provider["apiKey"] = SecretStr(env[f"{prefix}API_KEY"])
    if env.get(f"{prefix}MODEL"):
        provider["model"] = env[f"{prefix}MODEL"]
    return MappingProxyType(provider)


def _url(env: Mapping[str, str], key: str) -> str:
    value = env.get(key, "")
    try:
        parts = urlsplit(value)
        valid = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        valid = False
    if not valid or "@" in parts.netloc or parts.query or parts.fragment:
        raise SettingsError(f"{key} must be an http(s) URL without credentials, query and fragment")
    return value.rstrip("/")


def _model(env: Mapping[str, str], providers: Mapping[str, Any]) -> Mapping[str, str] | None:
    provider = env.get("MEMPLANE_WORKER_INFER_MODEL_PROVIDER", "")
    model = env.get("MEMPLANE_WORKER_INFER_MODEL", "")
    if bool(provider) != bool(model):
        raise SettingsError("Set MEMPLANE_WORKER_INFER_MODEL_PROVIDER and MEMPLANE_WORKER_INFER_MODEL together")
    if not provider:
        return None
    if provider not in providers:
        raise SettingsError("MEMPLANE_WORKER_INFER_MODEL_PROVIDER must name one of MEMPLANE_SHARED_PROVIDERS")
    return MappingProxyType({"provider": provider, "model": model})


def _policy(env: Mapping[str, str]) -> Mapping[str, Any]:
    policy: dict[str, Any] = {}
    for kind in ("tools", "network", "skills", "mcp"):
        policy[kind] = _names(env, f"MEMPLANE_SHARED_SANDBOX_ALLOW_{kind.upper()}")
    for kind in ("read", "write", "execute"):
        key = f"MEMPLANE_SHARED_SANDBOX_ALLOW_{kind.upper()}"
        policy[kind] = _one_of(env, key, ("true", "false"), "false") == "true"
    try:
        check_policy(policy)
    except DefinitionError:
        raise SettingsError(
            "MEMPLANE_SHARED_SANDBOX_ALLOW_NETWORK must list origins (scheme://host:port) or *"
        ) from None
    return MappingProxyType(policy)


def _names(env: Mapping[str, str], key: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in env.get(key, "").split(",") if name.strip())


def _one_of(env: Mapping[str, str], key: str, words: tuple[str, ...], default: str) -> str:
    value = env.get(key) or default
    if value not in words:
        raise SettingsError(f"{key} must be one of {', '.join(words)}")
    return value
