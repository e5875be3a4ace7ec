"""JSON values that try the limits of jsonb."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
numbers = (
    st.integers()
    | st.integers(-(10**400), 10**400)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(
        [1e16, -1e16, 1e22, 1.5e300, -0.0, 5e-324, 1e-7, 2.0**53, 2.0**53 - 1, 1e15, 123456789012345680.0]
    )
)
scalars = st.none() | st.booleans() | numbers | text
values: SearchStrategy[Any] = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4), max_leaves=12
)
objects = st.dictionaries(text, values, max_size=5)
