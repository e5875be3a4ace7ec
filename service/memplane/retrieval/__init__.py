"""RETRIEVAL: embedding batches, vector queries, rank fusion."""

from memplane.errors import RetrievalError
from memplane.retrieval.embedding import embed_contents
from memplane.retrieval.fusion import weighted_rrf
from memplane.retrieval.query_vector import query_vector

__all__ = ["RetrievalError", "embed_contents", "query_vector", "weighted_rrf"]
