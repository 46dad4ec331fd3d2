import contextlib
import dataclasses
import json

import pytest

from gdsckpt.errors import FormatError, UnsupportedVersionError
from gdsckpt.format import manifest
from gdsckpt.format.manifest import Manifest, ShardEntry

MANIFEST = Manifest(
    step=1200,
    attempt="0123456789abcdef",
    world_size=2,
    created_by="gdsckpt 0.1.0",
    wall_time="2026-01-02T03:04:05+00:00",
    engine="pinned",
    engine_reasons=("asked for",),
    shards=(
        ShardEntry("rank-00000.a.pt", 100, 5, "ab" * 32),
        ShardEntry("rank-00001.a.pt", 2**40, 6, "cd" * 32),
    ),
)


def with_shard_names(*names):
    shards = tuple(ShardEntry(name, 1, 1, "") for name in names)
    return dataclasses.replace(MANIFEST, shards=shards, world_size=len(names))


def test_decode_gives_what_was_encoded():
    assert manifest.decode(manifest.encode(MANIFEST), "m") == MANIFEST


def test_decode_any_flipped_bit_is_found():
    raw = manifest.encode(MANIFEST)
    for position in range(len(raw) - 1):  # the last byte is a line end, which is not content
        damaged = bytearray(raw)
        damaged[position] ^= 1 << (position % 8)
        decoded = None  # refused; white space may become other white space
        with contextlib.suppress(FormatError):
            decoded = manifest.decode(bytes(damaged), "m")
        assert decoded in (None, MANIFEST), position


@pytest.mark.parametrize(
    "name", ["../x", "/etc/passwd", "a/b", "..", ".", "", "a\0b", "a\\b", "\ud800"], ids=ascii
)
def test_decode_name_that_leads_elsewhere_is_refused(name):
    raw = manifest.encode(with_shard_names("rank-00000.a.pt", name))
    with pytest.raises(FormatError) as caught:
        manifest.decode(raw, "m")
    assert "outside" in str(caught.value)


def test_decode_name_twice_is_refused():
    with pytest.raises(FormatError) as caught:
        manifest.decode(manifest.encode(with_shard_names("a", "a")), "m")
    assert "twice" in str(caught.value)


def test_decode_own_name_among_the_shards_is_refused():
    # Replaced checkpoints lose their shards: the manifest that took its place would go too.
    with pytest.raises(FormatError) as caught:
        manifest.decode(manifest.encode(with_shard_names("manifest.json")), "m")
    assert "itself" in str(caught.value)


@pytest.mark.parametrize("changes", [{"world_size": 3}, {"shards": (), "world_size": 0}], ids=repr)
def test_decode_number_of_shards_must_be_the_world_size(changes):
    raw = manifest.encode(dataclasses.replace(MANIFEST, **changes))
    with pytest.raises(FormatError) as caught:
        manifest.decode(raw, "m")
    assert "ranks" in str(caught.value)


@pytest.mark.parametrize("step", [-1, 1.5, "7", True, None], ids=repr)
def test_decode_step_that_is_no_whole_number_is_refused(step):
    with pytest.raises(FormatError):
        manifest.decode(manifest.encode(dataclasses.replace(MANIFEST, step=step)), "m")


def test_decode_manifest_of_before_has_neither_sequence_nor_metric():
    document = json.loads(manifest.encode(MANIFEST))
    del document["sequence"], document["metric"], document["crc32"]
    document["crc32"] = manifest._own_crc32(document)
    decoded = manifest.decode(json.dumps(document).encode(), "m")
    assert (decoded.sequence, decoded.metric) == (0, None)
    assert decoded == MANIFEST


def test_decode_keeps_sequence_and_metric():
    raw = manifest.encode(dataclasses.replace(MANIFEST, sequence=7, metric=0.25))
    decoded = manifest.decode(raw, "m")
    assert (decoded.sequence, decoded.metric) == (7, 0.25)


@pytest.mark.parametrize(
    "changes", [{"sequence": -1}, {"metric": "low"}, {"metric": float("nan")}, {"metric": 10**400}]
)
def test_decode_wrong_sequence_or_metric_is_refused(changes):
    with pytest.raises(FormatError):
        manifest.decode(manifest.encode(dataclasses.replace(MANIFEST, **changes)), "m")


@pytest.mark.parametrize("raw", [b"", b"[]", b"{}", b"null", b"\xff", b"[" * 100_000], ids=range(6))
def test_decode_other_bytes_are_a_format_error(raw):
    with pytest.raises(FormatError) as caught:
        manifest.decode(raw, "m")
    assert caught.value.path == "m"


def test_decode_later_version_says_so(monkeypatch):
    monkeypatch.setattr(manifest, "MANIFEST_VERSION", 2)
    raw = manifest.encode(MANIFEST)
    monkeypatch.undo()
    assert json.loads(raw)["manifest_version"] == 2
    with pytest.raises(UnsupportedVersionError) as caught:
        manifest.decode(raw, "m")
    assert (caught.value.found, caught.value.supported) == (2, 1)
