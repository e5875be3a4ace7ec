"""What RETRIEVAL raises and reports.

    MemplaneError
    └── RetrievalError       code, message; both are public

The class lives in `memplane.errors`, so that the layers below (projections, for one) can tell it apart. Here are its
codes and the sentences that more than one place says.
"""

from __future__ import annotations

from memplane.errors import RetrievalError

INVALID_INPUT = "RETRIEVAL_INVALID_INPUT"
INVALID_BACKEND_OUTPUT = "RETRIEVAL_INVALID_BACKEND_OUTPUT"
INVALID_EMBEDDING = "RETRIEVAL_INVALID_EMBEDDING"
BACKEND_ERROR = "RETRIEVAL_BACKEND_ERROR"
PROVIDER_UNAVAILABLE = "RETRIEVAL_PROVIDER_UNAVAILABLE"
PERMISSION_DENIED = "RETRIEVAL_PERMISSION_DENIED"
STRATEGY_UNSUPPORTED = "RETRIEVAL_STRATEGY_UNSUPPORTED"
TARGET_NOT_FOUND = "RETRIEVAL_TARGET_NOT_FOUND"
TIMEOUT = "RETRIEVAL_TIMEOUT"
CANCELLED = "RETRIEVAL_CANCELLED"


def invalid_input(message: str) -> RetrievalError:
    return RetrievalError(INVALID_INPUT, message)


def invalid_output(message: str = "Retrieval backend returned an invalid result") -> RetrievalError:
    return RetrievalError(INVALID_BACKEND_OUTPUT, message)


def invalid_embedding(message: str) -> RetrievalError:
    return RetrievalError(INVALID_EMBEDDING, message)


def require_integer(name: str, value: object, low: int, high: int) -> int:
    """`value` as an integer of low..high, or RETRIEVAL_INVALID_INPUT. A boolean is none; 5.0 is 5, as in JSON."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise invalid_input(f"{name} must be an integer in {low}..{high}")
    return value
