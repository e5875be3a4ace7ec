"""Plugins by name. Source: design section 3 (entry points `memplane.stores`, `memplane.search`, `memplane.embeddings`;
section 7: `memplane.consolidation`).

An entry point names an object with `settings_model`, the pydantic model of the plugin's own `options` document, and
`create(settings, resources)`, which builds the backend without doing any I/O (that is what `start()` is for). `load_*`
finds the object, `create_*` also checks the options and builds. Whatever is wrong, an unknown name, a missing extra, an
unknown option, is a `SettingsError` that tells what would be right and never repeats an option's value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

from pydantic import BaseModel, ValidationError

from memplane.contracts import EmbeddingProvider, SearchBackend, StoreBackend
from memplane.errors import SettingsError

if TYPE_CHECKING:
    from memplane.schema.database import Database

STORES = "memplane.stores"
SEARCH = "memplane.search"
EMBEDDINGS = "memplane.embeddings"

CONSOLIDATION = "memplane.consolidation"

KINDS = {STORES: "store", SEARCH: "search", EMBEDDINGS: "embedding", CONSOLIDATION: "merge policy"}


@dataclass(frozen=True, slots=True)
class Resources:
    """What the process shares with its plugins. A plugin takes what it needs and fails clearly when it is absent.

    The creator of a resource closes it; a plugin closes only what it opened itself.
    """

    settings: BaseModel | None = None
    """The root `Settings` of the process."""
    database: Database | None = None
    """The pool on the truth."""
    embedding: EmbeddingProvider | None = None
    embedding_previous: EmbeddingProvider | None = None
    """The model of the vectors in use while `embedding` is to replace it."""
    store: StoreBackend | None = None
    """The chosen store; given to search plugins."""
    milvus: object | None = None
    """An open Milvus client (`memplane.projections.clients`)."""
    neo4j: object | None = None
    """An open Neo4j driver (`memplane.projections.clients`)."""
    cache: object | None = None
    """The process's cache of memory bodies (`memplane.cache.ltm`)."""

    def require(self, field: str, plugin: str) -> Any:  # the field decides the type
        """The resource named `field`; raises `SettingsError` naming the plugin that cannot work without it."""
        value = getattr(self, field)
        if value is None:
            raise SettingsError(f"the plugin {plugin!r} needs {field}, which this process does not have")
        return value


SettingsT_contra = TypeVar("SettingsT_contra", bound=BaseModel, contravariant=True)
Made_co = TypeVar("Made_co", covariant=True)
Made = TypeVar("Made")


class Plugin(Protocol, Generic[SettingsT_contra, Made_co]):
    """What an entry point of memplane names."""

    @property
    def settings_model(self) -> type[BaseModel]: ...
    def create(self, settings: SettingsT_contra, resources: Resources) -> Made_co: ...


StorePlugin = Plugin[Any, StoreBackend]
SearchPlugin = Plugin[Any, SearchBackend]
EmbeddingPlugin = Plugin[Any, EmbeddingProvider]


def load_store(name: str) -> StorePlugin:
    """The store plugin of this name. Raises `SettingsError` listing the known names."""
    return cast(StorePlugin, _load(STORES, name))


def load_search(name: str) -> SearchPlugin:
    """The search plugin of this name. Raises `SettingsError` listing the known names."""
    return cast(SearchPlugin, _load(SEARCH, name))


def load_embedding(name: str) -> EmbeddingPlugin:
    """The embedding plugin of this name. Raises `SettingsError` listing the known names."""
    return cast(EmbeddingPlugin, _load(EMBEDDINGS, name))


def create_store(name: str, options: Mapping[str, object], resources: Resources) -> StoreBackend:
    """Find the store plugin, check its options, build the backend (not yet started)."""
    return _create(load_store(name), f"store.options of {name!r}", options, resources)


def create_search(name: str, options: Mapping[str, object], resources: Resources) -> SearchBackend:
    """Find the search plugin, check its options, build the backend (not yet started)."""
    return _create(load_search(name), f"search.options of {name!r}", options, resources)


def create_embedding(name: str, options: Mapping[str, object], resources: Resources) -> EmbeddingProvider:
    """Find the embedding plugin, check its options, build the provider."""
    return _create(load_embedding(name), f"embedding.options of {name!r}", options, resources)


def create_policy(name: str, options: Mapping[str, object], resources: Resources) -> object:
    """Find the merge policy, check its options, build it: a `memplane.consolidation.MergePolicy`, a higher layer's."""
    found = cast(Plugin[Any, object], _load(CONSOLIDATION, name))
    return _create(found, f"consolidation.policy_options of {name!r}", options, resources)


def known(group: str) -> list[str]:
    """The names registered in an entry point group, sorted."""
    return sorted({point.name for point in entry_points(group=group)})


def _load(group: str, name: str) -> object:
    plugin = _import(group, _find(group, name))
    model = getattr(plugin, "settings_model", None)
    if not (isinstance(model, type) and issubclass(model, BaseModel)) or not callable(getattr(plugin, "create", None)):
        raise SettingsError(f"the {KINDS[group]} plugin {name!r} must have a settings_model and a create method")
    return plugin


def _find(group: str, name: str) -> EntryPoint:
    # An editable install beside a wheel lists the same object twice: that is no conflict, two different objects are.
    found = {point.value: point for point in entry_points(group=group) if point.name == name}
    if not found:
        names = ", ".join(known(group)) or "none"
        raise SettingsError(f"unknown {KINDS[group]} plugin {name!r}; known: {names}")
    if len(found) > 1:
        owners = ", ".join(sorted(point.dist.name if point.dist else point.value for point in found.values()))
        raise SettingsError(f"the {KINDS[group]} plugin {name!r} is registered more than once, by {owners}")
    return next(iter(found.values()))


def _import(group: str, point: EntryPoint) -> object:
    try:
        return cast(object, point.load())
    except ModuleNotFoundError as error:
        # Built-in plugins name their extra; for foreign ones only the missing module is known.
        raise SettingsError(
            f"the {KINDS[group]} plugin {point.name!r} needs the Python module {error.name!r}, which is not installed"
            f" (built-in plugins: install memplane[{point.name}])"
        ) from error
    except (ImportError, AttributeError) as error:
        raise SettingsError(f"the {KINDS[group]} plugin {point.name!r} cannot be loaded from {point.value}") from error


def _create(plugin: Plugin[Any, Made], where: str, options: Mapping[str, object], resources: Resources) -> Made:
    return plugin.create(check_options(plugin.settings_model, options, where), resources)


def check_options(model: type[BaseModel], options: Mapping[str, object], where: str) -> BaseModel:
    """Validate a plugin's options document. Raises `SettingsError` with the path of each fault, never with a value."""
    try:
        return model.model_validate(dict(options))
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False, include_input=False)
        listed = "; ".join(
            f"{'.'.join(str(part) for part in fault['loc']) or '(all)'}: {fault['msg']}" for fault in faults
        )
        raise SettingsError(f"{where}: {listed}") from None
