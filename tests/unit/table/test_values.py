"""What ``values`` promises: good numbers pass as they are, bad ones are named or become 0."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pserver.errors import NotFiniteError, ShapeError
from pserver.table.values import VALUE_MAX, check_values, mended_values

blocks = st.lists(st.floats(width=32), min_size=0, max_size=12).filter(lambda b: len(b) % 2 == 0)


@given(blocks)
def test_values_pass_or_are_mended_one_by_one(block: list[float]) -> None:
    """A value stays to the bit if a row could hold it, and is 0 if not; a good block is not copied."""
    values = np.array(block, np.float32)
    keys = np.arange(values.size // 2, dtype=np.uint64)
    is_good = np.isfinite(values) & (np.abs(values.astype(np.float64)) <= np.float32(VALUE_MAX))

    mended = mended_values("x", keys, values, dim=2)

    assert (mended is values) == is_good.all()
    assert mended[is_good].tobytes() == values[is_good].tobytes()
    assert not mended[~is_good].any()
    if is_good.all():
        check_values("x", keys, values, dim=2)
    else:
        first = int(np.flatnonzero(~is_good)[0])
        with pytest.raises(NotFiniteError, match=f"x: value {first % 2} of key {first // 2} is"):
            check_values("x", keys, values, dim=2)


@pytest.mark.parametrize("check", [check_values, mended_values])
def test_a_block_of_another_length_is_refused(check: object) -> None:
    """The error says how many values the keys need."""
    with pytest.raises(ShapeError, match="x: 2 keys of dim 3 need 6 float32, got 5"):
        check("x", np.zeros(2, np.uint64), np.zeros(5, np.float32), dim=3)  # type: ignore[operator] # either function
