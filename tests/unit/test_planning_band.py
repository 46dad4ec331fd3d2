import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdsckpt.errors import ConfigError
from gdsckpt.planning.band import Band
from gdsckpt.units import format_duration

NUMBERS = st.floats(min_value=-1e12, max_value=1e12)
POSITIVE = st.floats(min_value=1e-6, max_value=1e12)


def bands(numbers=NUMBERS):
    return st.tuples(numbers, numbers, numbers).map(lambda three: Band(*sorted(three)))


def is_ordered(band):
    return band.low <= band.mid <= band.high


@pytest.mark.parametrize("three", [(2, 1, 3), (1, 3, 2), (1, 2, math.inf), (math.nan, 1, 2)])
def test_band_out_of_order_or_not_finite_is_refused(three):
    with pytest.raises(ConfigError) as info:
        Band(*three)
    assert info.value.field == "band"


def test_band_operations_give_what_is_known_by_hand():
    band = Band(1, 2, 4)
    assert band + Band(10, 20, 30) == Band(11, 22, 34)
    assert 1 + band == Band(2, 3, 5)
    assert band - Band(1, 1, 2) == Band(-1, 1, 3)
    assert 10 - band == Band(6, 8, 9)
    assert band * Band(-1, 0, 3) == Band(-4, 0, 12)
    assert 2 * band == Band(2, 4, 8)
    assert band / Band(2, 2, 4) == Band(0.25, 1, 2)
    assert 8 / band == Band(2, 4, 8)
    assert Band.around(100, 0.1) == Band(90, 100, 110)
    assert Band.total([]) == Band.exactly(0)
    assert Band.total([band, band]) == Band(2, 4, 8)
    assert band.at_least(3) == Band(3, 3, 4)
    assert band.at_most(3) == Band(1, 2, 3)
    assert band.map(lambda x: -x) == Band(-4, -2, -1)
    assert band.width == 3
    assert band.as_dict() == {"low": 1, "mid": 2, "high": 4}


@pytest.mark.parametrize("divisor", [0, Band(-1, 1, 2), Band(0, 1, 2)])
def test_band_division_by_what_may_be_zero_is_refused(divisor):
    with pytest.raises(ConfigError):
        Band(1, 2, 3) / divisor


@given(bands(), bands())
def test_band_sums_and_products_stay_in_order(first, second):
    assert all(map(is_ordered, (first + second, first - second, first * second)))


@given(bands(), bands(POSITIVE))
def test_band_quotients_stay_in_order(first, second):
    assert is_ordered(first / second)
    assert is_ordered(first.at_least(second))
    assert is_ordered(first.at_most(second))
    assert is_ordered(second.map(math.sqrt))


@given(bands(POSITIVE), bands(POSITIVE), st.floats(0, 1), st.floats(0, 1))
def test_band_product_contains_every_product_of_values_within(first, second, at, at_second):
    value = min(first.low + at * first.width, first.high)
    other = min(second.low + at_second * second.width, second.high)
    product = first * second
    assert product.low <= value * other <= product.high


def test_band_format_says_one_value_where_all_read_the_same():
    assert Band(41, 46, 52).format(format_duration) == "46 s (41 s to 52 s)"
    assert Band(46.01, 46.02, 46.03).format(format_duration) == "46.0 s"
    assert Band.exactly(46).format(format_duration) == "46 s"
