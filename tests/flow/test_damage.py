"""Flipped bits and cut files: verify finds all of them, load never gives wrong data."""

import random
import warnings

import crafting
import pytest
import torch

import gdsckpt
from gdsckpt.errors import FormatError, GdsckptError
from gdsckpt.staging import reader

SMALL_CHUNKS = {"chunk_bytes": "64KiB"}


def big_and_small():
    generator = torch.Generator().manual_seed(1)
    return {
        "model": {
            "embedding": torch.randn(600, 500, generator=generator),
            "weight": torch.randn(100, 100, generator=generator).bfloat16(),
            "bias": torch.randn(7, generator=generator),
            "scale": torch.tensor(3.0),
        },
        "step": 17,
    }


def many_tiny():
    return {f"layer.{n}": torch.full((3,), n, dtype=torch.int16) for n in range(1000)}


def one_record():
    return torch.arange(40)


def nothing():
    return {}


STATES = {"big": big_and_small, "tiny": many_tiny, "one": one_record, "nothing": nothing}


def equal(a, b):
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    return type(a) is type(b) and a == b


@pytest.fixture(scope="module", params=STATES)
def whole(request, tmp_path_factory):
    """A file, its state and its bytes."""
    path = tmp_path_factory.mktemp("whole") / "state.pt"
    state = STATES[request.param]()
    gdsckpt.save(state, path, config=SMALL_CHUNKS)
    return path, state, path.read_bytes()


class Damaged:
    """One file whose bytes are changed in place, and changed back."""

    def __init__(self, path, raw):
        self._path = path
        self._raw = raw

    def flip(self, position, bit):
        self._put(position, self._raw[position] ^ (1 << bit))

    def mend(self, position):
        self._put(position, self._raw[position])

    def _put(self, position, byte):
        with self._path.open("r+b", buffering=0) as file:
            file.seek(position)
            file.write(bytes([byte]))


def require_found(path, state, position):
    """Hold verify and load against a damaged file."""
    report = gdsckpt.verify(path)
    assert report.ok is False, position
    assert report.reason
    assert report.damaged
    assert report.damaged[0].path == str(path)
    loaded, error = crafting.tried(gdsckpt.load, path)
    if error is None:
        assert equal(loaded, state), position
    else:
        assert isinstance(error, FormatError)
        assert error.path == str(path)


@pytest.fixture
def damaged(whole, tmp_path):
    path = tmp_path / "damaged.pt"
    path.write_bytes(whole[2])
    return path, Damaged(path, whole[2]), whole[1], whole[2]


def flip_all(damaged, flips):
    path, file, state, _ = damaged
    for position, bit in flips:
        file.flip(position, bit)
        require_found(path, state, (position, bit))
        file.mend(position)
    assert gdsckpt.verify(path).ok is True


def test_random_bit_flips_are_found(damaged):
    rng = random.Random(20)
    num_bytes = len(damaged[3])
    flip_all(damaged, [(rng.randrange(num_bytes), rng.randrange(8)) for _ in range(200)])


def test_flips_in_the_first_bytes_are_found(damaged):
    rng = random.Random(21)
    step = 1 if len(damaged[2]) < 1000 else 4  # of many tensors: the campaign takes every byte
    positions = range(0, min(200, len(damaged[3])), step)
    flip_all(damaged, [(n, rng.randrange(8)) for n in positions])


def test_flips_in_the_last_bytes_are_found(damaged):
    rng = random.Random(22)
    num_bytes = len(damaged[3])
    step = 1 if num_bytes < 4096 else 5  # the campaign takes every byte
    positions = [*range(max(0, num_bytes - 4096), num_bytes - 200, step)]
    positions += range(max(0, num_bytes - 200), num_bytes)
    flip_all(damaged, [(n, rng.randrange(8)) for n in positions])


@pytest.mark.campaign
def test_flips_of_every_bit_of_both_ends_are_found(damaged):
    num_bytes = len(damaged[3])
    positions = {*range(min(400, num_bytes)), *range(max(0, num_bytes - 4096), num_bytes)}
    flip_all(damaged, [(n, bit) for n in sorted(positions) for bit in range(8)])


@pytest.mark.campaign
def test_10_000_random_bit_flips_are_found(damaged):
    rng = random.Random(23)
    num_bytes = len(damaged[3])
    flip_all(damaged, [(rng.randrange(num_bytes), rng.randrange(8)) for _ in range(10_000)])


