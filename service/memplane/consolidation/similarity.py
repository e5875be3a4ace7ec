"""Near duplicates by the cosine of stored embeddings: every pair of a window, in blocks of bounded memory. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final

BLOCK: Final = 256
"""Rows compared with all others at a time: with 20,000 memories a block of answers takes 20 MB."""


def stars(
    vectors: Sequence[array[float]], classes: Sequence[int], keyed: Sequence[bool], *, threshold: float
) -> list[tuple[int, list[int]]]:
    """Groups of near duplicates, as (centre, members) of positions.

    The positions are in order of preference, keyed ones first: each one that belongs to no group yet becomes a centre,
    and takes those after it that have its class, no key of their own against its key, and a cosine of at least
    `threshold` to it. A member is near to its centre itself, never only to another member, so groups do not creep.
    """
    import numpy as np

    count = len(vectors)
    if count < 2:
        return []
    matrix = np.array([np.frombuffer(vector, dtype=np.float32) for vector in vectors])
    norms = np.linalg.norm(matrix, axis=1, keepdims=True)
    # A vector of zeros has no direction: it is near to nothing.
    matrix = matrix / np.where(norms > 0, norms, 1)
    kinds, with_key = np.array(classes), np.array(keyed, dtype=bool)
    free = np.ones(count, dtype=bool)
    found: list[tuple[int, list[int]]] = []
    for start in range(0, count, BLOCK):
        # Rounding may take the cosine of two equal vectors just below one.
        near = matrix[start : start + BLOCK] @ matrix.T >= threshold - 1e-6
        for offset in range(near.shape[0]):
            centre = start + offset
            if not free[centre]:
                continue
            free[centre] = False
            mine = near[offset] & free & (kinds == kinds[centre])
            if with_key[centre]:
                mine &= ~with_key
            # The positions before the centre that are free do not exist: each was a centre or a member in its turn.
            members = np.flatnonzero(mine).tolist()
            if members:
                free[members] = False
                found.append((centre, members))
    return found
