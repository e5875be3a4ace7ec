"""The task document and its pure rules: orders, fingerprints, stages, approvals. Source: behaviours V-01 … V-04, J-*.

Fingerprints hash compact JSON in insertion order, not canonical JSON: they are exact bytes of the contract.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, Literal

from memplane.recovery.errors import RecoveryError

Job = dict[str, Any]
"""schemaVersion, id, revision, stage, sourceHash, order, context, reservation, shipment, approval, requiresApproval,
selectedSource, error."""

Kind = Literal["reserve", "ship", "release"]
KINDS: tuple[Kind, ...] = ("reserve", "ship", "release")
SCHEMA_VERSION = 1
MAX_SOURCE_BYTES = 65_536

TERMINAL = frozenset({"completed", "compensated", "rejected"})
SETTABLE = frozenset({"paused", "timed-out", "uncertain", "needs-review", "failed"})
_APPLICABLE: Mapping[str, frozenset[str]] = {
    "reserve": frozenset({"prepared", "approved", "uncertain", "timed-out"}),
    "ship": frozenset({"reserved", "uncertain", "needs-review"}),
    "release": frozenset({"reserved", "uncertain", "needs-review"}),
}
_IDENTIFIER = re.compile(r"[A-Za-z0-9_-]{1,80}")
_TASK_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


def fingerprint(value: Any) -> str:
    """SHA-256 (hex) of compact JSON: no spaces, UTF-8, insertion order."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def task_id(value: object) -> str:
    """A task's id: 1 to 64 letters, digits, `_`, `-`. Raises `RecoveryError`."""
    if not isinstance(value, str) or not _TASK_ID.fullmatch(value):
        raise RecoveryError("A task id is 1 to 64 letters, digits, underscores and hyphens")
    return value


def normalised_order(value: object) -> dict[str, Any]:
    """Exactly {sku, quantity, address}, in that order; further fields are dropped. Raises `RecoveryError`."""
    if not isinstance(value, Mapping):
        raise RecoveryError("Invalid order")
    sku, quantity, address = value.get("sku"), value.get("quantity"), value.get("address")
    if isinstance(quantity, float) and quantity.is_integer():
        quantity = int(quantity)
    valid = (
        isinstance(sku, str)
        and _IDENTIFIER.fullmatch(sku) is not None
        and isinstance(quantity, int)
        and not isinstance(quantity, bool)
        and 1 <= quantity <= 100
        and isinstance(address, str)
        and bool(address.strip())
        and len(address) <= 200
    )
    if not valid:
        raise RecoveryError("Invalid order")
    return {"sku": sku, "quantity": quantity, "address": address}


def operation_key(job_id: str, kind: Kind) -> str:
    """The stable key of an operation: `<id>-<kind>`."""
    return f"{job_id}-{kind}"


def operation_fingerprint(job_id: str, kind: Kind, order: Mapping[str, Any]) -> str:
    """What an operation is: its kind, its order and the key of its reservation."""
    return fingerprint(
        {"kind": kind, "order": normalised_order(order), "reservationKey": operation_key(job_id, "reserve")}
    )


def new_job(job_id: str, source_hash: str, *, requires_approval: bool) -> Job:
    """A queued task."""
    return {
        "schemaVersion": SCHEMA_VERSION,
        "id": job_id,
        "revision": 0,
        "stage": "queued",
        "sourceHash": source_hash,
        "order": None,
        "context": None,
        "reservation": None,
        "shipment": None,
        "approval": None,
        "requiresApproval": requires_approval,
        "selectedSource": None,
        "error": None,
    }


def checked_job(document: object, job_id: str) -> Job:
    """The stored document, if this release understands it. Raises `RecoveryError`."""
    if (
        not isinstance(document, dict)
        or document.get("schemaVersion") != SCHEMA_VERSION
        or document.get("id") != job_id
    ):
        raise RecoveryError("Unsupported checkpoint schema")
    return document


def approved(job: Job) -> bool:
    """Whether a person approved exactly the current order."""
    approval, order = job["approval"], job["order"]
    return (
        isinstance(approval, Mapping)
        and order is not None
        and approval.get("decision") == "approve"
        and approval.get("fingerprint") == fingerprint(normalised_order(order))
    )


def check_may_apply(job: Job, kind: Kind) -> None:
    """Whether an operation may be submitted now. Raises `RecoveryError`."""
    if job["order"] is None or (job["requiresApproval"] and not approved(job)):
        raise RecoveryError("Order execution is not authorized")
    if job["stage"] not in _APPLICABLE[kind]:
        raise RecoveryError(f"A task at stage {job['stage']} cannot {kind}")
    if kind != "reserve" and job["reservation"] is None:
        raise RecoveryError(f"A task without a reservation cannot {kind}")


