import mmap
import os
import zlib

import pytest
import torch
from remote_cases import SMALL_PARTS, MiB, flipped, save_large

import gdsckpt
from gdsckpt.config import Config
from gdsckpt.errors import (
    CheckpointNotFoundError,
    ChecksumError,
    ConfigError,
    FormatError,
    ObjectNotFoundError,
    StorageError,
    StoreError,
)
from gdsckpt.remote.crew import Crew
from gdsckpt.remote.uploader import Uploader
from gdsckpt.store.answers import Answer
from gdsckpt.store.wrapped import WrappedStore
from gdsckpt.testing.faulty_store import Fault, FaultyStore

CONFIG = Config(upload_part_bytes="5MiB")
LOST = Answer(None, "ConnectionFailed")


def uploads_to(store, key, path):
    """Upload a file to a store without retries; gives what was sent."""
    with Crew(2) as crew:
        return Uploader(store, crew, key, CONFIG).upload_file(str(path), None)


def ops(store):
    return [call.op for call in store.calls]


@pytest.fixture
def saved(tmp_path):
    return save_large(tmp_path / "a.pt")


def test_upload_of_a_file_is_the_object_at_exactly_that_key(saved, bucket):
    report = gdsckpt.upload(saved, bucket.url("run/a.pt"), config=SMALL_PARTS)
    assert bucket.list_keys() == ["run/a.pt"]
    assert bucket.read("run/a.pt") == saved.read_bytes()
    nbytes = saved.stat().st_size
    assert report == gdsckpt.UploadReport(
        path=str(saved),
        url=bucket.url("run/a.pt"),
        nbytes=nbytes,
        sent_bytes=nbytes,
        num_objects=1,
        num_parts=3,
        seconds=report.seconds,
        crc32=zlib.crc32(saved.read_bytes()),
    )


def test_upload_again_sends_nothing(saved, bucket):
    gdsckpt.upload(saved, bucket.url("a.pt"), config=SMALL_PARTS)
    store = FaultyStore(bucket.store)
    sent = uploads_to(store, "a.pt", saved)
    assert sent.num_parts == 0
    assert ops(store) == ["head"]
    again = gdsckpt.upload(saved, bucket.url("a.pt"))
    assert (again.sent_bytes, again.num_parts) == (0, 0)


@pytest.mark.parametrize("shown", ["metadata only", "composite only"])
def test_upload_again_where_the_store_knows_no_checksum_of_the_whole_sends_nothing(
    saved, bucket, shown
):
    class Forgetful(WrappedStore):
        """Shows less of its objects; parts are as in the upload."""

        def head(self, key):
            import dataclasses

            from gdsckpt.store.base import UploadedPart, composite_crc32

            raw = saved.read_bytes()
            cut = [raw[at : at + 5 * MiB] for at in range(0, len(raw), 5 * MiB)]
            parts = [UploadedPart(0, "", len(each), zlib.crc32(each)) for each in cut]
            info = dataclasses.replace(super().head(key), crc32=None)
            if shown == "composite only":
                composite = composite_crc32(parts)
                info = dataclasses.replace(info, composite_crc32=composite, metadata={})
            return info

    uploads_to(bucket.store, "a.pt", saved)
    assert uploads_to(Forgetful(bucket.store), "a.pt", saved).num_parts == 0


def test_upload_over_other_bytes_of_the_same_size_replaces_them(saved, bucket):
    bucket.put("a.pt", flipped(saved.read_bytes(), 1000))
    assert uploads_to(bucket.store, "a.pt", saved).num_parts == 3
    assert bucket.read("a.pt") == saved.read_bytes()


def test_upload_of_a_small_file_is_one_request_between_two_looks(tmp_path, bucket):
    path = tmp_path / "small.pt"
    gdsckpt.save({"w": torch.ones(3)}, path)
    store = FaultyStore(bucket.store)
    uploads_to(store, "small.pt", path)
    assert ops(store) == ["head", "put", "head"]


def test_upload_in_parts_ends_with_a_look(saved, bucket):
    store = FaultyStore(bucket.store)
    uploads_to(store, "a.pt", saved)
    assert ops(store).count("put_part") == 3
    assert ops(store)[-2:] == ["complete_upload", "head"]


