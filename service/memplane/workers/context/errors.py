"""What CONTEXT raises. Source: behaviours 5.1.

MemplaneError
└── ContextError    `code`: INVALID_INPUT, UNKNOWN_NODE, INLINE_LIMIT_EXCEEDED, ITEM_LIMIT_EXCEEDED, DUPLICATE_ITEM,
                    MISSING_ITEM, STRATEGY_UNAVAILABLE, BUDGET_UNSATISFIABLE, RESOLVER_UNAVAILABLE,
                    STATE_STORE_UNAVAILABLE, CONTEXT_NOT_FOUND, STATE_CONFLICT, INVALID_STATE, QUEUE_FULL
"""

from __future__ import annotations

from memplane.errors import MemplaneError


class ContextError(MemplaneError):
    """A CONTEXT operation failed. `code` is machine readable, `message` safe to show."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def invalid(message: str) -> ContextError:
    """An input that breaks the contract."""
    return ContextError("INVALID_INPUT", message)
