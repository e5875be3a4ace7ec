"""`VectorRetrievalProvider`: the backend searches by a vector, whatever the query's content is (case R-28)."""

from __future__ import annotations

from memplane.contracts import EmbeddingProvider
from memplane.retrieval.documents import RetrievalContext, RetrievalOutput, RetrievalProvider, RetrievalRequest
from memplane.retrieval.embedding import check_vector, is_vector
from memplane.retrieval.errors import invalid_input
from memplane.retrieval.query_vector import query_vector


class VectorRetrievalProvider:
    """Replaces the query's content by its vector; its metadata stays.

    embedding: makes the vector of any content that is no list of numbers. native: the backend embeds by itself, content
    is passed on. Without either only vectors can be searched with. dimensions: length of every vector; by default the
    embedding's, then the runtime's `embedding.dimensions`. Raises RETRIEVAL_INVALID_INPUT when both are configured.
    """

    def __init__(
        self,
        *,
        backend: RetrievalProvider,
        embedding: EmbeddingProvider | None = None,
        native: bool = False,
        dimensions: int | None = None,
    ) -> None:
        if embedding is not None and native:
            raise invalid_input("Give a vector provider an embedding or native, not both")
        self._backend = backend
        self._embedding = embedding
        self._native = native
        self._dimensions = dimensions if dimensions is not None else getattr(embedding, "dimensions", None)

    async def search(self, request: RetrievalRequest, context: RetrievalContext) -> RetrievalOutput:
        content = request["query"]["content"]
        dimensions = self._dimensions if self._dimensions is not None else context.defaults.dimensions
        if self._native:
            if is_vector(content):
                check_vector(content, dimensions)
            return await self._backend.search(request, context)
        vector = await query_vector(content, embedding=self._embedding, dimensions=dimensions, signal=context.signal)
        query = request["query"].copy()
        query["content"] = vector
        changed = request.copy()
        changed["query"] = query
        return await self._backend.search(changed, context)
