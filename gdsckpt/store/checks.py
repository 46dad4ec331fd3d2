"""What a store of our own refuses, as S3 does: wrong checksums, conditions and parts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from gdsckpt import native
from gdsckpt.errors import ConfigError
from gdsckpt.store.answers import Answer, Call, error_for
from gdsckpt.store.base import PART_MIN_BYTES, Condition, UploadedPart

_METADATA_NAME = re.compile(r"[a-z0-9-]{1,64}", re.ASCII)
_METADATA_VALUE = re.compile(r"[!-~](?:[ -~]*[!-~])?", re.ASCII)
_METADATA_MAX_BYTES = 2048
"""Source: Amazon S3 User Guide, "Working with object metadata"."""


def check_metadata(metadata: Mapping[str, str] | None) -> dict[str, str]:
    """Give the metadata if every store can keep it unchanged.

    Raises:
        ConfigError: It is no short ASCII text.
    """
    given = dict(metadata or {})
    nbytes = sum(len(name) + len(value) for name, value in given.items())
    names_fit = all(_METADATA_NAME.fullmatch(name) for name in given)
    values_fit = all(_METADATA_VALUE.fullmatch(value) for value in given.values())
    if not (names_fit and values_fit and nbytes <= _METADATA_MAX_BYTES):
        raise ConfigError(
            f"metadata of {nbytes} bytes cannot be kept: names are of a-z, 0-9 and '-', values "
            "printable ASCII without blanks at the ends, and all of it at most "
            f"{_METADATA_MAX_BYTES} bytes.",
            field="metadata",
        )
    return given


def check_digest(url: str, call: Call, *, actual: int, expected: int) -> None:
    """Refuse bytes that do not have their checksum.

    Raises:
        StoreError: 400 ``BadDigest``.
    """
    if actual != expected:
        text = f"the CRC-32 is {actual:08x}, not {expected:08x}"
        raise error_for(url, call, Answer(400, "BadDigest", text))


def check_condition(url: str, call: Call, etag: str | None, condition: Condition) -> None:
    """Refuse a put whose condition does not hold.

    Args:
        url: The store's.
        call: The put.
        etag: That of the object there; None where there is none.
        condition: What was asked for.

    Raises:
        StoreError: 412 ``PreconditionFailed``.
        ObjectNotFoundError: An object was to be replaced that is not there.
    """
    if condition.if_match and etag is None:
        raise error_for(url, call, Answer(404, "NoSuchKey"))
    if (condition.if_match and condition.if_match != etag) or (
        condition.if_none_match and etag is not None
    ):
        raise error_for(url, call, Answer(412, "PreconditionFailed"))


def check_assembly(
    url: str,
    call: Call,
    wanted: Sequence[UploadedPart],
    there: Mapping[int, UploadedPart],
    whole: tuple[int, int],
) -> None:
    """Refuse to make an object of parts that are not the right ones.

    Args:
        url: The store's.
        call: The completion.
        wanted: The parts that were named, in order.
        there: The parts that the store has, by number.
        whole: Size and CRC-32 of the object.

    Raises:
        StoreError: 400 with ``InvalidPart``, ``InvalidPartOrder``, ``EntityTooSmall``,
            ``InvalidRequest`` or ``BadDigest``.
    """
    problem = _problem_of(wanted, there, whole)
    if problem is not None:
        raise error_for(url, call, problem)


def _problem_of(
    wanted: Sequence[UploadedPart], there: Mapping[int, UploadedPart], whole: tuple[int, int]
) -> Answer | None:
    if [part.number for part in wanted] != list(range(1, len(wanted) + 1)) or not wanted:
        return Answer(400, "InvalidPartOrder", "parts are numbered from 1 without gaps")
    for part in wanted:
        if part.number not in there or there[part.number].etag != part.etag:
            return Answer(400, "InvalidPart", f"part {part.number} is not the one that was sent")
    stored = [there[part.number] for part in wanted]
    if any(part.nbytes < PART_MIN_BYTES for part in stored[:-1]):
        return Answer(400, "EntityTooSmall", "a part but the last is smaller than 5 MiB")
    nbytes = sum(part.nbytes for part in stored)
    if nbytes != whole[0]:
        return Answer(400, "InvalidRequest", f"the parts have {nbytes} bytes, not {whole[0]}")
    crc32 = 0
    for part in stored:
        crc32 = native.crc32_combine(crc32, part.crc32 or 0, part.nbytes)
    if crc32 != whole[1]:
        return Answer(400, "BadDigest", f"the parts have CRC-32 {crc32:08x}, not {whole[1]:08x}")
    return None
