"""Multipart uploads of the local store: a directory beside the object, with a file per part."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gdsckpt.store import local_files as files
from gdsckpt.store.base import PARTS_MAX, UploadedPart

_STEM = f"{files.PREFIX}upload-"
_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)
_PART = re.compile(r"([0-9]{5})-([0-9a-f]{8})-([0-9]+)", re.ASCII)
_FACTS = "upload.json"


def create(target: Path, metadata: Mapping[str, str]) -> str:
    """Begin an upload to the file ``target``, whose directory exists, and give its id."""
    upload_id = secrets.token_hex(16)
    directory = target.parent / f"{_STEM}{upload_id}"
    directory.mkdir()
    facts = {"name": target.name, "metadata": dict(metadata)}
    (directory / _FACTS).write_text(json.dumps(facts))
    return upload_id


def directory_of(target: Path, upload_id: str) -> Path | None:
    """Give the directory of an upload to ``target``; None where there is no such upload."""
    if not _ID.fullmatch(upload_id):
        return None
    directory = target.parent / f"{_STEM}{upload_id}"
    facts = _facts(directory)
    return directory if facts is not None and facts.get("name") == target.name else None


def metadata_of(directory: Path) -> Mapping[str, str]:
    """Give the metadata with which an upload was begun."""
    metadata = (_facts(directory) or {}).get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def _facts(directory: Path) -> dict[str, Any] | None:
    try:
        facts = json.loads((directory / _FACTS).read_text())
    except (OSError, ValueError):
        return None
    return facts if isinstance(facts, dict) else None


def put_part(
    directory: Path, number: int, body: memoryview, *, crc32: int, fsync: bool
) -> UploadedPart:
    """Write a part, which replaces the one of that number."""
    part = _part(number, crc32, body.nbytes)
    path = directory / f"{number:05}-{crc32:08x}-{body.nbytes}"
    temporary = directory / f"writing-{secrets.token_hex(8)}"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        files.write_all(fd, body)
        if fsync:
            os.fdatasync(fd)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)
    temporary.replace(path)
    for other in directory.glob(f"{number:05}-*"):
        if other != path:
            other.unlink(missing_ok=True)
    return part


def parts_of(directory: Path) -> dict[int, UploadedPart]:
    """Give the parts that were written, by number."""
    found = {}
    for path in directory.iterdir():
        match = _PART.fullmatch(path.name)
        if match is not None and 1 <= int(match[1]) <= PARTS_MAX:
            found[int(match[1])] = _part(int(match[1]), int(match[2], 16), int(match[3]))
    return dict(sorted(found.items()))


def _part(number: int, crc32: int, nbytes: int) -> UploadedPart:
    return UploadedPart(number, f'"{crc32:08x}-{nbytes:x}"', nbytes, crc32)


def append_parts(directory: Path, parts: tuple[UploadedPart, ...], fd: int) -> None:
    """Append the bytes of all parts at the descriptor's position."""
    for part in parts:
        files.append_file(fd, directory / f"{part.number:05}-{part.crc32 or 0:08x}-{part.nbytes}")


def remove(directory: Path) -> None:
    """Remove an upload; one that is gone already is no error."""
    # First what makes it an upload: what is left when this is cut short is none.
    (directory / _FACTS).unlink(missing_ok=True)
    shutil.rmtree(directory, ignore_errors=True)
