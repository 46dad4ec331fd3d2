import zlib

import torch

from gdsckpt.format import skeleton

GiB = 1 << 30


def as_bytes(bones):
    hole = bones.tail_offset - len(bones.head)
    return bones.head + bytes(hole) + bones.tail


def test_build_is_an_archive_that_torch_reads(tmp_path):
    small = [("a/version", b"3\n", zlib.crc32(b"3\n")), ("a/data.pkl", b"xyz", zlib.crc32(b"xyz"))]
    bones = skeleton.build([("a/data/0", 100), ("a/data/1", 5)], small)
    raw = as_bytes(bones)
    assert len(raw) == bones.nbytes
    path = tmp_path / "a.pt"
    path.write_bytes(raw)
    file = torch._C.PyTorchFileReader(str(path))
    assert file.get_record("data.pkl") == b"xyz"
    offsets = [file.get_record_offset(f"data/{n}") for n in (0, 1)]
    assert offsets == list(bones.payload_offsets)


def test_build_storages_have_places_of_their_own_and_fit_into_the_file():
    sizes = [0, 1, 5 * GiB, 64]
    bones = skeleton.build([(f"a/data/{n}", size) for n, size in enumerate(sizes)], [])
    assert len(set(bones.payload_offsets)) == len(sizes)
    for at, size in zip(bones.payload_offsets, sizes, strict=True):
        assert at + size <= bones.tail_offset
    assert bones.tail_offset < 5 * GiB + 1000


def test_build_size_does_not_grow_with_the_sum_of_storages():
    bones = skeleton.build([(f"a/data/{n}", GiB) for n in range(1000)], [])
    assert bones.nbytes < GiB + 1_000_000
