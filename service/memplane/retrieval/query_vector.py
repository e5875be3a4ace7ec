"""From a query to the vector that is searched with (case R-28)."""

from __future__ import annotations

from collections.abc import Sequence

from memplane.contracts import JSON, EmbeddingProvider
from memplane.retrieval.embedding import check_vector, embed_contents, is_vector
from memplane.retrieval.errors import invalid_input
from memplane.signal import Signal


async def query_vector(
    content: JSON,
    *,
    embedding: EmbeddingProvider | None,
    dimensions: int | None = None,
    signal: Signal | None = None,
) -> Sequence[float]:
    """A list of numbers is the vector itself; anything else is embedded once, with purpose "query".

    `dimensions` defaults to the provider's. Raises RETRIEVAL_INVALID_EMBEDDING for a vector of another length, an empty
    or a non-finite one, RETRIEVAL_INVALID_INPUT when there is content to embed and nothing to embed it with.
    """
    expected = dimensions if dimensions is not None else getattr(embedding, "dimensions", None)
    if is_vector(content):
        check_vector(content, expected)
        return content  # type: ignore[no-any-return]
    if embedding is None:
        raise invalid_input("This query needs an embedding provider or a vector")
    [vector] = await embed_contents(embedding, [content], purpose="query", signal=signal)
    check_vector(vector, expected)
    return vector
