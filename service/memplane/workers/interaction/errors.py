"""What INTERACTION raises. A tool's own failure is a result, not an error.

MemplaneError
└── InteractionError    the call, the tool or its result breaks the contract (also a ValueError)
"""

from __future__ import annotations

from memplane.errors import MemplaneError


class InteractionError(MemplaneError, ValueError):
    """The call, the tool or its result breaks the contract."""
