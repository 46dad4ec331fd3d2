"""What the tests of uploads and downloads share: stores in memory, files, and wrong bytes."""

import hashlib
import secrets
import tempfile

import pytest
import torch
from seaweed import BUCKET

import gdsckpt
from gdsckpt import native
from gdsckpt.errors import CheckpointNotFoundError
from gdsckpt.format import manifest as manifest_format
from gdsckpt.remote.crew import Crew
from gdsckpt.staging import reader
from gdsckpt.staging.shard import TABLE_NAME
from gdsckpt.store import memory

MiB = 1 << 20
SMALL_PARTS = {"upload_part_bytes": "5MiB"}
SMALL_CHUNKS = {"chunk_bytes": "64KiB"}

S3_SETTINGS = {
    "upload_part_bytes": "5MiB",
    "upload_concurrency": 4,
    "store_timeout_s": 1,
    "store_attempts_max": 4,
}
"""Of tests on the S3 server: several parts, and no long waits."""


class Bucket:
    """A store in memory of one test."""

    def __init__(self):
        self.name = secrets.token_hex(8)
        self.store = memory.named(self.name)

    def url(self, key=""):
        return f"memory://{self.name}/{key}"

    def list_keys(self):
        return sorted(info.key for info in self.store.list_page().objects)

    def read(self, key):
        data = bytearray(self.store.head(key).nbytes)
        self.store.get_range(key, 0, memoryview(data))
        return bytes(data)

    def put(self, key, data, **more):
        return self.store.put(key, memoryview(data), crc32=native.crc32(data), **more)


@pytest.fixture
def bucket():
    return Bucket()


@pytest.fixture
def crew():
    with Crew(4) as threads:
        yield threads


def take_temporary_directories(monkeypatch):
    """Have no directory that can be written, as in a container with read-only file systems."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/nonexistent"])


def large_state():
    """A state of three parts of 5 MiB, with small tensors beside."""
    generator = torch.Generator().manual_seed(1)
    return {
        "model": {
            "weight": torch.randn(2_000_000, generator=generator),
            "bias": torch.arange(300.0),
            "half": torch.randn(1_500_000, generator=generator).bfloat16(),
        },
        "step": 7,
    }


def save_large(path):
    """Save it in chunks of 64 KiB."""
    gdsckpt.save(large_state(), path, config={**SMALL_CHUNKS, "fsync": False})
    return path


def flipped(raw, at):
    """Give the bytes with one bit of the byte ``at`` changed."""
    changed = bytearray(raw)
    changed[at] ^= 1
    return bytes(changed)


def many_ranks(directory, sizes):
    """Write a checkpoint of several ranks, as a future version will."""
    directory.mkdir()
    entries = []
    for rank, numel in enumerate(sizes):
        path = directory / f"rank-{rank:05d}.00112233445566aa.pt"
        report = gdsckpt.save({"w": torch.full((numel,), float(rank))}, path, config=SMALL_CHUNKS)
        with reader.open_shard(path) as shard:
            table = shard.read_record(shard.find(TABLE_NAME))
        digest = hashlib.sha256(table).hexdigest()
        entries.append(manifest_format.ShardEntry(path.name, report.nbytes, report.crc32, digest))
    manifest = manifest_format.Manifest(
        step=1,
        attempt="00112233445566aa",
        world_size=len(sizes),
        created_by="a test",
        wall_time="2026-01-01T00:00:00+00:00",
        engine="pinned",
        engine_reasons=(),
        shards=tuple(entries),
    )
    (directory / "manifest.json").write_bytes(manifest_format.encode(manifest))
    return directory


def fetched(url, tmp_path, config=S3_SETTINGS):
    """Give the bytes of an object, fetched without harm."""
    gdsckpt.fetch(url, tmp_path / "fetched", config=config)
    return (tmp_path / "fetched").read_bytes()


def pending_uploads(seaweed):
    """List the uploads that are neither completed nor aborted."""
    import boto3

    client = boto3.client("s3", endpoint_url=seaweed.endpoint)
    return client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])


def is_absent(url):
    with pytest.raises(CheckpointNotFoundError):
        gdsckpt.verify(url, config=S3_SETTINGS)
    return True
