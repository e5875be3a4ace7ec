"""The digest of what a target holds of one memory, recomputable from the target alone (design section 5).

Every projected object stores `projection_hash`. The worker computes it from the truth, the reconciler from the fields
that the target holds: a field edited by hand there no longer fits, even if the stored digest was left alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from memplane.contracts import JSON

# What a hand put into a target may be of a type that JSON lacks: it gets some digest, which fits nothing.
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True, default=repr).encode


def projection_hash(space: str, fields: Sequence[JSON]) -> str:
    """SHA-256, in hexadecimal, of the projected `fields` in their fixed order.

    `space` names what the fields alone do not say: the generation, and for vectors the model, revision and dimensions.
    Two fields of different JSON type (1 and 1.0, absent and empty) give different digests.
    """
    return hash_and_size(space, fields)[0]


def hash_and_size(space: str, fields: Sequence[JSON]) -> tuple[str, int]:
    """`projection_hash` and the length of what was hashed, which is about what the fields take on the wire (bytes)."""
    encoded = _encode([space, *fields]).encode()
    return hashlib.sha256(encoded).hexdigest(), len(encoded)
