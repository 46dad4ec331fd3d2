"""How the kvikio engine cuts extents, against the bytes that they stand for."""

import random
import zlib
from array import array

import pytest

from gdsckpt import native
from gdsckpt.engine import base, kvikio_plan
from gdsckpt.engine.base import ROW_WIDTH, Extent
from gdsckpt.engine.kvikio_plan import LEAST_BYTES, Piece

BLOCK = 4096
CHUNK = 64 * 1024
DEVICE = 0x7F0000000000


def plan_write(*extents):
    return kvikio_plan.plan_write(base.pack_extents(extents), BLOCK, CHUNK)


def layout(rng):
    """Give random extents; addresses of device memory are some multiple of 2**32 apart."""
    extents, place = [], rng.randrange(0, 3 * BLOCK)
    for number in range(rng.randrange(1, 12)):
        nbytes = rng.choice([0, 1, BLOCK, LEAST_BYTES, rng.randrange(4 * LEAST_BYTES)])
        device = rng.choice([native.HOST, 0, 1])
        skew = place % BLOCK if rng.random() < 0.8 else rng.randrange(BLOCK)
        address = (number + 1) * 2**32 + skew if nbytes else 0
        extents.append(Extent(address, nbytes, place, native.NO_CRC_SLOT, device))
        place += nbytes + rng.choice([0, 0, 5, BLOCK, 3 * CHUNK])
    return extents


def covered(segments):
    """Give (begin, end) of each segment."""
    return [
        (part.file_offset, part.file_offset + part.nbytes)
        if isinstance(part, Piece)
        else (part.begin, part.end)
        for part in segments
    ]


@pytest.mark.parametrize("seed", range(30))
def test_plan_write_covers_the_range_once_and_shares_no_block(seed):
    extents = layout(random.Random(seed))
    plan = plan_write(*extents)
    ranges = covered(plan.segments)
    end = extents[-1].file_offset + extents[-1].nbytes
    assert all(a[1] == b[0] for a, b in zip(ranges, ranges[1:], strict=False))
    if ranges:
        assert (ranges[0][0], ranges[-1][1]) == (extents[0].file_offset, end)
    else:
        assert end == extents[0].file_offset
    for piece in plan.pieces:
        assert piece.file_offset % BLOCK == piece.address % BLOCK == piece.nbytes % BLOCK == 0
        assert piece.file_offset // CHUNK == (piece.file_offset + piece.nbytes - 1) // CHUNK
        extent = extents[piece.extent]
        assert piece.device == extent.device != native.HOST
        assert piece.address - extent.address == piece.file_offset - extent.file_offset


@pytest.mark.parametrize("seed", range(30))
def test_plan_parts_are_all_bytes_of_all_extents(seed):
    extents = layout(random.Random(seed))
    rows = base.pack_extents(extents)
    for plan in (plan_write(*extents), kvikio_plan.plan_read(rows, BLOCK)):
        found = dict.fromkeys(range(len(extents)), 0)
        for piece in plan.pieces:
            found[piece.extent] += piece.nbytes
        for run in plan.runs:
            parts = zip(run.extents, kvikio_plan.rows_of(run.rows), strict=True)
            for index, (address, nbytes, offset, _, device) in parts:
                if index < 0:
                    assert nbytes == 0
                    continue
                extent = extents[index]
                found[index] += nbytes
                assert device == extent.device
                if nbytes:
                    assert address - extent.address == offset - extent.file_offset
        assert found == {index: extent.nbytes for index, extent in enumerate(extents)}


