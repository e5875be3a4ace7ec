"""The reference service's ledger: stock, reservations, shipments, and one row per operation key.

What makes recovery possible is here: a key is claimed once, an operation runs in one transaction with its outcome, and
whoever asks again sees that outcome. Source: behaviours F-02 … F-13.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memplane.recovery.documents import Kind, fingerprint, normalised_order
from memplane.recovery.errors import RecoveryError

_SCHEMA = """
CREATE TABLE IF NOT EXISTS inventory (sku TEXT PRIMARY KEY, quantity INTEGER NOT NULL CHECK (quantity >= 0));
CREATE TABLE IF NOT EXISTS operations (
    key TEXT PRIMARY KEY, kind TEXT NOT NULL, fingerprint TEXT NOT NULL, state TEXT NOT NULL, result TEXT, code TEXT
);
CREATE TABLE IF NOT EXISTS reservations (
    key TEXT PRIMARY KEY, sku TEXT NOT NULL, quantity INTEGER NOT NULL, address TEXT NOT NULL, status TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS shipments (key TEXT PRIMARY KEY, reservation TEXT NOT NULL UNIQUE, document TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS requests (
    number INTEGER PRIMARY KEY AUTOINCREMENT, method TEXT NOT NULL, path TEXT NOT NULL
);
"""


@dataclass(frozen=True, slots=True)
class Operation:
    """One row of the ledger. `result` for committed ones, `code` for rejected ones."""

    state: str
    fingerprint: str = ""
    result: Mapping[str, Any] | None = None
    code: str | None = None

    def as_wire(self) -> dict[str, Any]:
        wire: dict[str, Any] = {"state": self.state}
        for name in ("fingerprint", "result", "code"):
            value = getattr(self, name)
            if value:
                wire[name] = value
        return wire


class Rejected(Exception):  # noqa: N818 - an outcome of an operation, not a fault
    """The operation was not done, for a business reason."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class KeyConflict(Exception):  # noqa: N818 - names the state
    """The key belongs to another operation."""


class LedgerClosed(Exception):  # noqa: N818 - names the state
    """The ledger was closed; nothing was read or written."""


class Ledger:
    """One SQLite file; threads share one connection under a lock, every write is one transaction."""

    def __init__(self, path: Path, stock: Sequence[Mapping[str, Any]]) -> None:
        self._lock = threading.Lock()
        self._closed = False
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.executescript(_SCHEMA)
        for entry in stock:
            self._connection.execute("INSERT OR IGNORE INTO inventory VALUES (?, ?)", (entry["sku"], entry["quantity"]))

    def close(self) -> None:
        """Every later call raises `LedgerClosed`. Idempotent."""
        with self._lock:
            self._closed = True
            self._connection.close()

    @contextlib.contextmanager
    def _open(self) -> Iterator[None]:
        with self._lock:
            if self._closed:
                raise LedgerClosed
            yield

    def log(self, method: str, path: str) -> None:
        """Note a request, whatever becomes of it."""
        with self._open():
            self._connection.execute("INSERT INTO requests (method, path) VALUES (?, ?)", (method, path))

    def writes(self, path: str) -> int:
        """How many POSTs to a path were noted."""
        with self._open():
            found = self._connection.execute(
                "SELECT count(*) FROM requests WHERE method = 'POST' AND path = ?", (path,)
            ).fetchone()
        return int(found[0])

    def available(self, sku: str) -> int | None:
        """Stock of an article; None for an unknown one."""
        with self._open():
            found = self._connection.execute("SELECT quantity FROM inventory WHERE sku = ?", (sku,)).fetchone()
        return None if found is None else int(found[0])

    def operations_exist(self) -> bool:
        with self._open():
            return self._connection.execute("SELECT 1 FROM operations LIMIT 1").fetchone() is not None

    def operation(self, key: str) -> Operation:
        """The operation of a key; state `absent` when there is none."""
        with self._open():
            return self._find(key) or Operation("absent")

    def claim(self, key: str, kind: Kind, order: Mapping[str, Any], reservation: str) -> tuple[Operation, bool]:
        """Register a key as pending. Returns the operation and whether it is new. Raises `KeyConflict`."""
        print_ = fingerprint({"kind": kind, "order": normalised_order(order), "reservationKey": reservation})
        with self._open():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                found = self._find(key)
                if found is None:
                    self._connection.execute(
                        "INSERT INTO operations (key, kind, fingerprint, state) VALUES (?, ?, ?, 'pending')",
                        (key, kind, print_),
                    )
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")
        if found is not None and found.fingerprint != print_:
            raise KeyConflict
        return found or Operation("pending", print_), found is None

    def execute(
        self, key: str, kind: Kind, order: Mapping[str, Any], reservation: str, *, reject: str | None = None
    ) -> Operation:
        """Do a claimed operation and note its outcome in one transaction. `reject`: a fault's code."""
        with self._open():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                outcome: tuple[str, str | None, str | None]
                try:
                    result = self._do(key, kind, order, reservation, reject)
                    outcome = ("committed", json.dumps(result), None)
                except Rejected as rejected:
                    outcome = ("rejected", None, rejected.code)
                self._connection.execute(
                    "UPDATE operations SET state = ?, result = ?, code = ? WHERE key = ?", (*outcome, key)
                )
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")
            found = self._find(key)
        if found is None:
            raise RecoveryError("The operation was not claimed")
        return found

    def _find(self, key: str) -> Operation | None:
        row = self._connection.execute(
            "SELECT state, fingerprint, result, code FROM operations WHERE key = ?", (key,)
        ).fetchone()
        if row is None:
            return None
        return Operation(row[0], row[1], json.loads(row[2]) if row[2] else None, row[3])

    def _do(
        self, key: str, kind: Kind, order: Mapping[str, Any], reservation: str, reject: str | None
    ) -> dict[str, Any]:
        if kind == "reserve":
            return self._reserve(key, order)
        row = self._connection.execute(
            "SELECT sku, quantity, status FROM reservations WHERE key = ?", (reservation,)
        ).fetchone()
        if row is None or (row[0], row[1]) != (order["sku"], order["quantity"]):
            raise Rejected("RESERVATION_MISMATCH")
        if reject is not None:
            raise Rejected(reject)
        shipped = self._connection.execute("SELECT 1 FROM shipments WHERE reservation = ?", (reservation,)).fetchone()
        if kind == "ship":
            return self._ship(key, order, reservation, status=row[2], shipped=shipped is not None)
        return self._release(order, reservation, status=row[2], shipped=shipped is not None)

    def _reserve(self, key: str, order: Mapping[str, Any]) -> dict[str, Any]:
        changed = self._connection.execute(
            "UPDATE inventory SET quantity = quantity - ?1 WHERE sku = ?2 AND quantity >= ?1",
            (order["quantity"], order["sku"]),
        )
        if changed.rowcount != 1:
            raise Rejected("INSUFFICIENT_STOCK")
        self._connection.execute(
            "INSERT INTO reservations VALUES (?, ?, ?, ?, 'active')",
            (key, order["sku"], order["quantity"], order["address"]),
        )
        return {"reservationKey": key, **normalised_order(order)}

    def _ship(
        self, key: str, order: Mapping[str, Any], reservation: str, *, status: str, shipped: bool
    ) -> dict[str, Any]:
        if status == "released":
            raise Rejected("RESERVATION_INACTIVE")
        if shipped:
            raise Rejected("ALREADY_SHIPPED")
        receipt = {"shipmentKey": key, "reservationKey": reservation, **normalised_order(order)}
        self._connection.execute("INSERT INTO shipments VALUES (?, ?, ?)", (key, reservation, json.dumps(receipt)))
        return receipt

    def _release(self, order: Mapping[str, Any], reservation: str, *, status: str, shipped: bool) -> dict[str, Any]:
        if shipped:
            raise Rejected("ALREADY_SHIPPED")
        if status != "released":
            self._connection.execute(
                "UPDATE inventory SET quantity = quantity + ? WHERE sku = ?", (order["quantity"], order["sku"])
            )
            self._connection.execute("UPDATE reservations SET status = 'released' WHERE key = ?", (reservation,))
        return {"reservationKey": reservation, "status": "released", **normalised_order(order)}
