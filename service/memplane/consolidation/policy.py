"""What becomes of memories that are merged: the part that users can plug in (entry points `memplane.consolidation`).

A policy is pure: it sees memories of one snapshot and says what the survivor shall hold. Whatever it says is checked by
the planner, so no policy can lose a key, merge across scopes, or make an invalid document.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, cast

from pydantic import BaseModel, ConfigDict

from memplane.consolidation.memory import Memory
from memplane.contracts import JSON
from memplane.errors import MemplaneError
from memplane.plugins.registry import Resources, create_policy
from memplane.settings import ConsolidationSettings


@dataclass(frozen=True, slots=True)
class Merged:
    """What the survivor holds from now on. `content` None: what it holds already."""

    metadata: Mapping[str, JSON] | None
    content: JSON = None


class MergePolicy(Protocol):
    """How memories are merged, and which ones beyond duplicates. Pure: the same input gives the same answer."""

    @property
    def needs_content(self) -> bool:
        """Whether `merge` reads `contents`; they are loaded for the memories of a group only when it does."""
        ...

    def groups(self, memories: Sequence[Memory]) -> Iterable[Sequence[int]]:
        """Further groups of ids to merge, the survivor first (rule `policy`). The memories are of one scope, live, and
        not part of a group of duplicates; a group that is not disjoint from an earlier one is left out."""
        ...

    def merge(self, survivor: Memory, absorbed: Sequence[Memory], contents: Mapping[int, JSON]) -> Merged | None:
        """What the survivor is to hold; None: these are not to be merged. `metadata.relations` of the answer is
        ignored: the planner keeps the live relations of all of them."""
        ...


class PolicyFailed(MemplaneError):  # noqa: N818 - reads as what happened
    """A policy raised an error while it looked for groups; `kind` is the name of its class."""

    def __init__(self, kind: str) -> None:
        super().__init__(f"the merge policy failed: {kind}")


class PolicyPlugin(Protocol):
    """What an entry point of `memplane.consolidation` names."""

    @property
    def settings_model(self) -> type[BaseModel]: ...
    def create(self, settings: BaseModel, resources: Resources) -> MergePolicy: ...


def make_policy(settings: ConsolidationSettings, resources: Resources) -> MergePolicy:
    """The configured policy. Raises `SettingsError` for an unknown name or wrong options."""
    return cast(MergePolicy, create_policy(settings.policy, settings.policy_options, resources))


_LONGEST: Final = "expires_at"


class KeepPolicy:
    """The built-in policy `keep`: nothing that a reader could find before is lost, and nothing dies sooner.

    The survivor keeps its content and its metadata. Fields that it lacks come from the others, the latest changed
    first. `tags` are united, `importance` is the highest, and it expires last of all: never, if one of them never does.
    """

    needs_content: bool = False

    def groups(self, memories: Sequence[Memory]) -> Iterable[Sequence[int]]:
        return ()

    def merge(self, survivor: Memory, absorbed: Sequence[Memory], contents: Mapping[int, JSON]) -> Merged | None:
        latest_first = sorted(absorbed, key=lambda one: (one.updated_at, one.id), reverse=True)
        every = [survivor, *latest_first]
        if all(one.metadata is None for one in every):
            return Merged(None)
        merged: dict[str, JSON] = {}
        for one in every:
            for name, value in (one.metadata or {}).items():
                merged.setdefault(name, value)
        _longest_life(merged, every)
        _highest_importance(merged, every)
        _united_tags(merged, every)
        return Merged(merged)


def _longest_life(merged: dict[str, JSON], every: Sequence[Memory]) -> None:
    # `expires_at` is text in the metadata and a time in the memory; the text of the latest one is kept as it is.
    last = max(every, key=lambda one: (one.expires_at is None, one.expires_at or one.created_at))
    if last.expires_at is None or last.metadata is None:
        merged.pop(_LONGEST, None)
    else:
        merged[_LONGEST] = last.metadata[_LONGEST]


def _highest_importance(merged: dict[str, JSON], every: Sequence[Memory]) -> None:
    known = [one.importance for one in every if one.importance is not None]
    if known:
        merged["importance"] = max(known)


def _united_tags(merged: dict[str, JSON], every: Sequence[Memory]) -> None:
    tags: list[JSON] = []
    for one in every:
        held = (one.metadata or {}).get("tags")
        if isinstance(held, list):
            tags += [tag for tag in held if tag not in tags]
    if tags:
        merged["tags"] = tags


class KeepOptions(BaseModel):
    """`consolidation.policy_options` of the policy `keep`: it has none."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class KeepPlugin:
    """The entry point of the policy `keep`."""

    settings_model: type[BaseModel] = KeepOptions

    def create(self, settings: BaseModel, resources: Resources) -> MergePolicy:
        return KeepPolicy()


plugin: Final = KeepPlugin()