@pytest.mark.parametrize("seed", range(10))
def test_combined_checksums_are_those_of_the_bytes(seed):
    rng = random.Random(seed)
    extents = layout(rng)
    plan = plan_write(*extents)
    begin = extents[0].file_offset
    content = bytearray(extents[-1].file_offset + extents[-1].nbytes - begin)
    for extent in extents:
        place = extent.file_offset - begin
        content[place : place + extent.nbytes] = rng.randbytes(extent.nbytes)

    def crc(offset, nbytes):
        return zlib.crc32(content[offset - begin : offset - begin + nbytes])

    parts, ranges = [], []
    for part in plan.segments:
        if isinstance(part, Piece):
            parts.append((part.extent, part.nbytes, crc(part.file_offset, part.nbytes)))
            ranges.append((part.file_offset, part.nbytes, crc(part.file_offset, part.nbytes)))
            continue
        for index, row in zip(part.extents, kvikio_plan.rows_of(part.rows), strict=True):
            parts.append((index, row[1], crc(row[2], row[1])))
        spans = kvikio_plan.spans(part.begin, part.end, CHUNK)
        ranges.extend((offset, nbytes, crc(offset, nbytes)) for offset, nbytes in spans)
    assert kvikio_plan.combine_extents(len(extents), parts).tolist() == [
        crc(extent.file_offset, extent.nbytes) for extent in extents
    ]
    assert kvikio_plan.combine_chunks(ranges, CHUNK).tolist() == [
        crc(*span) for span in kvikio_plan.spans(begin, begin + len(content), CHUNK)
    ]


@pytest.mark.parametrize("place", [0, CHUNK - 2, CHUNK, 3 * CHUNK - 4])
def test_patch_chunks_gives_the_checksums_of_the_new_bytes(place):
    begin = 1000
    content = bytearray(random.Random(1).randbytes(3 * CHUNK))
    content[place : place + 4] = bytes(4)

    def crcs():
        spans = kvikio_plan.spans(begin, begin + len(content), CHUNK)
        return array("I", [zlib.crc32(content[a - begin : a - begin + n]) for a, n in spans])

    before = crcs()
    content[place : place + 4] = b"\x01\x02\x03\xff"
    span = begin, begin + len(content)
    kvikio_plan.patch_chunks(before, span, CHUNK, (begin + place, b"\x01\x02\x03\xff"))
    assert before == crcs()


@pytest.mark.parametrize(
    ("extent", "moved"),
    [
        (Extent(DEVICE, LEAST_BYTES, 0, device=0), LEAST_BYTES),
        (Extent(DEVICE, LEAST_BYTES - 1, 0, device=0), 0),
        (Extent(DEVICE + 1, 2 * LEAST_BYTES, 1, device=0), 2 * LEAST_BYTES - BLOCK),
        (Extent(DEVICE, 2 * LEAST_BYTES, 512, device=0), 0),  # aligned in memory only
        (Extent(DEVICE + 100, 2 * LEAST_BYTES, 0, device=0), 0),  # aligned in the file only
        (Extent(DEVICE, 2 * LEAST_BYTES, 0), 0),  # on the host
    ],
)
def test_plan_gives_kvikio_large_aligned_device_memory_only(extent, moved):
    rows = base.pack_extents([extent])
    plan = kvikio_plan.plan_read(rows, BLOCK)
    assert sum(piece.nbytes for piece in plan.pieces) == moved
    assert kvikio_plan.is_for_kvikio(rows, BLOCK) == (moved > 0)


def test_plan_write_keeps_slots_of_the_same_run_and_delays_the_others():
    plan = plan_write(
        Extent(2**32, BLOCK, 0),
        Extent(2**33, 1000, BLOCK, 0),
        Extent(DEVICE, LEAST_BYTES, 2 * BLOCK, 8, 0),
        Extent(2**34, 1000, 3 * LEAST_BYTES, 16),
        Extent(2**35, 0, 4 * LEAST_BYTES, 24),
    )
    assert plan.late_slots == [(8, 2), (16, 3), (24, 4)]
    slots = [slot for run in plan.runs for slot in run.rows[3::ROW_WIDTH]]
    assert [slot for slot in slots if slot != native.NO_CRC_SLOT] == [0]


def test_block_bytes_is_never_below_block_page_and_file():
    assert kvikio_plan.block_bytes(512) >= 4096
    assert kvikio_plan.block_bytes(65536) == 65536