def test_flip_in_a_tensor_is_named_with_its_place(tmp_path):
    path = tmp_path / "state.pt"
    gdsckpt.save(big_and_small(), path, config=SMALL_CHUNKS)
    with reader.open_shard(path) as shard:
        (n,) = (n for n, entry in enumerate(shard.entries) if entry.nbytes == 1_200_000)
        begin = shard.payload_offsets[n]
    position = begin + 700_000
    Damaged(path, path.read_bytes()).flip(position, 3)
    (damage,) = gdsckpt.verify(path).damaged
    assert damage.tensors == ("model.embedding",)
    assert damage.offset <= position < damage.offset + damage.nbytes
    assert damage.nbytes == 65536
    with pytest.raises(gdsckpt.errors.ChecksumError) as caught:
        gdsckpt.load(path)
    error = caught.value
    assert (error.path, error.shard, error.fqn) == (str(path), "state.pt", "model.embedding")
    assert error.offset == begin
    assert error.record == f"archive/data/{0}"
    assert error.expected != error.actual
    # What is whole can still be had, and what is damaged on request.
    assert torch.equal(
        gdsckpt.load(path, keys="model.bias")["model"]["bias"], big_and_small()["model"]["bias"]
    )
    assert gdsckpt.load(path, verify=False)["step"] == 17


def boundaries(path):
    with reader.open_shard(path) as shard:
        found = {0, 1, 4, shard.footer.table_offset}
        for n, entry in enumerate(shard.entries):
            found |= {entry.header_offset, shard.payload_offsets[n]}
            found.add(shard.payload_offsets[n] + entry.nbytes)
    return found


def test_truncation_anywhere_is_found(whole, tmp_path):
    path, _, raw = whole
    cut = tmp_path / "cut.pt"
    rng = random.Random(24)
    num_bytes = len(raw)
    places = sorted(boundaries(path))
    if len(places) > 300:
        places = places[:20] + rng.sample(places, 250) + places[-20:]
    places += [rng.randrange(num_bytes) for _ in range(50)]
    places += range(num_bytes - 61 - 22 - 3, num_bytes)  # the end record and our comment
    for place in (n for n in places if n < num_bytes):
        cut.write_bytes(raw[:place])
        with pytest.raises(FormatError) as caught:
            gdsckpt.load(cut)
        assert caught.value.path == str(cut)
        if place >= 4:
            report = gdsckpt.verify(cut)
            assert (report.ok, report.nbytes) == (False, place)
        else:
            with pytest.raises(FormatError):
                gdsckpt.verify(cut)


def test_lost_and_repeated_blocks_are_found(whole, tmp_path):
    path, state, raw = whole
    bad = tmp_path / "bad.pt"
    half = len(raw) // 2
    for changed in (
        raw + b"\0",
        raw + raw,
        b"\0" + raw,
        raw[1:],
        raw[:half] + raw[half + 1 :],
        raw[:half] + b"\0" + raw[half:],
        raw[:half] + raw[: len(raw) - half],
        bytes(len(raw)),
        raw[:100] + bytes(len(raw) - 100),
        bytes(100) + raw[100:],
    ):
        if changed == raw:
            continue
        bad.write_bytes(changed)
        report, error = crafting.tried(gdsckpt.verify, bad)
        # An error, where it is not even like a checkpoint any more.
        assert isinstance(error, FormatError) or report.ok is False
        with pytest.raises(GdsckptError):
            gdsckpt.load(bad)


def test_zeroed_pages_are_found(whole, tmp_path):
    path, state, raw = whole
    bad = tmp_path / "bad.pt"
    for page in range(0, len(raw), 4096):
        zeroed = raw[:page] + bytes(min(4096, len(raw) - page)) + raw[page + 4096 :]
        if zeroed not in (raw, bytes(len(raw))):
            bad.write_bytes(zeroed)
            require_found(bad, state, page)


def test_foreign_flips_never_give_wrong_data(tmp_path):
    path = tmp_path / "torch.pt"
    state = big_and_small()
    torch.save(state, path)
    raw = path.read_bytes()
    file = Damaged(path, raw)
    rng = random.Random(25)
    num_found = 0
    positions = [rng.randrange(len(raw)) for _ in range(100)]
    positions += [*range(60), *range(len(raw) - 1500, len(raw), 4)]
    for position in positions:
        file.flip(position, rng.randrange(8))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", gdsckpt.errors.UnverifiedWarning)
            loaded, error = crafting.tried(gdsckpt.load, path)
            report, also = crafting.tried(gdsckpt.verify, path)
        if error is None:
            assert equal(loaded, state), position
        num_found += error is not None
        if also is None:
            assert report.ok in (None, False), position
        else:
            assert isinstance(also, FormatError)
        file.mend(position)
    assert num_found > 100
    assert gdsckpt.verify(path).ok is None
