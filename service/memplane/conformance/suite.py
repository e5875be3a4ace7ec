"""The whole contract of a store in one class, and the part that a search plugin beside a store answers for."""

from memplane.conformance.changes import ChangesConformance
from memplane.conformance.concurrency import ConcurrencyConformance
from memplane.conformance.flow import FlowConformance
from memplane.conformance.pages import PagesConformance
from memplane.conformance.queries import QueriesConformance
from memplane.conformance.records import RecordsConformance
from memplane.conformance.scopes import ScopesConformance
from memplane.conformance.searches import SearchesConformance


class StoreConformance(
    FlowConformance,
    RecordsConformance,
    ChangesConformance,
    QueriesConformance,
    PagesConformance,
    ScopesConformance,
    ConcurrencyConformance,
    SearchesConformance,
):
    """Subclass it and override the fixture `backend`; see the package's documentation."""


class SearchConformance(FlowConformance, ScopesConformance, SearchesConformance):
    """For a search plugin: override `backend` with the store beside it, `search`, `strategies`, perhaps `settle`."""
