"""What saves, transfers and verifications found out, as plain values: for people, logs, JSON."""

import dataclasses
import json
from typing import Any

from gdsckpt.units import format_bytes, format_duration, format_rate


@dataclasses.dataclass(frozen=True, kw_only=True)
class SaveReport:
    """One finished save.

    Attributes:
        path: The file that was written.
        nbytes: Size of the file.
        payload_bytes: Bytes of the tensors in it.
        num_tensors: Tensors saved; views of one storage count each.
        num_records: Records of the file, with those that hold no tensor.
        seconds: The whole call.
        plan_s: Pickling and laying out the file.
        write_s: Moving the bytes.
        sync_s: Waiting until the drive has them; 0 without ``fsync``.
        commit_s: Renaming the file into place and syncing its directory.
        engine: The engine that moved the bytes.
        engine_reasons: Why that engine, one sentence each.
        direct_io: Whether payloads bypassed the page cache.
        crc32: CRC32 of the whole file, or None where it is not known.
        upload_s: Sending it to an object store and looking it up there; 0 for a local file.
        step: Training step, of a save by a Checkpointer; else None.
        snapshot: How an asynchronous save took the state: fence, host or device; else empty.
        stall_s: Seconds for which an asynchronous save kept its caller; else 0.
    """

    path: str
    nbytes: int
    payload_bytes: int
    num_tensors: int
    num_records: int
    seconds: float
    plan_s: float
    write_s: float
    sync_s: float
    commit_s: float
    engine: str
    engine_reasons: tuple[str, ...]
    direct_io: bool
    crc32: int | None = None
    upload_s: float = 0.0
    step: int | None = None
    snapshot: str = ""
    stall_s: float = 0.0

    @property
    def bytes_per_s(self) -> float:
        """File bytes per second of the whole call; 0 where the clock saw no time pass."""
        return _rate(self.nbytes, self.seconds)

    def as_dict(self) -> dict[str, Any]:
        """Give all of it, rate included, as values that JSON has."""
        return {**_plain(self), "bytes_per_s": self.bytes_per_s}

    def __str__(self) -> str:
        """Say it in one line."""
        return (
            f"saved {self.path}: {format_bytes(self.nbytes)}, {self.num_tensors} tensors "
            f"in {format_duration(self.seconds)} ({format_rate(self.bytes_per_s)}), "
            f"engine {self.engine}, {'direct' if self.direct_io else 'buffered'} I/O"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PreemptionReport:
    """What was saved when this process was about to be stopped.

    Attributes:
        reason: What announced it.
        choice: What was chosen to be done, and why.
        step: The step that is durable in the root because of it; None where that failed.
        is_uploaded: Whether it is in the object store too.
        failures: What went wrong, or did not end in time.
        remaining_s: Seconds that were left when this was done.
    """

    reason: str
    choice: str
    step: int | None
    is_uploaded: bool
    failures: tuple[str, ...]
    remaining_s: float

    def as_dict(self) -> dict[str, Any]:
        """Give all of it as values that JSON has."""
        return _plain(self)

    def __str__(self) -> str:
        """Say it in one line."""
        what = "nothing new is saved" if self.step is None else f"step {self.step} is saved"
        where = " and uploaded" if self.is_uploaded else ""
        failed = f"; {'; '.join(self.failures)}" if self.failures else ""
        left = format_duration(self.remaining_s)
        return (
            f"asked to end by {self.reason}: {what}{where}, {left} are left ({self.choice}{failed})"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class UploadReport:
    """One finished upload.

    Attributes:
        path: The file or directory.
        url: The object, or the beginning of the keys of the objects.
        nbytes: Bytes of the file, or of all shards.
        sent_bytes: Of these, the bytes that were sent; the rest was there already.
        num_objects: Files; of a directory its shards, not the manifest.
        num_parts: Parts that were sent.
        seconds: The whole call.
        crc32: CRC32 of the file; None for a directory.
    """

    path: str
    url: str
    nbytes: int
    sent_bytes: int
    num_objects: int
    num_parts: int
    seconds: float
    crc32: int | None = None

    @property
    def bytes_per_s(self) -> float:
        """Bytes sent per second of the whole call; 0 where the clock saw no time pass."""
        return _rate(self.sent_bytes, self.seconds)

    def as_dict(self) -> dict[str, Any]:
        """Give all of it, rate included, as values that JSON has."""
        return {**_plain(self), "bytes_per_s": self.bytes_per_s}

    def __str__(self) -> str:
        """Say it in one line."""
        if not self.sent_bytes and self.nbytes:
            return f"{self.url}: there already, {format_bytes(self.nbytes)}, nothing was sent"
        kept = self.nbytes - self.sent_bytes
        return (
            f"uploaded {self.path} to {self.url}: {format_bytes(self.sent_bytes)} "
            f"in {format_duration(self.seconds)} ({format_rate(self.bytes_per_s)})"
            f"{f', {format_bytes(kept)} were there already' if kept else ''}"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class FetchReport:
    """One finished fetch.

    Attributes:
        url: The object or checkpoint.
        path: The file or directory that was written.
        nbytes: Bytes of the file, or of all shards.
        num_objects: Files; of a directory its shards, not the manifest.
        is_verified: Whether every byte was compared with a checksum; False for a file that neither
            gdsckpt wrote nor the store has a checksum of.
        seconds: The whole call.
        direct_io: Whether all of it bypassed the page cache, but for ends of files.
        crc32: CRC32 of the file; None for a directory.
    """

    url: str
    path: str
    nbytes: int
    num_objects: int
    is_verified: bool
    seconds: float
    direct_io: bool
    crc32: int | None = None

    @property
    def bytes_per_s(self) -> float:
        """Bytes per second of the whole call; 0 where the clock saw no time pass."""
        return _rate(self.nbytes, self.seconds)

    def as_dict(self) -> dict[str, Any]:
        """Give all of it, rate included, as values that JSON has."""
        return {**_plain(self), "bytes_per_s": self.bytes_per_s}

    def __str__(self) -> str:
        """Say it in one line."""
        return (
            f"fetched {self.url} to {self.path}: {format_bytes(self.nbytes)} "
            f"in {format_duration(self.seconds)} ({format_rate(self.bytes_per_s)}), "
            f"{'verified' if self.is_verified else 'not verifiable: it carries no checksums'}"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Damage:
    """One damaged place of a file.

    Attributes:
        path: The file.
        offset: Where the damaged part begins.
        nbytes: Length of the part that has one checksum; the flipped bits are somewhere in it.
        tensors: Names of the tensors that have bytes in it.
        what: The part, such as ``chunk 3`` or ``central directory``.
    """

    path: str
    offset: int
    nbytes: int
    tensors: tuple[str, ...]
    what: str

    def as_dict(self) -> dict[str, Any]:
        """Give all of it as values that JSON has."""
        return _plain(self)

    def __str__(self) -> str:
        """Say it in one line, with at most three names."""
        line = f"{self.what}, {self.nbytes} bytes at offset {self.offset}"
        if not self.tensors:
            return line
        more = f" and {len(self.tensors) - 3} more" if len(self.tensors) > 3 else ""
        return f"{line}, in {', '.join(self.tensors[:3])}{more}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class VerifyReport:
    """One verification of a file or a directory.

    Ask ``ok`` and not the truth of the report, which is always true: None is neither whole nor
    damaged, but a file that carries no checksums.

    Attributes:
        path: The file or directory.
        ok: True when all bytes agree with their checksums, False when some do not, None when they
            cannot be checked.
        reason: Why ``ok`` is False or None; empty when it is True.
        nbytes: Size of the file, or of all shards.
        checked_bytes: Bytes that were read and compared.
        num_chunks: Chunks that were compared.
        damaged: The damaged places, in file order.
        shards: Of a directory, one report per shard; empty for a file.
    """

    path: str
    ok: bool | None
    reason: str
    nbytes: int
    checked_bytes: int
    num_chunks: int
    damaged: tuple[Damage, ...] = ()
    shards: tuple["VerifyReport", ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Give all of it as values that JSON has."""
        return _plain(self)

    def __str__(self) -> str:
        """Say it in one line, with the first damaged place."""
        if self.ok is None:
            return f"{self.path}: not verifiable: {self.reason}"
        if self.ok:
            checked = f"{format_bytes(self.checked_bytes)} in {self.num_chunks} chunks"
            return f"{self.path}: ok, {checked} checked"
        line = f"{self.path}: damaged: {self.reason}"
        if not self.damaged:
            return line
        places = "1 place" if len(self.damaged) == 1 else f"{len(self.damaged)} places, the first"
        return f"{line}; {places}: {self.damaged[0]}"


def _rate(nbytes: int, seconds: float) -> float:
    return nbytes / seconds if seconds > 0 else 0.0


def _plain(
    report: SaveReport | PreemptionReport | UploadReport | FetchReport | VerifyReport | Damage,
) -> dict[str, Any]:
    """Give a report as JSON reads it back: tuples are lists."""
    plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(report)))
    return plain
