"""Send one file: looked up first, in parts, looked up again; the object is right or an error."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from gdsckpt import tracing
from gdsckpt.engine import base
from gdsckpt.errors import (
    AccessDeniedError,
    ChecksumError,
    GdsckptError,
    ObjectNotFoundError,
    StoreError,
)
from gdsckpt.remote.crew import Crew, Work
from gdsckpt.remote.objects import CRC32_METADATA, crc32_of
from gdsckpt.remote.parts import Part, part_crcs, split_parts, whole_crc
from gdsckpt.remote.source import SourceFile
from gdsckpt.store.base import ObjectInfo, Store, Upload, UploadedPart, composite_crc32

logger = logging.getLogger(__name__)

_ROUNDS_MAX = 3
"""How often a file is sent whose upload the store has lost or dropped."""


@dataclass(frozen=True, slots=True)
class Sent:
    """An object that is right.

    Attributes:
        nbytes: Its size.
        crc32: Its CRC-32.
        num_parts: Parts that were sent; 0 where it was there already.
    """

    nbytes: int
    crc32: int
    num_parts: int


@dataclass(frozen=True, slots=True)
class UploadPlan:
    """What an object has to become.

    Attributes:
        source: An open file.
        key: Key of the object.
        parts: How it is sent.
        crcs: CRC-32 of each part.
        crc32: CRC-32 of the file.
    """

    source: SourceFile
    key: str
    parts: Sequence[Part]
    crcs: Sequence[int]
    crc32: int

    @property
    def metadata(self) -> dict[str, str]:
        """What the object is to say of itself."""
        return {CRC32_METADATA: f"{self.crc32:08x}"}

    def is_met_by(self, info: ObjectInfo | None) -> bool | None:
        """Tell whether an object is this one; None where it has the size and shows no checksum."""
        if info is None or info.nbytes != self.source.nbytes:
            return False
        if info.crc32 is None and info.composite_crc32 is not None:
            parts = [
                UploadedPart(part.number, "", part.nbytes, crc)
                for part, crc in zip(self.parts, self.crcs, strict=True)
            ]
            if info.composite_crc32 == composite_crc32(parts):
                return True
        known = crc32_of(info)
        return None if known is None else known == self.crc32


def plan_upload(source: SourceFile, key: str, part_bytes: int) -> UploadPlan:
    """Plan the upload of a file, for parts of ``part_bytes`` where its size allows that."""
    parts = split_parts(source.nbytes, part_bytes, unit_bytes=source.crcs.chunk_bytes)
    crcs = part_crcs(parts, source.crcs)
    return UploadPlan(source, key, parts, crcs, whole_crc(parts, crcs))


class Sender:
    """Sends files to a store.

    Args:
        store: Where to.
        crew: Sends parts.
    """

    def __init__(self, store: Store, crew: Crew) -> None:
        self._store = store
        self._crew = crew

    def send(self, plan: UploadPlan, *, progress: base.Progress | None = None) -> Sent:
        """Make an object of a file; nothing is sent where it is there already.

        Args:
            plan: What to send.
            progress: Told about bytes sent.

        Raises:
            StoreError: The store refused or could not be reached; what was sent is dropped again,
                and what was at the key is there still, unless a note says otherwise.
            StorageError: The file changed meanwhile.
            ChecksumError: The file's bytes are not those that its chunk table speaks of.
        """
        nbytes = plan.source.nbytes
        with tracing.stage("upload", nbytes):
            if plan.is_met_by(self.look(plan.key)):
                logger.info("already there: %s/%s", self._store.url, plan.key)
                if progress is not None:
                    progress(nbytes, nbytes)
                return Sent(nbytes, plan.crc32, 0)
            try:
                self._send_whole(plan, progress)
            except (GdsckptError, OSError) as error:
                plan.source.require_unchanged()  # whatever it is, this would be the cause
                if isinstance(error, StoreError) and error.code == "BadDigest":
                    raise _damaged(plan, error) from error
                raise
        return Sent(nbytes, plan.crc32, len(plan.parts))

    def look(self, key: str) -> ObjectInfo | None:
        """Look up what is there; None where nothing is, or it may not be looked at.

        Raises:
            StoreError: The store refused, or there is no such bucket.
        """
        try:
            return self._store.head(key)
        except ObjectNotFoundError as error:
            if error.code == "NoSuchBucket":
                raise
            return None
        except AccessDeniedError as error:
            # Who may not list a bucket is told so of objects that are not there.
            logger.debug("cannot look at %s/%s before: %s", self._store.url, key, error)
            return None

    def _send_whole(self, plan: UploadPlan, progress: base.Progress | None) -> None:
        for round_number in range(1, _ROUNDS_MAX + 1):
            try:
                if len(plan.parts) == 1:
                    self._put(plan, progress)
                else:
                    self._send_parts(plan, progress)
            except StoreError as error:
                is_lost = error.code == "NoSuchUpload" or error.status == 409
                if not is_lost or round_number == _ROUNDS_MAX:
                    raise
                logger.warning("sending %s again, its upload was lost: %s", plan.source.path, error)
            else:
                return

    def _put(self, plan: UploadPlan, progress: base.Progress | None) -> None:
        view = plan.source.view(plan.parts[0])
        failure: StoreError | None = None
        try:
            self._store.put(plan.key, view, crc32=plan.crc32, metadata=plan.metadata)
        except StoreError as error:
            if not error.retryable:
                raise
            failure = error
        self._settle(plan, failure)
        plan.source.require_unchanged()
        if progress is not None:
            progress(plan.source.nbytes, plan.source.nbytes)

    def _send_parts(self, plan: UploadPlan, progress: base.Progress | None) -> None:
        upload = self._store.create_upload(plan.key, metadata=plan.metadata)
        try:
            uploaded = self._put_parts(plan, upload, progress)
            plan.source.require_unchanged()
            failure: StoreError | None = None
            try:
                self._store.complete_upload(
                    upload, uploaded, nbytes=plan.source.nbytes, crc32=plan.crc32
                )
            except StoreError as error:
                failure = error
            self._settle(plan, failure)
        except BaseException as error:
            self._abort(upload, error)
            raise

    def _put_parts(
        self, plan: UploadPlan, upload: Upload, progress: base.Progress | None
    ) -> list[UploadedPart]:
        uploaded: dict[int, UploadedPart] = {}
        work = Work(plan.source.nbytes, self._store.interrupt, is_alone=True)

        def put(part: Part, crc32: int) -> None:
            plan.source.require_unchanged()  # a shorter file could not even be looked at
            plan.source.read_ahead(part)
            view = plan.source.view(part)
            uploaded[part.number] = self._store.put_part(upload, part.number, view, crc32=crc32)
            plan.source.release(part)
            work.advance(part.nbytes)

        jobs = [
            functools.partial(put, part, crc)
            for part, crc in zip(plan.parts, plan.crcs, strict=True)
        ]
        base.wait(self._crew.start(jobs, work), progress)
        return [uploaded[part.number] for part in plan.parts]

    def _settle(self, plan: UploadPlan, failure: StoreError | None) -> None:
        """Let the store say whether the object is right: an answer may have been lost, or lied.

        Raises:
            StoreError: It is not, or that cannot be told; ``failure`` itself where there was one.
        """
        url = f"{self._store.url}/{plan.key}"
        try:
            info = self._store.head(plan.key)
        except ObjectNotFoundError as error:
            if failure is not None:
                raise failure from None
            error.add_note("It was sent, and the store said that it had it.")
            raise
        except StoreError as error:
            if failure is not None:
                failure.add_note(f"Whether {url} is there now cannot be told: {error}")
                raise failure from None
            error.add_note(f"{url} was sent, but whether it is right there cannot be told.")
            raise
        is_met = plan.is_met_by(info)
        if is_met or (is_met is None and failure is None):
            if failure is not None:
                logger.info("%s is right, although its answer was lost: %s", url, failure)
            return
        if failure is not None:
            raise failure
        known = crc32_of(info)
        raise StoreError(
            f"{url} is not what was sent: it has {info.nbytes} bytes"
            f"{'' if known is None else f' with CRC-32 {known:08x}'}, and {plan.source.nbytes} "
            f"with {plan.crc32:08x} were sent. Somebody else may have written it: send it again.",
            op="head",
            key=plan.key,
        )

    def _abort(self, upload: Upload, cause: BaseException) -> None:
        """Drop what was sent; a failure never hides ``cause``."""
        try:
            self._store.abort_upload(upload)
        except (GdsckptError, OSError) as error:
            cause.add_note(
                f"Dropping what was sent of {self._store.url}/{upload.key} also failed: {error} "
                f"Abort the upload {upload.upload_id} by hand, or by a lifecycle rule, or the "
                "store bills its parts for ever."
            )


def _damaged(plan: UploadPlan, error: StoreError) -> ChecksumError:
    return ChecksumError(
        f"{plan.source.path} is damaged: the store got bytes that do not match its checksums "
        f"({error}) Run 'gdsckpt verify' for the exact place, and use another copy.",
        path=plan.source.path,
        offset=0,
    )
