"""`RetrievalTargetRegistry`: which provider serves which strategy of which target (cases R-02, R-04 to R-06, R-09)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from memplane.errors import RetrievalError
from memplane.nodes.shapes import is_object
from memplane.retrieval.documents import Resolution, RetrievalProvider, RetrievalTarget
from memplane.retrieval.errors import PROVIDER_UNAVAILABLE, STRATEGY_UNSUPPORTED, TARGET_NOT_FOUND, invalid_input
from memplane.retrieval.requests import check_strategy


@dataclass(frozen=True, slots=True)
class _Binding:
    default_strategy: str
    providers: Mapping[str, RetrievalProvider]


class RetrievalTargetRegistry:
    """`{target: {"defaultStrategy": name, "providers": {name: provider}}}`, copied: later changes have no effect.

    Raises RETRIEVAL_INVALID_INPUT for a malformed table or a default strategy without provider,
    RETRIEVAL_STRATEGY_UNSUPPORTED for a strategy named "rag", RETRIEVAL_PROVIDER_UNAVAILABLE for a provider that cannot
    search.
    """

    def __init__(self, targets: Mapping[str, Mapping[str, Any]]) -> None:
        if not is_object(targets):
            raise invalid_input("targets must be an object")
        self._bindings = {name: _bind(name, document) for name, document in targets.items()}

    @property
    def targets(self) -> Mapping[str, tuple[str, ...]]:
        """The registered names with their strategies."""
        return {name: tuple(binding.providers) for name, binding in self._bindings.items()}

    def resolve(self, target: RetrievalTarget, strategy: str | None) -> Resolution:
        """Raises RETRIEVAL_TARGET_NOT_FOUND, RETRIEVAL_STRATEGY_UNSUPPORTED (with the known ones)."""
        binding = self._bindings.get(target["name"])
        if binding is None:
            raise RetrievalError(TARGET_NOT_FOUND, "Retrieval target is not registered")
        chosen = binding.default_strategy if strategy is None else strategy
        provider = binding.providers.get(chosen)
        if provider is None:
            known = ", ".join(binding.providers)
            raise RetrievalError(STRATEGY_UNSUPPORTED, f"Retrieval strategy is not supported; known: {known}")
        return Resolution(chosen, provider)


def _bind(name: str, document: Any) -> _Binding:
    if not isinstance(name, str) or not name.strip():
        raise invalid_input("target names must be nonempty strings")
    if not is_object(document) or not is_object(document.get("providers")):
        raise invalid_input(f"target {name!r} must have providers")
    providers: dict[str, RetrievalProvider] = {}
    for strategy, provider in document["providers"].items():
        if not callable(getattr(provider, "search", None)):
            raise RetrievalError(PROVIDER_UNAVAILABLE, f"The provider of {name!r} must have a search method")
        providers[check_strategy(strategy)] = provider
    default = check_strategy(document.get("defaultStrategy"))
    if default not in providers:
        raise invalid_input(f"The default strategy of target {name!r} is not registered")
    return _Binding(default, providers)