# Changes: each takes the present document and returns the next one; the store adds revision and event.


def prepared(job: Job, order: object, context: Any, source_hash: object) -> Job:
    """queued → prepared, for the source that was read (J-06)."""
    if job["stage"] != "queued" or source_hash != job["sourceHash"]:
        raise RecoveryError("Preparation checkpoint conflict")
    return {**job, "stage": "prepared", "order": normalised_order(order), "context": context, "error": None}


def decided(job: Job, decision: object, actor: object) -> Job:
    """paused → approved or rejected, by an authenticated person (J-04)."""
    if decision not in ("approve", "reject") or not isinstance(actor, str) or not actor.strip():
        raise RecoveryError("A decision and authenticated actor are required")
    if job["stage"] != "paused":
        raise RecoveryError("Task is not awaiting a decision")
    approval = {"actor": actor, "decision": decision, "fingerprint": fingerprint(normalised_order(job["order"]))}
    return {**job, "stage": "approved" if decision == "approve" else "rejected", "approval": approval}


def settled(job: Job, kind: Kind, operation: Mapping[str, Any]) -> Job:
    """A committed receipt becomes a checkpoint (J-11)."""
    receipt = check_operation(job, kind, operation)
    if receipt["state"] != "committed":
        raise RecoveryError("A committed remote receipt is required")
    if kind == "reserve":
        if job["stage"] in ("completed", "compensated"):
            return dict(job)
        return {**job, "stage": "reserved", "reservation": receipt["result"], "error": None}
    if job["reservation"] is None:
        raise RecoveryError("A reservation checkpoint is required")
    if kind == "ship":
        if job["stage"] == "compensated":
            raise RecoveryError("A released order cannot be completed")
        return {**job, "stage": "completed", "shipment": receipt["result"], "error": None}
    if job["shipment"] is not None:
        raise RecoveryError("A shipped order cannot be released")
    return {**job, "stage": "compensated"}


def moved(job: Job, stage: object, error: object) -> Job:
    """To a stage that a flow may set itself (J-12)."""
    if stage not in SETTABLE:
        raise RecoveryError("Unknown task stage")
    if error is not None and not isinstance(error, str):
        raise RecoveryError("A task error is a code")
    if job["stage"] in TERMINAL:
        raise RecoveryError("Terminal task cannot transition")
    if stage == "paused" and not (job["stage"] == "prepared" and job["requiresApproval"]):
        raise RecoveryError("Only a prepared task that requires approval can be paused")
    return {**job, "stage": stage, "error": error}


def answered(job: Job, context: Any, answer: object) -> Job:
    """A session's conversation, with an answer that fits the task exactly (V-25)."""
    order = job["order"]
    expected = None if order is None else {"sku": order["sku"], "quantity": order["quantity"], "stage": job["stage"]}
    if expected is None or answer != expected:
        raise RecoveryError("The answer does not fit the current order")
    return {**job, "context": context}


def check_operation(job: Job, kind: Kind, value: object) -> dict[str, Any]:
    """A remote operation as far as it fits this task (J-10). Raises `RecoveryError`."""
    if not isinstance(value, Mapping) or value.get("state") not in ("absent", "pending", "committed", "rejected"):
        raise RecoveryError("Invalid remote operation")
    if value["state"] == "absent":
        return {"state": "absent"}
    order = job["order"]
    if order is None or value.get("fingerprint") != operation_fingerprint(job["id"], kind, order):
        raise RecoveryError("Remote operation fingerprint conflict")
    checked: dict[str, Any] = {"state": value["state"], "fingerprint": value["fingerprint"]}
    if value["state"] == "committed":
        checked["result"] = _receipt(job, kind, value.get("result"))
    if value["state"] == "rejected":
        code = value.get("code")
        if not isinstance(code, str) or not re.fullmatch(r"[A-Z][A-Z_]{0,63}", code):
            raise RecoveryError("Invalid remote operation")
        checked["code"] = code
    return checked


def _receipt(job: Job, kind: Kind, result: object) -> dict[str, Any]:
    order, key = job["order"], operation_key(job["id"], "reserve")
    if not isinstance(result, Mapping) or result.get("reservationKey") != key:
        raise RecoveryError("Remote receipt mismatch")
    if kind == "release":
        fits = result.get("status") == "released"
    else:
        fits = all(result.get(name) == order[name] for name in ("sku", "quantity", "address"))
        fits = fits and (kind == "reserve" or result.get("shipmentKey") == operation_key(job["id"], "ship"))
    if not fits:
        raise RecoveryError("Remote receipt mismatch")
    return dict(result)