@pytest.mark.parametrize("nbytes", [0, 1, 5 * MiB, 17 * MiB + 3])
def test_upload_takes_any_file(tmp_path, bucket, nbytes):
    path = tmp_path / "any.bin"
    path.write_bytes(os.urandom(nbytes))
    report = gdsckpt.upload(path, bucket.url("any.bin"), config=SMALL_PARTS)
    assert bucket.read("any.bin") == path.read_bytes()
    assert report.crc32 == zlib.crc32(path.read_bytes())
    assert gdsckpt.upload(path, bucket.url("any.bin")).sent_bytes == 0


def test_upload_tells_progress_up_to_the_end(saved, bucket):
    seen = []
    nbytes = saved.stat().st_size
    gdsckpt.upload(saved, bucket.url("a.pt"), progress=lambda *args: seen.append(args))
    gdsckpt.upload(saved, bucket.url("a.pt"), progress=lambda *args: seen.append(args))
    assert seen[0][1] == nbytes
    assert seen.count((nbytes, nbytes)) == 2


@pytest.mark.parametrize("key", ["", "a/"])
def test_upload_of_a_file_to_no_object_is_refused(saved, bucket, key):
    with pytest.raises(ConfigError) as caught:
        gdsckpt.upload(saved, bucket.url(key))
    assert caught.value.field == "url"


def test_upload_of_nothing_says_so(tmp_path, bucket):
    with pytest.raises(CheckpointNotFoundError) as caught:
        gdsckpt.upload(tmp_path / "missing.pt", bucket.url("a.pt"))
    assert caught.value.path == str(tmp_path / "missing.pt")


def test_upload_of_what_is_no_file_is_refused(tmp_path, bucket):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StorageError, match="no regular file"):
        gdsckpt.upload(tmp_path / "pipe", bucket.url("a.pt"))


def test_upload_of_a_damaged_structure_is_refused_before_anything_is_sent(saved, bucket):
    os.truncate(saved, saved.stat().st_size - 10)
    with pytest.raises(FormatError):
        gdsckpt.upload(saved, bucket.url("a.pt"))
    assert bucket.list_keys() == []


@pytest.mark.parametrize("part_bytes", ["5MiB", "128MiB"])
def test_upload_of_damaged_bytes_is_refused_and_leaves_nothing(saved, bucket, part_bytes):
    raw = saved.read_bytes()
    saved.write_bytes(flipped(raw, 6 * MiB))
    with pytest.raises(ChecksumError, match="gdsckpt verify") as caught:
        gdsckpt.upload(saved, bucket.url("a.pt"), config={"upload_part_bytes": part_bytes})
    assert caught.value.path == str(saved)
    assert bucket.list_keys() == []
    assert bucket.store._uploads == {}


class Meddling(WrappedStore):
    """Does something to the source when the second part comes."""

    def __init__(self, inner, meddle):
        super().__init__(inner)
        self._meddle = meddle
        self._is_done = False

    def put_part(self, upload, number, body, *, crc32):
        if number == 2 and not self._is_done:
            self._is_done = True
            self._meddle()
        return super().put_part(upload, number, body, crc32=crc32)


def write_into(path):
    with path.open("r+b") as file:
        file.seek(14 * MiB)
        file.write(b"other bytes")
    os.utime(path, ns=(1, 1))  # whatever the clock of the file system is worth


def replace(path):
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    other.replace(path)


@pytest.mark.parametrize(
    ("meddle", "why"),
    [
        (write_into, "was changed"),
        (replace, "was replaced or removed"),
        (lambda path: path.unlink(), "was replaced or removed"),
    ],
)
def test_upload_of_a_file_that_changes_meanwhile_fails(saved, bucket, meddle, why):
    store = Meddling(bucket.store, lambda: meddle(saved))
    with pytest.raises(StorageError, match=why) as caught:
        uploads_to(store, "a.pt", saved)
    assert (caught.value.op, caught.value.path) == ("upload", str(saved))
    assert bucket.list_keys() == []
    assert bucket.store._uploads == {}


def test_upload_answer_to_complete_lost_is_right_when_the_object_is(saved, bucket):
    fault = Fault("complete_upload", Answer(404, "NoSuchUpload"), is_done=True)
    store = FaultyStore(bucket.store, fault)
    assert uploads_to(store, "a.pt", saved).num_parts == 3
    assert ops(store).count("create_upload") == 1
    assert "abort_upload" not in ops(store)
    assert bucket.read("a.pt") == saved.read_bytes()


