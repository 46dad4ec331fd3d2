"""The part of the demo that goes to a bucket and back."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gdsckpt
from gdsckpt.demo import checks
from gdsckpt.demo.bucket import Bucket
from gdsckpt.demo.checks import Claim
from gdsckpt.demo.resume import Order, Resumed, ResumeError, run_in_child
from gdsckpt.demo.story import Story
from gdsckpt.report import FetchReport, UploadReport
from gdsckpt.units import format_bytes, format_duration

_BLOCK_BYTES = 4 << 20


@dataclass(slots=True)
class RoundtripResult:
    """What came of it.

    Attributes:
        url: Of the object.
        where: The store, in words.
        upload: Report of the first upload.
        fetch: Report of the fetch.
        restored: What the process reports that had only the URL; None where it failed.
    """

    url: str
    where: str
    upload: UploadReport | None = None
    fetch: FetchReport | None = None
    restored: Resumed | None = None

    def as_dict(self) -> dict[str, Any]:
        """Give all of it as values that JSON has; losses are hexadecimal."""
        losses = None if self.restored is None else self.restored.losses
        return {
            "url": self.url,
            "where": self.where,
            "upload": self.upload.as_dict() if self.upload else None,
            "fetch": self.fetch.as_dict() if self.fetch else None,
            "restored_losses": None if losses is None else [loss.hex() for loss in losses],
        }


class Roundtrip:
    """Uploads the checkpoint, loses the file, restores from the bucket; then damages the object.

    Args:
        story: Told all of it.
        bucket: Where the object goes.
        order: What the new process is to do, with the file as its checkpoint.
        result: Gets the reports.
    """

    def __init__(self, story: Story, bucket: Bucket, order: Order, result: RoundtripResult) -> None:
        self._story = story
        self._bucket = bucket
        self._order = order
        self._result = result
        self._file = Path(order.checkpoint)
        self._url = result.url

    def run(self, losses: Sequence[float], final: str) -> None:
        """Go through all steps.

        Args:
            losses: Of the run that was never interrupted.
            final: Fingerprint of its end.

        Raises:
            StoreError: The store failed.
            StorageError: A file could not be written.
        """
        digest = self._upload()
        self._file.unlink()
        self._restore(losses, final)
        self._fetch(digest)
        self._damage()

    def _upload(self) -> str:
        """Upload the file, twice; gives its SHA-256."""
        story = self._story
        story.head("Upload it to a bucket")
        story.say(self._result.where)
        report = self._result.upload = gdsckpt.upload(
            self._file, self._url, config=self._bucket.config
        )
        story.say(f"{report}")
        digest = _digest_of_file(self._file)
        story.claim(has_bytes(self._bucket, self._file.name, digest))
        story.claim(sends_nothing(self._bucket, self._file))
        return digest

    def _restore(self, losses: Sequence[float], final: str) -> None:
        story = self._story
        story.head("Delete the file; a new process loads from the bucket and trains on")
        story.say(f"{self._file} is {'STILL THERE' if self._file.exists() else 'deleted'}")
        order = dataclasses.replace(self._order, checkpoint=self._url, config=self._bucket.config)
        try:
            restored = self._result.restored = run_in_child(order)
        except ResumeError as error:
            story.claim(Claim("restore", False, str(error)))
            return
        story.compare_losses("restored_losses", losses, restored, num_lines=0)
        story.compare_ends("restored_state", final, restored)

    def _fetch(self, digest: str) -> None:
        self._story.head("Fetch the file back")
        report = self._result.fetch = gdsckpt.fetch(
            self._url, self._file, config=self._bucket.config
        )
        self._story.say(f"{report}")
        is_same = _digest_of_file(self._file) == digest
        how = "the deleted file's" if is_same else "BUT ANOTHER SHA-256 THAN the deleted file's"
        self._story.claim(Claim("fetch", is_same and report.is_verified, f"SHA-256: {how}"))

    def _damage(self) -> None:
        story, bucket = self._story, self._bucket
        story.head("Flip one bit of the bucket's copy")
        copy = self._file.with_name("flipped.pt")
        shutil.copyfile(self._file, copy)
        flipped = checks.flip(copy)
        with bucket.stock_client() as client:
            place = bucket.place_of(self._file.name)
            client.upload_file(str(copy), place["Bucket"], place["Key"])
        copy.unlink()
        story.say(
            "boto3 put it there, so the store's own checksums agree with it; what does not match"
        )
        story.say("is received again, with a warning: it may have been harmed on the way")
        for claim in checks.damage_is_caught(self._url, flipped, bucket.config, "bucket_flip"):
            story.claim(claim)
        story.claim(is_mended(bucket, self._file))


def has_bytes(bucket: Bucket, name: str, digest: str) -> Claim:
    """Read an object with stock boto3, and compare it with the file that was uploaded.

    Args:
        bucket: Where it is.
        name: Of the object.
        digest: SHA-256 of the file.
    """
    with bucket.stock_client() as client:
        answer = client.get_object(**bucket.place_of(name))
        found, nbytes = _digest(answer["Body"].iter_chunks(_BLOCK_BYTES))
    how = "equal to the file's" if found == digest else "NOT that of the file"
    evidence = f"boto3 get_object: {format_bytes(nbytes)}, SHA-256 {how}"
    return Claim("bucket_bytes", found == digest, evidence)


def sends_nothing(bucket: Bucket, file: Path) -> Claim:
    """Upload a file that is there already, and see what that changes."""
    before = _version(bucket, file.name)
    report = gdsckpt.upload(file, bucket.url_of(file.name), config=bucket.config)
    is_same = _version(bucket, file.name) == before
    evidence = (
        f"a second upload sends {format_bytes(report.sent_bytes)}, in "
        f"{format_duration(report.seconds)}; the object is "
        f"{'the same one' if is_same else 'ANOTHER ONE'}"
    )
    ok = is_same and report.sent_bytes == 0 and report.num_parts == 0
    return Claim("upload_again", ok, evidence)


def is_mended(bucket: Bucket, file: Path) -> Claim:
    """Upload a file over a damaged object of the same size, and verify that."""
    url = bucket.url_of(file.name)
    sent = gdsckpt.upload(file, url, config=bucket.config)
    report = gdsckpt.verify(url, config=bucket.config)
    ok = sent.sent_bytes == sent.nbytes and report.ok is True
    evidence = (
        f"gdsckpt.upload sees other bytes of the same size and sends "
        f"{format_bytes(sent.sent_bytes)}; {report}"
    )
    return Claim("bucket_mended", ok, evidence)


def _version(bucket: Bucket, name: str) -> tuple[Any, Any]:
    with bucket.stock_client() as client:
        found = client.head_object(**bucket.place_of(name))
    return found["ETag"], found["LastModified"]


def _digest_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest(blocks: Iterable[bytes]) -> tuple[str, int]:
    digest, nbytes = hashlib.sha256(), 0
    for block in blocks:
        digest.update(block)
        nbytes += len(block)
    return digest.hexdigest(), nbytes
