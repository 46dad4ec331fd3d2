"""URLs of stores: taken apart, told from paths, and cleaned of secrets."""

from __future__ import annotations

import re
from urllib.parse import unquote_to_bytes

from gdsckpt.errors import ConfigError
from gdsckpt.store.base import KEY_MAX_BYTES, StoreUrl

SCHEMES = ("s3", "file", "memory")

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://", re.ASCII)
# A path segment that a server or a proxy may take for the directory itself or the one above.
_DOTS = frozenset({".", ".."})
_USER_INFO = re.compile(r"(?<=://)[^/?#\s@]*@")
# Parameters of presigned URLs and of their older kin. Source: Amazon S3 API Reference,
# "Authenticating requests: using query parameters".
_SECRET_PARAMETER = re.compile(
    r"(?i)\b(x-amz-(?:signature|credential|security-token)|signature|awsaccesskeyid|sig|token"
    r"|password|secret)=[^&\s\"'<>]*"
)


def is_url(text: object) -> bool:
    """Tell whether ``text`` names an object of a store, rather than a local path.

    Any scheme counts: one that no store has is refused by :func:`parse_url`, and never written as
    a file of that name.
    """
    return isinstance(text, str) and _URL.match(text) is not None


def parse_url(text: str) -> StoreUrl:
    """Take an URL apart.

    Keys of ``s3`` and ``memory`` are taken as they stand, as the AWS command line does: ``%``,
    ``?`` and ``#`` are characters like others. Paths of ``file`` are percent-decoded, as
    ``Path.as_uri`` encodes them.

    Raises:
        ConfigError: No store has such URLs, there is no bucket, or the key cannot be one.
    """
    match = _URL.match(text)
    scheme = match[1].lower() if match else ""
    if match is None or scheme not in SCHEMES:
        raise ConfigError(
            f"{redact(text)!r} is no URL of an object store. Give s3://BUCKET/KEY, file:///PATH or "
            "memory://NAME/KEY.",
            field="url",
        )
    bucket, _, key = text[match.end() :].partition("/")
    if scheme == "file":
        bucket, key = _file_parts(text, bucket, key)
    elif not bucket or "@" in bucket or ":" in bucket:
        raise ConfigError(
            f"{redact(text)!r} has no name of a bucket. Give {scheme}://BUCKET/KEY; credentials "
            "and endpoints have no place in it.",
            field="url",
        )
    if key:
        check_key(key.removesuffix("/") or key)
    return StoreUrl(scheme, bucket, key)


def _file_parts(text: str, host: str, path: str) -> tuple[str, str]:
    if host not in ("", "localhost"):
        raise ConfigError(
            f"{redact(text)!r} names the host {host!r}. Give file:/// and an absolute path.",
            field="url",
        )
    decoded = unquote_to_bytes(path.encode("utf-8", "surrogateescape"))
    return "", decoded.decode("utf-8", "surrogateescape").lstrip("/")


def check_key(key: str) -> str:
    """Give a key back if every store can keep it.

    Raises:
        ConfigError: It is empty, too long, no text, or would be a path out of its directory.
    """
    problem = _problem_of(key)
    if problem:
        raise ConfigError(f"{key!r} cannot be a key: {problem}. Use another one.", field="key")
    return key


def _problem_of(key: str) -> str:
    if not key:
        return "it is empty"
    try:
        nbytes = len(key.encode())
    except UnicodeEncodeError:
        return "it is not Unicode text"
    if nbytes > KEY_MAX_BYTES:
        return f"it has {nbytes} bytes in UTF-8, of at most {KEY_MAX_BYTES}"
    if "\0" in key or "\\" in key:
        return "it has a NUL or a backslash, which some servers make a '/' of"
    if key.startswith("/") or not _DOTS.isdisjoint(key.split("/")):
        return "it begins with '/' or has a part '.' or '..', which servers read as paths"
    if key.endswith("/"):
        return "it ends with '/', as prefixes do"
    return ""


def redact(text: str) -> str:
    """Take names, passwords and signatures out of the URLs in a text."""
    return _SECRET_PARAMETER.sub(r"\1=***", _USER_INFO.sub("***@", text))