def test_upload_lost_by_the_store_is_sent_again(saved, bucket):
    store = FaultyStore(bucket.store, Fault("put_part", Answer(404, "NoSuchUpload"), skip=1))
    assert uploads_to(store, "a.pt", saved).num_parts == 3
    assert ops(store).count("create_upload") == 2
    assert bucket.read("a.pt") == saved.read_bytes()
    assert bucket.store._uploads == {}


def test_upload_lost_again_and_again_fails(saved, bucket):
    store = FaultyStore(bucket.store, Fault("put_part", Answer(404, "NoSuchUpload"), times=None))
    with pytest.raises(StoreError) as caught:
        uploads_to(store, "a.pt", saved)
    assert caught.value.code == "NoSuchUpload"
    assert ops(store).count("create_upload") == 3


def test_upload_in_conflict_with_another_is_sent_again(saved, bucket):
    conflict = Answer(409, "ConditionalRequestConflict")
    store = FaultyStore(bucket.store, Fault("complete_upload", conflict))
    uploads_to(store, "a.pt", saved)
    assert ops(store).count("create_upload") == 2


def test_upload_part_that_fails_aborts_the_upload(saved, bucket):
    store = FaultyStore(bucket.store, Fault("put_part", Answer(403, "AccessDenied"), skip=1))
    with pytest.raises(PermissionError):
        uploads_to(store, "a.pt", saved)
    assert ops(store)[-1] == "abort_upload"
    assert bucket.store._uploads == {}
    assert bucket.list_keys() == []


def test_upload_whose_abort_fails_too_says_so(saved, bucket):
    store = FaultyStore(
        bucket.store,
        Fault("put_part", Answer(403, "AccessDenied")),
        Fault("abort_upload", Answer(503, "SlowDown"), times=None),
    )
    with pytest.raises(PermissionError) as caught:
        uploads_to(store, "a.pt", saved)
    (upload_id,) = bucket.store._uploads
    assert any(f"Abort the upload {upload_id} by hand" in note for note in caught.value.__notes__)


def test_upload_to_no_bucket_fails_at_the_first_look(saved, bucket):
    store = FaultyStore(bucket.store, Fault("head", Answer(404, "NoSuchBucket")))
    with pytest.raises(ObjectNotFoundError):
        uploads_to(store, "a.pt", saved)
    assert ops(store) == ["head"]


def test_upload_where_nothing_may_be_listed_goes_on_after_the_first_look(saved, bucket):
    store = FaultyStore(bucket.store, Fault("head", Answer(403, "AccessDenied")))
    uploads_to(store, "a.pt", saved)
    assert bucket.read("a.pt") == saved.read_bytes()


def test_upload_that_cannot_be_looked_at_afterwards_says_that_it_was_sent(saved, bucket):
    store = FaultyStore(bucket.store, Fault("head", Answer(403, "AccessDenied"), times=None))
    with pytest.raises(PermissionError) as caught:
        uploads_to(store, "a.pt", saved)
    assert any("was sent" in note for note in caught.value.__notes__)


def test_upload_whose_end_is_lost_and_cannot_be_looked_up_says_so(saved, bucket):
    store = FaultyStore(
        bucket.store,
        Fault("complete_upload", LOST),
        Fault("head", LOST, skip=1, times=None),
    )
    with pytest.raises(StoreError, match="complete_upload") as caught:
        uploads_to(store, "a.pt", saved)
    assert any("cannot be told" in note for note in caught.value.__notes__)


def test_upload_that_became_other_bytes_fails(saved, bucket):
    class Confused(WrappedStore):
        def complete_upload(self, upload, parts, *, nbytes, crc32):
            super().complete_upload(upload, parts, nbytes=nbytes, crc32=crc32)
            bucket.put("a.pt", b"somebody else's")

    with pytest.raises(StoreError, match="is not what was sent: it has 15 bytes"):
        uploads_to(Confused(bucket.store), "a.pt", saved)


def test_upload_interrupted_by_its_progress_leaves_nothing(saved, bucket):
    def interrupt(_done, _total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gdsckpt.upload(saved, bucket.url("a.pt"), config=SMALL_PARTS, progress=interrupt)
    assert bucket.list_keys() == []
    assert bucket.store._uploads == {}


def test_upload_sends_the_mapped_file_itself(saved, bucket):
    seen = []

    class Looking(WrappedStore):
        def put_part(self, upload, number, body, *, crc32):
            seen.append(type(body.obj))
            return super().put_part(upload, number, body, crc32=crc32)

    uploads_to(Looking(bucket.store), "a.pt", saved)
    assert seen == [mmap.mmap] * 3
