"""Roots of steps for tests: small ones, complete or broken in one way each."""

import dataclasses
import secrets
import subprocess
import sys
from pathlib import Path

import torch

from gdsckpt.config import Config
from gdsckpt.format import manifest as manifest_format
from gdsckpt.format.manifest import ShardEntry
from gdsckpt.saving import content_of
from gdsckpt.staging import directory, manifests, root, writer
from gdsckpt.staging.directory import SaveIdentity

QUICK = Config(fsync=False)
LEFT_SHARD = f"rank-00000.{'0' * 16}.pt"
"""Name of a shard that no manifest of these roots names."""


def save_step(where, step, *, sequence=0, metric=None, value=None, num_ranks=1):
    """Save a step as a Checkpointer of so many ranks does; gives its directory."""
    path = root.step_directory(where, step)
    identity = SaveIdentity(step, "test", sequence=sequence, metric=metric)
    state = {"n": step, "a": torch.full((40,), step if value is None else value)}
    with directory.prepared(path, QUICK):
        attempt = secrets.token_hex(8)
        shards = []
        for rank in range(num_ranks):
            name = directory.shard_name(rank, attempt)
            content = content_of({**state, "rank": rank})
            written = writer.write_file(path / name, content, QUICK)
            shards.append(ShardEntry(name, written.nbytes, written.crc32, written.table_sha256))
        manifest = dataclasses.replace(
            directory.manifest_of(identity, attempt, written),
            world_size=num_ranks,
            shards=tuple(shards),
        )
        directory.commit(path, manifest_format.encode(manifest), QUICK)
        directory.remove_other_shards(path, manifest)
    return path


def tear_step(where, step):
    """Make what a save leaves that was killed before its commit; gives its directory."""
    path = root.step_directory(where, step)
    path.mkdir()
    (path / LEFT_SHARD).write_bytes(b"half a shard")
    return path


def shard_of(path):
    """Give the first shard of a step."""
    return path / manifests.read_manifest(path).shards[0].name


def states(where):
    """Give the state of each step of a root."""
    return {entry.step: entry.state for entry in root.scan(where)}


def start(code, *arguments):
    """Start Python on ``code``, with pipes for its standard input and output."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=Path(__file__).parent.parent,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def finish(process):
    """End the input of a process and give its output once it has ended well."""
    out, _ = process.communicate()
    assert process.returncode == 0, out
    return out
