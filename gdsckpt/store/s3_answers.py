"""Reads answers of S3, as botocore has parsed them.

All raise KeyError, TypeError, ValueError or OverflowError, with the name of what is missing or
makes no sense: the server, or what stands before it, may answer anything.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from gdsckpt.store.base import ListPage, ObjectInfo, UploadedPart

_OBJECT_MAX_BYTES = (1 << 63) - 1
"""Size that any offset of a file can have; no store has larger objects."""


def info_of_head(key: str, found: Mapping[str, Any]) -> ObjectInfo:
    """Read the answer to HEAD."""
    full, composite = crc32_of(found)
    nbytes = int(found["ContentLength"])
    if nbytes > _OBJECT_MAX_BYTES:
        raise ValueError(f"Content-Length ({nbytes})")
    modified = found.get("LastModified")
    return ObjectInfo(
        key,
        nbytes,
        found.get("ETag", ""),
        crc32=full,
        composite_crc32=composite,
        metadata=found.get("Metadata", {}),
        modified_s=modified.timestamp() if modified else 0.0,
    )


def page_of(page: Mapping[str, Any], token: str) -> ListPage:
    """Read a page of a listing, which was asked for by ``token``."""
    objects = tuple(
        ObjectInfo(
            each["Key"],
            int(each["Size"]),
            each.get("ETag", ""),
            modified_s=each["LastModified"].timestamp() if "LastModified" in each else 0.0,
        )
        for each in page.get("Contents", [])
    )
    prefixes = tuple(each["Prefix"] for each in page.get("CommonPrefixes", []))
    next_token = str(page["NextContinuationToken"]) if page["IsTruncated"] else ""
    if next_token and next_token == token:
        raise ValueError("NextContinuationToken (it is that of the page before)")
    return ListPage(objects, prefixes, next_token)


def parts_of(page: Mapping[str, Any]) -> dict[int, UploadedPart]:
    """Read a page of the list of parts; gives them by number."""
    return {
        int(each["PartNumber"]): UploadedPart(
            int(each["PartNumber"]),
            each["ETag"],
            int(each["Size"]),
            decoded_crc32(each.get("ChecksumCRC32")),
        )
        for each in page.get("Parts", [])
    }


def crc32_of(found: Mapping[str, Any]) -> tuple[int | None, tuple[int, int] | None]:
    """Give (CRC-32 of the object, composite CRC-32) of an answer to HEAD.

    A checksum that ends with ``-N`` is one over the checksums of N parts, whatever type is named.
    """
    text, separator, num_parts = str(found.get("ChecksumCRC32", "")).partition("-")
    value = decoded_crc32(text)
    if value is None:
        return None, None
    if separator:
        return None, (value, int(num_parts)) if num_parts.isdigit() else None
    return (None, None) if found.get("ChecksumType") == "COMPOSITE" else (value, None)


def decoded_crc32(text: str | None) -> int | None:
    """Decode a header ``x-amz-checksum-crc32``; None where it is none."""
    try:
        raw = base64.b64decode(text or "", validate=True)
    except ValueError:
        return None
    return int.from_bytes(raw, "big") if len(raw) == 4 else None
