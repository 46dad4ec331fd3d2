"""What the contract classes share: bodies, calls, names that are odd or none."""

from __future__ import annotations

import random
import secrets
import threading
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest

from gdsckpt.errors import StoreError
from gdsckpt.store.base import ALWAYS, Condition, ObjectInfo, Store

T = TypeVar("T")

ODD_NAMES = (
    "a b",
    "a+b",
    "a%20b",
    "100%",
    "a&b=c",
    "what?",
    "sharp#1",
    "q'uote\"",
    "semi;colon,comma",
    "tilde~(1)!*@$",
    "\u00e9t\u00e9-\u96ea-\U0001f600",
    "e\u0301",
    "[brackets]{braces}",
    "<angle>|^`",
    ".hidden",
    "trailing.",
    "step=00000012",
)
"""Names of keys that clients and servers have tripped over."""

NO_KEYS = ("", "/a", "a/", ".", "..", "a/../b", "./a", "a/.", "nul\0", "a\\b", "\ud800", "x" * 1025)
"""No store takes these."""


def crc32(raw: bytes | memoryview) -> int:
    """Give the CRC-32 of bytes."""
    return zlib.crc32(raw)


def body(nbytes: int, seed: int) -> bytes:
    """Give bytes that differ from those of other seeds."""
    return random.Random(seed).randbytes(nbytes)


def read(store: Store, key: str, *, if_match: str = "") -> bytes:
    """Read a whole object."""
    raw = bytearray(store.head(key).nbytes)
    store.get_range(key, 0, memoryview(raw), if_match=if_match)
    return bytes(raw)


def put(store: Store, key: str, raw: bytes, condition: Condition = ALWAYS) -> ObjectInfo:
    """Write an object with its right checksum."""
    return store.put(key, memoryview(raw), crc32=crc32(raw), condition=condition)


def refusal(call: Callable[[], object]) -> StoreError:
    """Do a call that has to be refused, and give the error."""
    with pytest.raises(StoreError) as caught:
        call()
    return caught.value


def in_threads(calls: list[Callable[[], T]]) -> list[T]:
    """Do all calls at the same time."""
    barrier = threading.Barrier(len(calls))

    def run(call: Callable[[], T]) -> T:
        barrier.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


class Contract:
    """What the classes share."""

    @pytest.fixture
    def store(self) -> Store:
        """Give the store; for the child to override."""
        raise NotImplementedError

    @pytest.fixture
    def prefix(self) -> str:
        """Give a prefix that no other test has."""
        return f"contract-{secrets.token_hex(6)}/"
