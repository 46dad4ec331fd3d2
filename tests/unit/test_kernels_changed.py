import pytest

from gdsckpt.errors import ConfigError
from gdsckpt.kernels import differing


def test_differing_gives_indices_in_order():
    assert differing([1, 2, 3, 4], [1, 0, 3, 5]) == [1, 3]


def test_differing_of_equal_lists_is_empty():
    assert differing([7], [7]) == []
    assert differing([], []) == []


def test_differing_of_unequal_lengths_raises():
    with pytest.raises(ConfigError, match="2 chunks now and 1 earlier") as caught:
        differing([1, 2], [1])
    assert caught.value.field == "earlier_crcs"
