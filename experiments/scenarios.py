"""The experiments as data: what happens to a task, and what both databases must hold in the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

RESERVE_SENT, SHIP_SENT = "recovery_operation.reserve.submit:after", "recovery_operation.ship.submit:after"


@dataclass(frozen=True)
class Step:
    """One process. It must be killed (`kill`, `kill_when`), raise (`raises`), or end at `stage`."""

    entry: str
    stage: str | None = None
    kill: str | None = None
    """a point of memplane.recovery.probes, where the process sends itself SIGKILL"""
    kill_when: str | None = None
    """SIGKILL from outside as soon as the service has received this POST"""
    raises: str | None = None
    """part of the error's message"""
    input: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    faults: Mapping[str, Any] | None = None
    """the service is started anew with these; None: it goes on"""
    model: str | None = None
    """the model's behaviour from here on: "faithful", "down", "forged" or "cut" """
    before: str | None = None
    """done by hand before: "change-source", "remove-source", "change-order", "stop-service", "wait-committed" """


@dataclass(frozen=True)
class Experiment:
    """Steps on one task, and the end: calls of the model, reservations and shipments ever made, stock left."""

    name: str
    steps: Sequence[Step]
    model_calls: int = 1
    reservations: int = 1
    shipments: int = 1
    stock: int = 18
    error: str | None = None
    approval: bool = False
    initial_stock: int = 20


NOTHING = {"reservations": 0, "shipments": 0, "stock": 20}
APPROVE = {"decision": "approve", "actor": "ann"}
REJECT = {"decision": "reject", "actor": "ann"}
FORGED_ORDER = "change-order"

EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        "retry: killed between two reads",
        [Step("run_retry", kill="recovery_source:after"), Step("run_retry", "completed")],
    ),
    Experiment(
        "retry: the source changed",
        [Step("run_retry", "failed", before="change-source")],
        model_calls=0,
        error="SOURCE_CHANGED",
        **NOTHING,
    ),
    Experiment(
        "retry: the source is gone, killed while failing",
        [Step("run_retry", kill="failed:during", before="remove-source"), Step("run_retry", "failed")],
        model_calls=0,
        error="SOURCE_NOT_FOUND",
        **NOTHING,
    ),
    Experiment(
        "fallback: killed when the backup had answered",
        [
            Step("run_fallback", kill="catalog:during", faults={"primary_unavailable": True}),
            Step("run_fallback", "completed"),
        ],
    ),
    Experiment(
        "fallback: only a source that is down is allowed",
        [
            Step(
                "run_fallback",
                "failed",
                faults={"primary_unavailable": True},
                input={"allowedSources": ["primary"]},
            )
        ],
        error="UNAVAILABLE",
        **NOTHING,
    ),
    Experiment(
        "fallback: too little stock, killed before the report",
        [Step("run_fallback", kill="recovery_report:during"), Step("run_fallback", "failed")],
        error="INSUFFICIENT_STOCK",
        reservations=0,
        shipments=0,
        stock=1,
        initial_stock=1,
    ),
    Experiment(
        "timeout: killed while saving it, in time later",
        [
            Step("run_timeout", kill="timed-out:during", faults={"catalog_delay_ms": 1500}, input={"timeoutMs": 30}),
            Step("run_timeout", "timed-out", input={"timeoutMs": 30}),
            Step("run_timeout", "completed", faults={}, input={"timeoutMs": 60_000}),
        ],
    ),
    Experiment(
        "checkpoint: killed before the order was saved",
        [Step("run_checkpoint", kill="prepared:during"), Step("run_checkpoint", "completed")],
        model_calls=2,
    ),
    Experiment(
        "checkpoint: killed before the reservation was sent",
        [
            Step("run_checkpoint", kill="recovery_operation.reserve.submit:noted"),
            Step("run_checkpoint", "completed"),
        ],
    ),
    Experiment(
        "checkpoint: killed while the reservation was under way",
        [
            Step("run_checkpoint", kill_when="/reserve", faults={"reservation_delay_ms": 4000}),
            Step("run_checkpoint", "uncertain"),
            Step("run_checkpoint", "completed", before="wait-committed"),
        ],
    ),
    Experiment(
        "checkpoint: killed when the reservation was answered",
        [Step("run_checkpoint", kill=RESERVE_SENT), Step("run_checkpoint", "completed")],
    ),
    Experiment(
        "checkpoint: killed while saving the reservation",
        [Step("run_checkpoint", kill="checkpoint-reserve:during"), Step("run_checkpoint", "completed")],
    ),
    Experiment(
        "checkpoint: stopped at reserved, killed when shipped",
        [
            Step("run_checkpoint", "reserved", options={"stop_after": "reserved"}),
            Step("run_checkpoint", kill=SHIP_SENT),
            Step("run_checkpoint", "completed"),
        ],
    ),
    Experiment(
        "checkpoint: killed while saving the shipment",
        [Step("run_checkpoint", kill="checkpoint-ship:during"), Step("run_checkpoint", "completed")],
    ),
    Experiment(
        "checkpoint: killed before the result file was renamed",
        [Step("run_checkpoint", kill="recovery_report:during"), Step("run_checkpoint", "completed")],
    ),
    Experiment(
        "checkpoint: killed four times",
        [
            Step("run_checkpoint", kill="recovery_source:before"),
            Step("run_checkpoint", kill=RESERVE_SENT),
            Step("run_checkpoint", kill="recovery_operation.ship.submit:before"),
            Step("run_checkpoint", kill=SHIP_SENT),
            Step("run_checkpoint", "completed"),
        ],
    ),
    Experiment(
        "checkpoint: the model fails, then works",
        [
            Step("run_checkpoint", raises="no finished answer", model="down"),
            Step("run_checkpoint", raises="no finished answer", model="cut"),
            Step("run_checkpoint", raises="Invalid order", model="forged"),
            Step("run_checkpoint", "completed", model="faithful"),
        ],
        model_calls=4,
    ),
    Experiment(
        "pause: killed while pausing and while reserving, approved",
        [
            Step("run_pause", kill="paused:during"),
            Step("run_pause", "paused"),
            Step("decide", kill="decided:during", options=APPROVE),
            Step("resume_paused", "paused"),
            Step("decide", "approved", options=APPROVE),
            Step("resume_paused", kill=RESERVE_SENT),
            Step("resume_paused", "completed"),
        ],
        approval=True,
    ),
    Experiment(
        "pause: rejected",
        [
            Step("run_pause", "paused"),
            Step("decide", "rejected", options=REJECT),
            Step("resume_paused", kill="recovery_report:before"),
            Step("resume_paused", "rejected"),
        ],
        approval=True,
        **NOTHING,
    ),
    Experiment(
        "pause: the order was changed after its approval",
        [
            Step("run_pause", "paused"),
            Step("decide", "approved", options=APPROVE),
            Step("resume_paused", raises="not authorized", before=FORGED_ORDER),
        ],
        approval=True,
        **NOTHING,
    ),
    Experiment(
        "session: killed while saving the answer",
        [
            Step("run_checkpoint", "reserved", options={"stop_after": "reserved"}),
            Step("run_session", kill="context:during"),
            Step("run_session", "reserved"),
        ],
        model_calls=3,
        shipments=0,
    ),
    Experiment(
        "session: a forged answer is refused, then killed, completed",
        [
            Step("run_checkpoint", "reserved", options={"stop_after": "reserved"}),
            Step("run_session", raises="does not fit", model="forged"),
            Step("run_checkpoint", kill="recovery_operation.ship.lookup:after"),
            Step("run_checkpoint", "completed"),
        ],
        model_calls=2,
    ),
    Experiment(
        "compensation: killed when the shipment was refused",
        [
            Step("run_compensation", kill=SHIP_SENT, faults={"reject_shipping": True}),
            Step("run_compensation", "compensated"),
        ],
        shipments=0,
        stock=20,
        error="ADDRESS_REJECTED",
    ),
    Experiment(
        "compensation: killed when released",
        [
            Step(
                "run_compensation",
                kill="recovery_operation.release.submit:after",
                faults={"reject_shipping": True},
            ),
            Step("run_compensation", "compensated"),
            Step("run_compensation", "compensated"),
        ],
        shipments=0,
        stock=20,
        error="ADDRESS_REJECTED",
    ),
    Experiment(
        "compensation: the release is refused too",
        [
            Step(
                "run_compensation",
                kill="recovery_operation.release.submit:after",
                faults={"reject_shipping": True, "reject_release": True},
            ),
            Step("run_compensation", "needs-review"),
            Step("run_compensation", "needs-review"),
        ],
        shipments=0,
        error="COMPENSATION_RELEASE_REJECTED",
    ),
    Experiment(
        "check: the answer is lost, killed before asking again",
        [
            Step("run_side_effect_check", kill=RESERVE_SENT, faults={"drop_reservation_response": True}),
            Step("run_side_effect_check", "completed"),
        ],
    ),
    Experiment(
        "check: nobody tells, killed while saving that, told later",
        [
            Step(
                "run_side_effect_check",
                kill="uncertain:during",
                faults={"drop_reservation_response": True, "lookup_unavailable_after_write": True},
            ),
            Step("run_side_effect_check", "uncertain"),
            Step("run_side_effect_check", "completed", faults={}),
        ],
    ),
    Experiment(
        "check: lookups down from the start: nothing is sent",
        [
            Step("run_side_effect_check", kill="uncertain:during", faults={"lookup_unavailable": True}),
            Step("run_side_effect_check", "uncertain"),
        ],
        error="OUTCOME_UNKNOWN",
        **NOTHING,
    ),
    Experiment(
        "check: the service is gone, then back",
        [
            Step("run_side_effect_check", "uncertain", before="stop-service"),
            Step("run_side_effect_check", kill=SHIP_SENT, faults={}),
            Step("run_side_effect_check", "completed"),
        ],
    ),
)
