import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdsckpt.errors import ConfigError
from gdsckpt.remote import parts as planning
from gdsckpt.remote.parts import FileCrcs, Part
from gdsckpt.store.base import PARTS_MAX

KiB, MiB, GiB, TiB = 2**10, 2**20, 2**30, 2**40


def test_split_parts_of_default_sizes_cuts_at_128_mib():
    parts = planning.split_parts(300 * MiB + 5, 128 * MiB, unit_bytes=16 * MiB)
    assert parts == [
        Part(1, 0, 128 * MiB),
        Part(2, 128 * MiB, 128 * MiB),
        Part(3, 256 * MiB, 44 * MiB + 5),
    ]


def test_split_parts_of_an_empty_file_gives_one_empty_part():
    assert planning.split_parts(0, 128 * MiB, unit_bytes=MiB) == [Part(1, 0, 0)]


def test_split_parts_of_a_large_file_grows_parts_to_stay_within_10000():
    parts = planning.split_parts(4 * TiB, 128 * MiB, unit_bytes=16 * MiB)
    assert len(parts) <= 10_000
    # 4 TiB / 10 000 is 419.4 MiB, and the next multiple of 16 MiB is 432 MiB.
    assert parts[0].nbytes == 432 * MiB


def test_split_parts_of_large_chunks_never_cuts_a_chunk():
    parts = planning.split_parts(5 * GiB, 128 * MiB, unit_bytes=GiB)
    assert [part.nbytes for part in parts] == [GiB] * 5


def test_split_parts_below_the_minimum_of_stores_is_refused():
    with pytest.raises(ConfigError) as caught:
        planning.split_parts(GiB, 4 * MiB, unit_bytes=MiB)
    assert caught.value.field == "upload_part_bytes"


def test_split_parts_of_a_file_beyond_all_limits_is_refused():
    with pytest.raises(ConfigError, match="needs parts of"):
        planning.split_parts(60 * TiB, 128 * MiB, unit_bytes=16 * MiB)


@given(
    file_bytes=st.integers(0, 48 * TiB),
    part_bytes=st.integers(5 * MiB, GiB),
    unit_bytes=st.integers(1, 4096).map(lambda n: n * 64 * KiB),
)
def test_split_parts_covers_any_file_within_the_limits(file_bytes, part_bytes, unit_bytes):
    parts = planning.split_parts(file_bytes, part_bytes, unit_bytes=unit_bytes)
    assert 1 <= len(parts) <= PARTS_MAX
    assert [part.number for part in parts] == list(range(1, len(parts) + 1))
    assert parts[0].file_offset == 0
    assert all(a.end_offset == b.file_offset for a, b in zip(parts, parts[1:], strict=False))
    assert parts[-1].end_offset == file_bytes
    assert all(part.file_offset % unit_bytes == 0 for part in parts)
    assert all(part_bytes <= part.nbytes <= planning.PART_BYTES_MAX for part in parts[:-1])


@given(
    seed=st.integers(0, 1000),
    covered_bytes=st.integers(0, 2000),
    tail_bytes=st.integers(0, 1000),
    chunk_bytes=st.integers(1, 300),
    chunks_per_part=st.integers(1, 5),
)
def test_part_crcs_equal_those_of_the_bytes(
    seed, covered_bytes, tail_bytes, chunk_bytes, chunks_per_part
):
    data = random.Random(seed).randbytes(covered_bytes + tail_bytes)
    chunks = [
        data[offset : min(offset + chunk_bytes, covered_bytes)]
        for offset in range(0, covered_bytes, chunk_bytes)
    ]
    part_bytes = chunk_bytes * chunks_per_part
    parts = [
        Part(n, offset, min(part_bytes, len(data) - offset))
        for n, offset in enumerate(range(0, max(1, len(data)), part_bytes), 1)
    ]
    read_bytes = []

    def read(offset, nbytes):
        read_bytes.append(nbytes)
        return data[offset : offset + nbytes]

    crcs = planning.part_crcs(
        parts, FileCrcs(chunk_bytes, covered_bytes, [zlib.crc32(c) for c in chunks], read)
    )
    assert crcs == [zlib.crc32(data[p.file_offset : p.end_offset]) for p in parts]
    assert sum(read_bytes) == tail_bytes  # what has a checksum is never read
    assert planning.whole_crc(parts, crcs) == zlib.crc32(data)
