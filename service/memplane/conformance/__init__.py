"""The public test suite for store plugins (needs pytest and pytest-asyncio).

Subclass `StoreConformance` in a test module and give it a started backend; that is all:

    import pytest
    from memplane.conformance import StoreConformance

    class TestMyStore(StoreConformance):
        @pytest.fixture
        async def backend(self):
            backend = MyBackend(...)
            await backend.start()
            yield backend
            await backend.close()

(With pytest-asyncio in strict mode the fixture is a `pytest_asyncio.fixture`, and the class needs
`pytestmark = pytest.mark.asyncio`.) Every test works in a scope of its own, so all may share one backend. What
`backend.capabilities` promises is checked; what it does not promise must be refused, never ignored.
`PlatformConformance` adds what this project's own stores promise beyond the contract: reserved metadata fields,
expiry, relations and limits. `SearchConformance` is for a search plugin: override the fixture `search`, the fixture
`strategies` with what it can do, and `settle` when searches see writes only after a while; `backend` is then the store
beside it.
"""

import pytest

# The modules hold tests, yet no test runner finds them by name: without this, failures would show no values.
pytest.register_assert_rewrite(
    "memplane.conformance.base",
    "memplane.conformance.changes",
    "memplane.conformance.concurrency",
    "memplane.conformance.flow",
    "memplane.conformance.pages",
    "memplane.conformance.platform",
    "memplane.conformance.queries",
    "memplane.conformance.records",
    "memplane.conformance.scopes",
    "memplane.conformance.searches",
)

from memplane.conformance.platform import PlatformConformance  # noqa: E402
from memplane.conformance.suite import SearchConformance, StoreConformance  # noqa: E402

__all__ = ["PlatformConformance", "SearchConformance", "StoreConformance"]
