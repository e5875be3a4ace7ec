"""Fingerprints and the document's rules (behaviours 6.1, J-*)."""

from __future__ import annotations

from typing import Any

import pytest

from memplane.recovery.documents import (
    fingerprint,
    moved,
    new_job,
    normalised_order,
    operation_fingerprint,
    operation_key,
    settled,
    task_id,
)
from memplane.recovery.errors import RecoveryError
from tests.recovery.world import ID, ORDER, TEXT


def test_v01_the_source_hash_covers_the_json_quoted_text() -> None:
    assert len(TEXT) == 77
    assert fingerprint(TEXT) == "8c3afb697dd04879fee19729007dc52a83b9fb80d6a6c132982fd812f5c17076"


def test_v02_the_normalised_order_has_its_three_fields_in_order() -> None:
    order = normalised_order({"address": "Dock-North", "extra": 1, "quantity": 2, "sku": "SKU-731"})
    assert list(order) == ["sku", "quantity", "address"]
    assert fingerprint(order) == "f795714bce150f6cd0fd11d4aa1214426980a53e80a9805232552baacac38041"


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("reserve", "c3df4903d188722c2f12679acb18baafb61b61145f09e4fbdec008dbd12ed1de"),
        ("ship", "c03f99454212d003dd117cc661df35b775705e632170dae73c723bf97eca9398"),
        ("release", "8a632d9a9d6147ee5958f168148f7e8305279b1070238f12908e6af68d435a9e"),
    ],
)
def test_v03_operation_fingerprints(kind: Any, expected: str) -> None:
    assert operation_fingerprint(ID, kind, ORDER) == expected


def test_v04_keys_and_identifiers() -> None:
    assert operation_key(ID, "ship") == "order-731-ship"
    assert task_id("a" * 64) == "a" * 64
    for bad in ("", "a" * 65, "a/b", "a b", None, 7, "ä"):
        with pytest.raises(RecoveryError):
            task_id(bad)


@pytest.mark.parametrize(
    "change",
    [
        {"quantity": 0},
        {"quantity": 101},
        {"quantity": True},
        {"quantity": "2"},
        {"quantity": 1.5},
        {"address": " "},
        {"address": "x" * 201},
        {"address": None},
        {"sku": "a b"},
        {"sku": ""},
        {"sku": "x" * 81},
    ],
)
def test_v04_invalid_orders(change: dict[str, Any]) -> None:
    with pytest.raises(RecoveryError, match="Invalid order"):
        normalised_order({**ORDER, **change})


def job(**changes: Any) -> dict[str, Any]:
    return {**new_job(ID, "h", requires_approval=False), "order": ORDER, **changes}


RESERVED = {"reservationKey": f"{ID}-reserve", **ORDER}


def committed(kind: Any, result: dict[str, Any]) -> dict[str, Any]:
    return {"state": "committed", "fingerprint": operation_fingerprint(ID, kind, ORDER), "result": result}


def test_j11_a_committed_reservation_becomes_a_checkpoint_and_is_a_no_op_at_the_end() -> None:
    operation = committed("reserve", RESERVED)
    after = settled(job(stage="uncertain", error="OUTCOME_UNKNOWN"), "reserve", operation)
    assert (after["stage"], after["error"], after["reservation"]) == ("reserved", None, RESERVED)
    assert settled(job(stage="completed"), "reserve", operation)["stage"] == "completed"


def test_j11_a_release_keeps_the_error_and_is_refused_once_shipped() -> None:
    operation = committed("release", {"reservationKey": f"{ID}-reserve", "status": "released"})
    after = settled(job(stage="needs-review", error="ADDRESS_REJECTED", reservation=RESERVED), "release", operation)
    assert (after["stage"], after["error"]) == ("compensated", "ADDRESS_REJECTED")
    with pytest.raises(RecoveryError, match="shipped"):
        settled(job(reservation=RESERVED, shipment={"x": 1}), "release", operation)


@pytest.mark.parametrize("state", ["pending", "absent", "rejected"])
def test_j11_only_a_committed_receipt_is_a_checkpoint(state: str) -> None:
    operation = {"state": state, "fingerprint": operation_fingerprint(ID, "reserve", ORDER), "code": "X"}
    with pytest.raises(RecoveryError, match="A committed remote receipt is required"):
        settled(job(stage="prepared"), "reserve", operation)


@pytest.mark.parametrize(
    ("kind", "result", "match"),
    [
        ("reserve", {**RESERVED, "quantity": 3}, "mismatch"),
        ("reserve", {**RESERVED, "reservationKey": "other"}, "mismatch"),
        ("ship", {**RESERVED, "shipmentKey": "other"}, "mismatch"),
        ("release", {"reservationKey": f"{ID}-reserve", "status": "active"}, "mismatch"),
    ],
)
def test_j10_forged_receipts_are_refused(kind: Any, result: dict[str, Any], match: str) -> None:
    with pytest.raises(RecoveryError, match=match):
        settled(job(stage="reserved", reservation=RESERVED), kind, committed(kind, result))


def test_j10_a_wrong_fingerprint_is_a_conflict() -> None:
    operation = {**committed("reserve", RESERVED), "fingerprint": "0" * 64}
    with pytest.raises(RecoveryError, match="Remote operation fingerprint conflict"):
        settled(job(stage="prepared"), "reserve", operation)


@pytest.mark.parametrize("stage", ["completed", "compensated", "rejected"])
def test_j12_terminal_tasks_do_not_move(stage: str) -> None:
    with pytest.raises(RecoveryError, match="Terminal task cannot transition"):
        moved(job(stage=stage), "failed", "X")


def test_j12_pausing_needs_a_prepared_task_with_approval() -> None:
    for wrong in (job(stage="prepared"), job(stage="reserved", requiresApproval=True)):
        with pytest.raises(RecoveryError, match="paused"):
            moved(wrong, "paused", None)
    assert moved(job(stage="prepared", requiresApproval=True), "paused", None)["stage"] == "paused"
    assert moved(job(stage="failed"), "uncertain", "X")["stage"] == "uncertain", "failed is not terminal here"
    with pytest.raises(RecoveryError):
        moved(job(), "completed", None)
