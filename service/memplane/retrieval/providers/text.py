"""`TextRetrievalProvider`: the backend searches by words, so the query must have some (case R-29)."""

from __future__ import annotations

from memplane.retrieval.documents import RetrievalContext, RetrievalOutput, RetrievalProvider, RetrievalRequest
from memplane.retrieval.errors import invalid_input


class TextRetrievalProvider:
    """Raises RETRIEVAL_INVALID_INPUT for a query content that is no string, or a blank one."""

    def __init__(self, *, backend: RetrievalProvider) -> None:
        self._backend = backend

    async def search(self, request: RetrievalRequest, context: RetrievalContext) -> RetrievalOutput:
        content = request["query"]["content"]
        if not isinstance(content, str) or not content.strip():
            raise invalid_input("A text search needs a nonempty string as query.content")
        return await self._backend.search(request, context)
