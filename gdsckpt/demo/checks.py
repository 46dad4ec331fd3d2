"""What the demo claims of a saved file, tried out."""

from __future__ import annotations

import random
import shutil
import subprocess
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import gdsckpt
from gdsckpt.config import Config
from gdsckpt.demo.training import fingerprint
from gdsckpt.errors import ChecksumError
from gdsckpt.staging import reader
from gdsckpt.tensors.naming import walk

FLIPPED_TENSOR = "model.blocks.0.mlp.0.weight"


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim and what was seen.

    Attributes:
        name: Short, for scripts.
        ok: Whether it held.
        evidence: What was seen, in words.
    """

    name: str
    ok: bool
    evidence: str


def stock_torch_opens(path: Path, state: Any) -> Claim:
    """Open the file with torch alone and compare it with the state that was saved."""
    loaded = torch.load(path, weights_only=True)
    num_tensors = sum(isinstance(leaf, torch.Tensor) for _, leaf in walk(loaded))
    same = fingerprint(loaded) == fingerprint(state)
    how = "all bits equal" if same else "BUT THEY DIFFER"
    return Claim(
        "stock_torch", same, f"torch.load(weights_only=True): {num_tensors} tensors, {how}"
    )


def is_sound_zip(path: Path) -> Claim:
    """Let a zip tool that knows nothing of torch check the file."""
    tool = shutil.which("unzip")
    if tool is not None:
        done = subprocess.run([tool, "-tqq", path], capture_output=True, text=True, check=False)
        said = (done.stdout + done.stderr).strip().splitlines()
        ok = done.returncode == 0
        evidence = "no errors" if ok else f"status {done.returncode}: {said[:1]}"
        return Claim("zip", ok, f"unzip -t: {evidence}")
    with zipfile.ZipFile(path) as archive:
        bad = archive.testzip()
    return Claim("zip", bad is None, f"python zipfile.testzip: {bad or 'no errors'}")


def is_verified(path: Path, config: Config) -> Claim:
    """Check every byte of the file."""
    report = gdsckpt.verify(path, config=config)
    return Claim("verify", report.ok is True, f"gdsckpt.verify: {report}")


def damage_is_caught(target: Path | str, flipped: str, config: Config, name: str) -> list[Claim]:
    """See who notices a flipped bit.

    Args:
        target: The damaged file, or the URL of the damaged object.
        flipped: What :func:`flip` did.
        config: Settings.
        name: What the names of the claims begin with.
    """
    report = gdsckpt.verify(target, config=config)
    named = {tensor for damage in report.damaged for tensor in damage.tensors}
    claims = [
        Claim(
            f"{name}_verify",
            report.ok is False and named == {FLIPPED_TENSOR},
            f"{flipped}: verify says {'damaged' if report.ok is False else 'NOTHING'}, "
            f"names {', '.join(sorted(named)) or 'no tensor'}",
        )
    ]
    try:
        gdsckpt.load(target, config=config)
    except ChecksumError as error:
        claims.append(
            Claim(
                f"{name}_load",
                error.fqn == FLIPPED_TENSOR,
                f"load raises ChecksumError: {error}",
            )
        )
    else:
        claims.append(Claim(f"{name}_load", False, "load RETURNED A STATE from damaged bytes"))
    return claims


def flip(path: Path) -> str:
    """Flip one bit of one tensor in a file; says which."""
    with reader.open_shard(path) as shard:
        (tensor,) = [t for t in shard.read_table().tensors if t.name == FLIPPED_TENSOR]
        index = shard.find(f"data/{tensor.record}")
        if index is None:
            raise AssertionError("the table names a record that the archive lacks")
        nbytes = shard.entries[index].nbytes
        offset = shard.payload_offsets[index] + random.randrange(nbytes)
    bit = random.randrange(8)
    with path.open("r+b") as file:
        file.seek(offset)
        (value,) = file.read(1)
        file.seek(offset)
        file.write(bytes([value ^ (1 << bit)]))
    return f"bit {bit} of byte {offset}, in {FLIPPED_TENSOR}"
