import random
import zlib
from array import array

from gdsckpt.format import checksum


def test_combine_equals_the_crc_of_the_whole():
    data = random.Random(0).randbytes(100_000)
    cuts = [0, 1, 1, 5000, 77_777, 100_000]
    parts = [data[a:b] for a, b in zip(cuts, cuts[1:], strict=False)]
    combined = checksum.combine((zlib.crc32(part), len(part)) for part in parts)
    assert combined == zlib.crc32(data)


def test_combine_starts_from_what_came_before():
    assert checksum.combine([(zlib.crc32(b"def"), 3)], zlib.crc32(b"abc")) == zlib.crc32(b"abcdef")


def test_combine_of_nothing_is_zero():
    assert checksum.combine([]) == 0


def test_chunk_spans_cover_without_gaps():
    assert checksum.chunk_spans(250, 100) == [(0, 100), (100, 100), (200, 50)]
    assert checksum.chunk_spans(200, 100) == [(0, 100), (100, 100)]
    assert checksum.chunk_spans(0, 100) == []


def test_unpack_crcs_reads_native_uint32():
    assert list(checksum.unpack_crcs(array("I", [1, 2**32 - 1]).tobytes())) == [1, 2**32 - 1]
