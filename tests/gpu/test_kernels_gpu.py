"""The kernels on a real device, with data too large for the simulator."""

import zlib
from array import array
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from gdsckpt import native
from gdsckpt.errors import EngineUnavailableError
from gdsckpt.kernels import Tuning, changed_chunks, crc32_pieces, warm_up

pytestmark = pytest.mark.gpu

MIB = 1024 * 1024
GIB = 1024 * MIB


@pytest.fixture(scope="module")
def large():
    """1 GiB of random bytes on device 0, and the same on the host."""
    import torch

    generator = torch.Generator("cuda:0").manual_seed(0)
    numbers = torch.randint(
        -(2**63), 2**63 - 1, (GIB // 8,), dtype=torch.int64, device="cuda:0", generator=generator
    )
    memory = numbers.view(torch.uint8)
    return memory, memory.cpu().numpy()


def expected(host, pieces):
    return array("I", [native.crc32(host[offset : offset + n]) for offset, n in pieces])


def check(large, pieces, **arguments):
    memory, host = large
    placed = [(memory.data_ptr() + offset, nbytes) for offset, nbytes in pieces]
    assert crc32_pieces(placed, 0, **arguments) == expected(host, pieces)


def test_crc32_of_small_and_unaligned_pieces(large):
    check(large, [(offset, nbytes) for offset in range(8) for nbytes in range(20)])
    check(large, [(128 * k + k % 7, 4096 + k) for k in range(500)])


@pytest.mark.parametrize("threads", [64, 128, 256])
def test_crc32_of_chunks(large, threads):
    chunks = [(offset, 16 * MIB) for offset in range(0, GIB, 16 * MIB)]
    check(large, chunks, tuning=Tuning(threads=threads))


def test_crc32_of_one_large_piece(large):
    check(large, [(0, GIB)])
    check(large, [(1, GIB - 2)])


def test_crc32_of_many_pieces(large):
    offsets = np.random.default_rng(1).integers(0, GIB - 10_000, 50_000)
    sizes = np.random.default_rng(2).integers(0, 9000, 50_000)
    check(large, list(zip(offsets.tolist(), sizes.tolist(), strict=True)))


@pytest.mark.parametrize("strip_bytes", [128, 1024 * 128 + 128])
def test_crc32_by_odd_strips(large, strip_bytes):
    check(large, [(77, 5 * MIB), (0, 127)], tuning=Tuning(strip_bytes=strip_bytes))


def test_crc32_waits_for_the_stream_that_writes():
    import torch

    stream = torch.cuda.Stream()
    memory = torch.zeros(64 * MIB, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    warm_up(0)
    with torch.cuda.stream(stream):
        # Some 0.2 s, far longer than the launch of the kernel takes.
        torch.cuda._sleep(400_000_000)
        memory.fill_(7)
    piece = (memory.data_ptr(), memory.numel())
    crcs = crc32_pieces([piece], 0, stream=stream.cuda_stream)
    assert crcs[0] == zlib.crc32(b"\x07" * memory.numel())


def test_crc32_does_not_wait_for_the_default_stream():
    import torch

    memory = torch.zeros(MIB, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    warm_up(0)
    torch.cuda._sleep(2_000_000_000)
    crcs = crc32_pieces([(memory.data_ptr(), memory.numel())], 0)
    still_busy = not torch.cuda.default_stream().query()
    torch.cuda.synchronize()
    assert crcs[0] == zlib.crc32(bytes(MIB))
    assert still_busy


def test_crc32_from_several_threads(large):
    def run(seed):
        offsets = np.random.default_rng(seed).integers(0, GIB - MIB, 100).tolist()
        check(large, [(offset, MIB - seed) for offset in offsets])

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(run, range(4))) == [None] * 4


def test_crc32_leaves_torch_as_it_was(large):
    import torch

    before = torch.cuda.current_device(), torch.cuda.current_stream()
    check(large, [(0, MIB)])
    assert (torch.cuda.current_device(), torch.cuda.current_stream()) == before
    assert torch.arange(10, device="cuda").sum().item() == 45


def test_changed_chunks_finds_one_bit(large):
    memory, host = large
    chunks = [(offset, MIB) for offset in range(0, 64 * MIB, MIB)]
    placed = [(memory.data_ptr() + offset, nbytes) for offset, nbytes in chunks]
    earlier = expected(host, chunks)
    assert changed_chunks(placed, earlier, device=0) == []
    memory[5 * MIB + 12_345] ^= 0x10
    try:
        assert changed_chunks(placed, earlier, device=0, stream=0) == [5]
    finally:
        memory[5 * MIB + 12_345] ^= 0x10


def test_device_that_is_not_there_raises():
    import torch

    with pytest.raises(EngineUnavailableError):
        crc32_pieces([(4096, 1)], torch.cuda.device_count())


def test_crc32_on_another_device():
    import torch

    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    memory = torch.full((MIB + 3,), 9, dtype=torch.uint8, device="cuda:1")
    torch.cuda.synchronize(1)
    crcs = crc32_pieces([(memory.data_ptr(), memory.numel())], 1)
    assert crcs[0] == zlib.crc32(b"\x09" * (MIB + 3))
    assert torch.cuda.current_device() == 0
