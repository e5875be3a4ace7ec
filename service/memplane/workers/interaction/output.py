"""INTERACTION.OUTPUT: hand a final message to the application's sink. Source: behaviours T-06."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from memplane.contracts import CallOptions
from memplane.workers.interaction.errors import InteractionError


class OutputSink(Protocol):
    """Delivers `{deliveryId, message, artifacts?}` and returns a receipt `{deliveryId, status, artifacts?}`."""

    async def deliver(self, input: Mapping[str, Any], options: CallOptions) -> Mapping[str, Any]: ...  # noqa: A002


async def deliver(sink: OutputSink, input: Any, options: CallOptions) -> Mapping[str, Any]:  # noqa: A002
    """The sink's receipt, for the same delivery. Raises `InteractionError`, and what the sink raises."""
    if not isinstance(input, Mapping) or not isinstance(input.get("message"), Mapping):
        raise InteractionError("message must be an object")
    delivery = input.get("deliveryId")
    if not isinstance(delivery, str) or not delivery.strip():
        raise InteractionError("deliveryId must be a nonblank string")
    receipt = await sink.deliver(input, options)
    if not isinstance(receipt, Mapping) or receipt.get("deliveryId") != delivery:
        raise InteractionError("Output sink returned a receipt of another delivery")
    return receipt
