import array
import random
import zlib

import pytest

from gdsckpt import native
from gdsckpt.errors import ConfigError

DATA = random.Random(0).randbytes(2048)
BIG = random.Random(1).randbytes(700_001)
KERNELS = native.crc32_kernels()


@pytest.mark.parametrize("kernel", KERNELS)
def test_crc32_with_every_length_equals_zlib(kernel):
    rng = random.Random(2)
    for nbytes in range(1101):
        start = rng.getrandbits(32)
        data = DATA[:nbytes]
        assert native.crc32_with(kernel, data, start) == zlib.crc32(data, start), nbytes


@pytest.mark.parametrize("kernel", KERNELS)
def test_crc32_with_every_alignment_equals_zlib(kernel):
    view = memoryview(DATA)
    for at in range(64):
        for nbytes in (0, 1, 15, 63, 64, 65, 255, 256, 257, 1100):
            data = view[at : at + nbytes]
            assert native.crc32_with(kernel, data) == zlib.crc32(data), (at, nbytes)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("at", range(0, 64, 7))
def test_copy_crc32_with_copies_and_equals_zlib(kernel, at):
    for source in (DATA[:900], BIG):
        whole = bytearray(b"\xee" * (len(source) + 128))
        dest = memoryview(whole)[at : at + len(source)]
        assert native.copy_crc32_with(kernel, dest, source) == zlib.crc32(source)
        assert dest == source
        assert set(whole[:at]) | set(whole[at + len(source) :]) == {0xEE}


def test_crc32_continues_a_value():
    assert native.crc32(BIG[500:], native.crc32(BIG[:500])) == zlib.crc32(BIG)


def test_crc32_takes_any_contiguous_buffer():
    numbers = array.array("d", [1.5, -2.0])
    assert native.crc32(numbers) == zlib.crc32(numbers.tobytes())
    with pytest.raises(BufferError):
        native.crc32(memoryview(DATA)[::2])


def test_crc32_at_reads_memory_by_address():
    numbers = array.array("B", DATA)
    address, _ = numbers.buffer_info()
    assert native.crc32_at(address + 3, 100) == zlib.crc32(DATA[3:103])
    assert native.crc32_at(0, 0, 7) == 7
    with pytest.raises(ConfigError) as caught:
        native.crc32_at(0, 1)
    assert caught.value.field == "address"


@pytest.mark.parametrize("cut", [0, 1, 3, 4, 255, 256, 65_536, 700_001])
def test_crc32_combine_joins_two_parts(cut):
    head, tail = zlib.crc32(BIG[:cut]), zlib.crc32(BIG[cut:])
    assert native.crc32_combine(head, tail, len(BIG) - cut) == zlib.crc32(BIG)


@pytest.mark.parametrize("nbytes", [0, 1, 4, 257, 65_536, 1_000_003])
def test_crc32_zeros_equals_zlib(nbytes):
    assert native.crc32_zeros(nbytes) == zlib.crc32(bytes(nbytes))


def test_crc32_kernels_end_with_the_table():
    assert KERNELS[-1] == "table"
    assert len(set(KERNELS)) == len(KERNELS)


def test_crc32_with_an_unknown_kernel_raises():
    with pytest.raises(ConfigError, match="usable are: .*table") as caught:
        native.crc32_with("abacus", b"")
    assert caught.value.field == "kernel"


def test_copy_crc32_with_unequal_lengths_raises():
    with pytest.raises(ConfigError) as caught:
        native.copy_crc32_with("table", bytearray(2), b"123")
    assert caught.value.field == "dest"
