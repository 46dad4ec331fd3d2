"""The manifest: the JSON file that makes a directory a checkpoint. It is written last."""

from __future__ import annotations

import json
import math
import zlib
from dataclasses import asdict, dataclass
from typing import Any

from gdsckpt.errors import FormatError, UnsupportedVersionError

MANIFEST_NAME = "manifest.json"
MANIFEST_VERSION = 1
MANIFEST_MAX_BYTES = 64 << 20
"""576 ranks need about 0.1 MB; a larger file is no manifest of ours and is not read."""


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """One shard as the manifest names it.

    Attributes:
        name: File name in the directory, without any separator.
        nbytes: File size in bytes.
        crc32: CRC-32 of the whole file.
        table_sha256: SHA-256 of the chunk table record, 64 hex digits.
    """

    name: str
    nbytes: int
    crc32: int
    table_sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a manifest says.

    Attributes:
        step: Training step, at least 0.
        attempt: Id of the save; part of every shard name.
        world_size: Number of ranks that wrote shards.
        created_by: Program and version.
        wall_time: UTC, ISO 8601.
        engine: Engine that wrote the shards.
        engine_reasons: Why it was chosen, and what was refused.
        shards: By rank.
        sequence: Grows by one with each save into a root, whatever the clock and the step say; 0
            where no Checkpointer wrote it.
        metric: What the caller said of the step, such as a loss; None for nothing.
    """

    step: int
    attempt: str
    world_size: int
    created_by: str
    wall_time: str
    engine: str
    engine_reasons: tuple[str, ...]
    shards: tuple[ShardEntry, ...]
    sequence: int = 0
    metric: float | None = None


def encode(manifest: Manifest) -> bytes:
    """Encode a manifest with its own CRC-32, as indented JSON."""
    document: dict[str, Any] = {"manifest_version": MANIFEST_VERSION, **asdict(manifest)}
    document["crc32"] = _own_crc32(document)
    return json.dumps(document, indent=1).encode() + b"\n"


def decode(raw: bytes, path: str) -> Manifest:
    """Decode and check a manifest.

    Args:
        raw: The file's bytes.
        path: For messages.

    Raises:
        UnsupportedVersionError: An intact manifest of a later version.
        FormatError: Not a manifest, damaged, or with shard names that lead elsewhere.
    """
    try:
        document = json.loads(raw)
        crc32 = document.pop("crc32")
        version = document.pop("manifest_version")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(path, f"it is not a manifest ({error!r})") from error
    if crc32 != _own_crc32({"manifest_version": version, **document}):
        raise _damaged(path, "it does not match its own checksum")
    if version != MANIFEST_VERSION:
        raise UnsupportedVersionError(
            f"{path} has manifest version {version}; this gdsckpt reads {MANIFEST_VERSION}. "
            "Install a newer gdsckpt.",
            path=path,
            offset=0,
            found=version,
            supported=MANIFEST_VERSION,
        )
    try:
        manifest = _from_document(document)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise _damaged(path, f"a field is missing or of the wrong kind ({error!r})") from error
    _check_shards(manifest, path)
    return manifest


def is_plain_name(name: str) -> bool:
    """Tell whether a name stays in its directory: no separator, no ``..``, no NUL.

    Nor half of a surrogate pair, which no file can have.
    """
    if any("\ud800" <= character <= "\udfff" for character in name):
        return False
    return name not in ("", ".", "..") and not set(name) & {"/", "\\", "\0"}


def _own_crc32(document: dict[str, Any]) -> int:
    """Give the CRC-32 of the canonical form: sorted keys, no spaces, without ``crc32``."""
    return zlib.crc32(json.dumps(document, sort_keys=True, separators=(",", ":")).encode())


def _from_document(document: dict[str, Any]) -> Manifest:
    return Manifest(
        step=_integer(document["step"]),
        attempt=str(document["attempt"]),
        world_size=_integer(document["world_size"]),
        created_by=str(document["created_by"]),
        wall_time=str(document["wall_time"]),
        engine=str(document["engine"]),
        engine_reasons=tuple(str(reason) for reason in document["engine_reasons"]),
        shards=tuple(
            ShardEntry(
                str(shard["name"]),
                _integer(shard["nbytes"]),
                _integer(shard["crc32"]),
                str(shard["table_sha256"]),
            )
            for shard in document["shards"]
        ),
        # Manifests of before have neither.
        sequence=_integer(document.get("sequence", 0)),
        metric=_finite_or_none(document.get("metric")),
    )


def _integer(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not a whole number of at least 0")
    return value


def _finite_or_none(value: object) -> float | None:
    if value is None:
        return None
    if type(value) not in (int, float) or not math.isfinite(number := float(value)):  # type: ignore[arg-type]
        raise ValueError(f"{value!r} is not a finite number")
    return number


def _check_shards(manifest: Manifest, path: str) -> None:
    names = [shard.name for shard in manifest.shards]
    bad = [name for name in names if not is_plain_name(name)]
    if bad:
        raise _damaged(path, f"shard name {bad[0]!r} leads outside its directory, or to no file")
    if MANIFEST_NAME in names:
        raise _damaged(path, "it names itself as a shard")
    if len(set(names)) != len(names):
        raise _damaged(path, "it names a shard twice")
    if not names or len(names) != manifest.world_size:
        raise _damaged(path, f"it names {len(names)} shards for {manifest.world_size} ranks")


def _damaged(path: str, why: str) -> FormatError:
    return FormatError(
        f"{path} cannot be trusted: {why}. Use another checkpoint.", path=path, offset=0
    )
