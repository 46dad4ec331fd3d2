"""Samples of memory: the same blocks and checksums wherever the memory is."""

import zlib

import pytest
import torch

from gdsckpt import native
from gdsckpt.snapshot.samples import (
    BLOCK_BYTES,
    SPAN_BYTES,
    Look,
    Memory,
    Places,
    blocks_of,
    num_samples,
)
from gdsckpt.staging.content import Buffer

SEED = 12345
SIZES = [1, 4095, 4096, 4097, 70_000, SPAN_BYTES, SPAN_BYTES + 1, 3 * SPAN_BYTES + 5000]


def bits(nbytes):
    generator = torch.Generator().manual_seed(nbytes)
    return torch.randint(0, 256, (nbytes,), dtype=torch.uint8, generator=generator)


def memory_of(tensors, device=native.HOST):
    """Describe tensors; with a device, as if they were on a GPU of torch's."""
    buffers = [Buffer(t.data_ptr(), t.nbytes, t.untyped_storage(), device) for t in tensors]
    return Memory(list(range(len(tensors))), buffers)


def look(tensors, device=native.HOST, seed=SEED):
    return Look(Places(memory_of(tensors, device)), seed)


def test_blocks_are_one_in_every_mib_and_those_of_the_checksums():
    tensors = [bits(nbytes) for nbytes in SIZES]
    blocks = blocks_of(memory_of(tensors), SEED)
    assert [sum(block.number == n for block in blocks) for n in range(len(SIZES))] == [
        num_samples(nbytes) for nbytes in SIZES
    ]
    found = look(tensors).crcs_by_number()
    for n, tensor in enumerate(tensors):
        mine = [block for block in blocks if block.number == n]
        assert [block.offset // SPAN_BYTES for block in mine] == list(range(len(mine)))
        expected = [
            zlib.crc32(tensor[block.offset : block.offset + block.nbytes].numpy()) for block in mine
        ]
        assert found[n].tolist() == expected


def test_blocks_differ_from_seed_to_seed_and_from_mib_to_mib():
    memory = Memory([0], [Buffer(0, 64 * SPAN_BYTES, None)])
    blocks = blocks_of(memory, SEED)
    places = {block.offset % SPAN_BYTES for block in blocks}
    assert len(places) > 40
    assert blocks != blocks_of(memory, SEED + 1)
    assert all(block.nbytes == BLOCK_BYTES for block in blocks)


def test_look_on_a_device_is_that_on_the_host():
    tensors = [bits(nbytes) for nbytes in SIZES]
    on_device = look(tensors, device=0)
    assert not on_device.is_here
    assert look(tensors).is_here
    assert on_device.crcs() == look(tensors).crcs()


@pytest.mark.parametrize("device", [native.HOST, 0], ids=["host", "device"])
def test_look_finds_the_storage_that_was_changed(device):
    tensors = [bits(nbytes) for nbytes in SIZES]
    before = look(tensors, device)
    assert before.differing(look(tensors, device)) == set()
    tensors[4].add_(1)
    tensors[0].add_(1)
    assert before.differing(look(tensors, device)) == {0, 4}


def test_look_on_a_device_is_of_the_time_when_it_was_taken():
    tensors = [bits(100), bits(SPAN_BYTES)]
    expected = look(tensors).crcs()
    taken = look(tensors, device=0)
    for tensor in tensors:
        tensor.zero_()
    assert taken.crcs() == expected


def test_looks_at_storages_of_several_devices_compare_in_any_order():
    tensors = [bits(nbytes) for nbytes in SIZES]
    numbers, buffers = memory_of(tensors)
    on_gpus = [b._replace(device=1) if n % 2 else b for n, b in enumerate(buffers)]
    mixed = Memory(numbers, on_gpus)
    before = Look(Places(mixed), SEED)
    assert Places(mixed).memory.numbers == [0, 2, 4, 6, 1, 3, 5, 7]
    assert before.crcs_by_number() == look(tensors).crcs_by_number()
    assert before.differing(look(tensors)) == look(tensors).differing(before) == set()
    tensors[3].add_(1)
    tensors[6].add_(1)
    assert before.differing(look(tensors)) == {3, 6}
    assert before.differing(Look(Places(mixed), SEED)) == {3, 6}


def test_look_at_nothing_is_empty():
    assert look([]).crcs_by_number() == {}
    assert look([]).differing(look([])) == set()


def test_change_of_one_byte_of_a_small_storage_is_found():
    tensors = [bits(BLOCK_BYTES) for _ in range(20)]
    before = look(tensors)
    tensors[13][BLOCK_BYTES - 1] += 1
    assert before.differing(look(tensors)) == {13}
