"""RETRIEVAL: search in named targets, and the pieces to build such a search from.

Pieces: embedding in batches, query vectors, weighted rank fusion, reranking. On top of them providers, a registry of
targets, the SDK (`create_retrieval`), the worker, and bridges between MEMORY and RETRIEVAL in both directions. Only the
worker needs the runtime; it is imported on first use.
"""

from typing import TYPE_CHECKING, Any

from memplane.errors import RetrievalError
from memplane.retrieval.bridges.candidates import map_memory_candidates
from memplane.retrieval.bridges.memory_search import create_retrieval_memory_search_provider
from memplane.retrieval.bridges.memory_target import create_memory_retrieval_provider
from memplane.retrieval.bridges.remote import RemoteRetrievalSearchProvider
from memplane.retrieval.defaults import RetrievalDefaults
from memplane.retrieval.documents import (
    Candidate,
    Resolution,
    RetrievalContext,
    RetrievalOutput,
    RetrievalProvider,
    RetrievalRequest,
    RetrievalTarget,
)
from memplane.retrieval.embedding import embed_contents
from memplane.retrieval.fusion import weighted_rrf
from memplane.retrieval.providers.hybrid import Branch, HybridRetrievalProvider
from memplane.retrieval.providers.rerank import CosineReranker, Reranker, RerankingProvider
from memplane.retrieval.providers.text import TextRetrievalProvider
from memplane.retrieval.providers.vector import VectorRetrievalProvider
from memplane.retrieval.query_vector import query_vector
from memplane.retrieval.registry import RetrievalTargetRegistry
from memplane.retrieval.retrieval import Retrieval, create_retrieval

if TYPE_CHECKING:
    from memplane.retrieval.worker import create_retrieval_worker, retrieval_search_node

__all__ = [
    "Branch",
    "Candidate",
    "CosineReranker",
    "HybridRetrievalProvider",
    "RemoteRetrievalSearchProvider",
    "Reranker",
    "RerankingProvider",
    "Resolution",
    "Retrieval",
    "RetrievalContext",
    "RetrievalDefaults",
    "RetrievalError",
    "RetrievalOutput",
    "RetrievalProvider",
    "RetrievalRequest",
    "RetrievalTarget",
    "RetrievalTargetRegistry",
    "TextRetrievalProvider",
    "VectorRetrievalProvider",
    "create_memory_retrieval_provider",
    "create_retrieval",
    "create_retrieval_memory_search_provider",
    "create_retrieval_worker",
    "embed_contents",
    "map_memory_candidates",
    "query_vector",
    "retrieval_search_node",
    "weighted_rrf",
]


def __getattr__(name: str) -> Any:
    if name not in ("create_retrieval_worker", "retrieval_search_node"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from memplane.retrieval import worker

    return getattr(worker, name)
