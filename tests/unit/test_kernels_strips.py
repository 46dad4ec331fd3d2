import zlib
from array import array

import numpy as np
import pytest

from gdsckpt.errors import ConfigError
from gdsckpt.kernels.strips import choose_strip_bytes, plan_strips

KIB = 1024
MIB = 1024 * KIB


def test_plan_of_pieces_has_offsets_from_an_aligned_base():
    plan = plan_strips([(0x1085, 7), (0x1000, 3)], 1, 128)
    assert plan.base == 0x1000
    assert plan.span_bytes == 0x8C
    assert plan.rows.tolist() == [[0x85, 7, 1], [0, 3, 2]]
    assert plan.num_strips == 2


def test_plan_counts_strips_from_the_line_that_a_piece_begins_in():
    whole = plan_strips([(0x1000, 512)], 1, 256)
    assert whole.rows[0, 2] == 2
    shifted = plan_strips([(0x1001, 512)], 1, 256)
    assert shifted.rows[0, 2] == 3


def test_plan_base_is_never_behind_the_lowest_piece():
    assert plan_strips([(0x10FF, 1)], 1, 128).base == 0x1080


def test_plan_of_empty_pieces_has_no_strips():
    plan = plan_strips([(0, 0), (0xFFFF_FFFF_FFFF_FFFF, 0)], 1)
    assert plan.num_strips == 0
    assert plan.empty_crcs.tolist() == [0, 0]


def test_plan_of_nothing_has_no_strips():
    assert plan_strips([], 1).num_strips == 0
    assert plan_strips(array("Q"), 1).num_strips == 0


def test_plan_ignores_the_address_of_an_empty_piece():
    plan = plan_strips([(0, 0), (0x2000, 4), (0, 0)], 1, 128)
    assert plan.base == 0x2000
    assert plan.rows.tolist() == [[0, 0, 0], [0, 4, 1], [0, 0, 1]]


def test_plan_takes_an_array_of_numbers_as_pairs():
    pairs = [(0x1000, 5), (0x3000, 6)]
    flat = array("Q", [number for pair in pairs for number in pair])
    assert np.array_equal(plan_strips(flat, 1).rows, plan_strips(pairs, 1).rows)


def test_plan_has_the_crcs_of_zeros():
    plan = plan_strips([(0x1000, 5), (0x2000, 0), (0x3000, 5), (0x4000, 70_000)], 1)
    assert plan.empty_crcs.tolist() == [zlib.crc32(bytes(n)) for n in (5, 0, 5, 70_000)]


@pytest.mark.parametrize(
    ("total_bytes", "num_blocks", "strip_bytes"),
    [
        (0, 1056, 64 * KIB),
        (16 * MIB, 1056, 64 * KIB),
        (132 * MIB, 1056, 128 * KIB),
        (1056 * MIB, 1056, MIB),
        (2**40, 1056, 4 * MIB),
    ],
)
def test_choose_strip_bytes_gives_every_block_a_strip(total_bytes, num_blocks, strip_bytes):
    assert choose_strip_bytes(total_bytes, num_blocks) == strip_bytes


@pytest.mark.parametrize(
    "pieces",
    [
        [(0, 1)],
        [(0x1000, 4), (2**63, 1)],
        [(2**63 - 2, 2)],
        [(0x1000, 2**63)],
        [(0x1000, -1)],
        [(0x1000, 2**64)],
        [(0x1000, "1 MiB")],
        array("Q", [1, 2, 3]),
    ],
)
def test_plan_of_what_is_no_range_raises(pieces):
    with pytest.raises(ConfigError) as caught:
        plan_strips(pieces, 1)
    assert caught.value.field == "pieces"


def test_plan_error_names_the_piece():
    with pytest.raises(ConfigError, match=r"pieces\[1\] has 8 bytes at address 0x0"):
        plan_strips([(0x1000, 4), (0, 8)], 1)
