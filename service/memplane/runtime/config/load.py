"""The runtime's configuration: a deeply frozen snapshot of a file and an environment. Source: behaviours C-01 … C-09.

Nothing is read implicitly: not at import, not without a call, no environment but the one that is passed in.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from memplane.errors import SettingsError
from memplane.runtime.config.environment import read_environment
from memplane.runtime.config.kinds import kind_of
from memplane.runtime.config.layout import BUILT_IN, FILE
from memplane.runtime.config.yaml_source import parse_yaml

Section = Mapping[str, Any]
_NOTHING: Section = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class RuntimeConfig:
    """Sections by attribute; each is a read-only mapping with the wire names of the file.

    runtime: `timeoutMs, maxTurns, loopMaxIterations` always, `graphConcurrency, react, sandbox` when set.
    memory, retrieval, infer, context, interaction: `workers.<name>` of the file, what is set.
    providers: by name `kind, baseUrl, apiKey?, model?` of the environment and `maxTokensField?, options?` of the file.
    model: `provider, model`, or None. sandbox: the policy. transport: `httpWorkerToken?`. Secrets are `SecretStr`.
    environment: development, test or production. workspace: a directory, or None.
    """

    runtime: Section
    memory: Section
    retrieval: Section
    infer: Section
    context: Section
    interaction: Section
    providers: Mapping[str, Section]
    model: Section | None
    sandbox: Section
    transport: Section
    environment: str
    workspace: str | None


def load_runtime_config_file(path: str | os.PathLike[str], env: Mapping[str, str]) -> RuntimeConfig:
    """Read `memplane.yaml` and this environment. Raises `FileNotFoundError`, `OSError`, `SettingsError`."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise SettingsError("memplane.yaml is not UTF-8 text") from None
    settings = parse_yaml(text)
    if settings is None:
        raise SettingsError("memplane.yaml is empty")
    return load_runtime_config(env, settings)


def load_runtime_config(env: Mapping[str, str], settings: Mapping[str, Any] | None = None) -> RuntimeConfig:
    """Check settings (the file's data) and an environment. Raises `SettingsError`. Both are copied."""
    if settings is not None and not isinstance(settings, Mapping):
        raise SettingsError(f"config must be an object, not {kind_of(settings)}")
    checked = FILE.check("", settings or {})
    deployment = read_environment(env)
    workers = checked.get("workers", _NOTHING)
    behaviour = checked.get("shared", _NOTHING).get("providers", _NOTHING)
    return RuntimeConfig(
        runtime=MappingProxyType({**BUILT_IN, **checked.get("runtime", {})}),
        memory=workers.get("memory", _NOTHING),
        retrieval=workers.get("retrieval", _NOTHING),
        infer=workers.get("infer", _NOTHING),
        context=workers.get("context", _NOTHING),
        interaction=workers.get("interaction", _NOTHING),
        providers=MappingProxyType(
            {
                name: MappingProxyType({**provider, **behaviour.get(name, {})})
                for name, provider in deployment.providers.items()
            }
        ),
        model=deployment.model,
        sandbox=deployment.sandbox,
        transport=deployment.transport,
        environment=deployment.environment,
        workspace=deployment.workspace,
    )
