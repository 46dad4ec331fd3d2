import errno
import os
import signal
import subprocess
import sys
import threading
import zlib

import pytest

from gdsckpt.config import Config
from gdsckpt.errors import (
    AccessDeniedError,
    ConfigError,
    ObjectNotFoundError,
    StorageError,
    StoreError,
)
from gdsckpt.store import open_store
from gdsckpt.store.base import PART_MIN_BYTES
from gdsckpt.store.local import LocalStore

BODY = b"hello"
CRC32 = 0x3610A686


@pytest.fixture
def store(tmp_path):
    return LocalStore(tmp_path)


def put(store, key, raw=BODY, **options):
    return store.put(key, memoryview(raw), crc32=zlib.crc32(raw), **options)


def names(directory):
    return sorted(path.name for path in directory.rglob("*"))


def has_attributes(directory):
    probe = directory / "probe"
    probe.touch()
    try:
        os.setxattr(probe, "user.probe", b"x")
    except OSError:
        return False
    finally:
        probe.unlink()
    return True


def test_put_object_is_the_plain_file_of_its_key(store, tmp_path):
    put(store, "run/step-1/a.pt")
    assert (tmp_path / "run/step-1/a.pt").read_bytes() == BODY
    assert names(tmp_path) == ["a.pt", "run", "step-1"]


def test_put_checksum_and_metadata_are_kept_by_the_file_system(store, tmp_path):
    if not has_attributes(tmp_path):
        pytest.skip("this file system has no extended attributes")
    put(store, "a", metadata={"note": "x"})
    (tmp_path / "a").rename(tmp_path / "b")
    info = LocalStore(tmp_path).head("b")
    assert (info.crc32, dict(info.metadata)) == (CRC32, {"note": "x"})


def test_head_of_a_file_that_was_changed_knows_no_checksum(store, tmp_path):
    put(store, "a", metadata={"note": "x"})
    etag = store.head("a").etag
    status = (tmp_path / "a").stat()
    with (tmp_path / "a").open("r+b") as file:
        file.write(b"J")
    os.utime(tmp_path / "a", ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    info = store.head("a")
    assert (info.crc32, dict(info.metadata)) == (None, {})
    assert info.etag != etag


@pytest.mark.parametrize(
    "value", [b"", b"x", b"[]", b'{"nbytes": 5}', b'{"nbytes": 5, "mtime_ns": 1, "metadata": 7}']
)
def test_head_of_a_file_with_foreign_attributes_knows_no_checksum(store, tmp_path, value):
    if not has_attributes(tmp_path):
        pytest.skip("this file system has no extended attributes")
    path = tmp_path / "a"
    path.write_bytes(BODY)
    os.utime(path, ns=(1, 1))
    os.setxattr(path, "user.gdsckpt.object", value)
    assert store.head("a").crc32 is None


def test_file_of_another_program_is_an_object(store, tmp_path):
    (tmp_path / "a").write_bytes(BODY)
    memory = bytearray(3)
    store.get_range("a", 2, memoryview(memory))
    info = store.head("a")
    assert (bytes(memory), info.nbytes, info.crc32) == (b"llo", 5, None)


@pytest.mark.parametrize("kind", ["directory", "pipe", "dangling link", "directory link"])
def test_what_is_no_regular_file_is_no_object(store, tmp_path, kind):
    path = tmp_path / "a"
    if kind == "directory":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        (tmp_path / ".d").mkdir()
        path.symlink_to("none" if kind == "dangling link" else ".d")
    with pytest.raises(ObjectNotFoundError):
        store.head("a")
    with pytest.raises(ObjectNotFoundError):
        store.get_range("a", 0, memoryview(bytearray(1)))
    assert store.list_page().objects == ()


def test_key_below_a_file_is_not_found(store):
    put(store, "a")
    with pytest.raises(ObjectNotFoundError):
        store.head("a/b")
    with pytest.raises(StorageError) as caught:
        put(store, "a/b")
    assert caught.value.errno in (errno.ENOTDIR, errno.EEXIST)


def test_key_of_a_directory_cannot_be_written(store):
    put(store, "a/b")
    with pytest.raises(StorageError) as caught:
        put(store, "a")
    assert caught.value.errno == errno.EISDIR
    assert store.head("a/b").nbytes == 5


@pytest.mark.parametrize("key", ["a//b", ".gdsckpt-store-put-x", "a/.gdsckpt-store-upload-x/1"])
def test_key_that_is_no_path_or_one_of_ours_is_refused(store, key):
    with pytest.raises(ConfigError) as caught:
        put(store, key)
    assert caught.value.field == "key"


def test_list_shows_no_empty_directory_and_no_work_in_progress(store, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "full/deep").mkdir(parents=True)
    put(store, "full/deep/a")
    upload = store.create_upload("full/b")
    store.put_part(upload, 1, memoryview(BODY), crc32=CRC32)
    page = store.list_page(delimiter="/")
    assert (page.objects, page.prefixes) == ((), ("full/",))
    assert [info.key for info in store.list_page("full/").objects] == ["full/deep/a"]


@pytest.mark.parametrize("prefix", ["../", "../out", "a/../../", "/", "/etc/", "//etc/", "./"])
def test_list_never_leaves_the_directory(tmp_path, prefix):
    (tmp_path / "outside").write_bytes(BODY)
    store = LocalStore(tmp_path / "root")
    put(store, "a/b")
    page = store.list_page(prefix, delimiter="/")
    assert (page.objects, page.prefixes) == ((), ())


@pytest.fixture
def closed_directory(tmp_path):
    """A directory that this process may not write: root becomes nobody for as long."""
    directory = tmp_path / "d"
    directory.mkdir(mode=0o500)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    yield directory
    os.seteuid(user)


def test_directory_that_may_not_be_written_is_denied(store, closed_directory):
    with pytest.raises(AccessDeniedError) as caught:
        put(store, "d/a")
    error = caught.value
    assert (error.status, error.op, error.code) == (403, "put", "AccessDenied")
    assert "Permission denied" in str(error)


def test_full_disk_is_a_storage_error_and_leaves_nothing(tmp_path):
    """A file size limit stands for the disk: it fails the same write, for any user."""
    code = (
        "import resource, signal, zlib\n"
        "from gdsckpt.store.local import LocalStore\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        f"store = LocalStore({str(tmp_path)!r})\n"
        "raw = bytes(2000)\n"
        "try:\n"
        "    store.put('a', memoryview(raw), crc32=zlib.crc32(raw))\n"
        "except OSError as error:\n"
        "    print(type(error).__name__, error.errno)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["StorageError", str(errno.EFBIG)]
    assert names(tmp_path) == []


def test_put_killed_leaves_the_old_object_and_the_next_put_cleans_up(tmp_path):
    store = LocalStore(tmp_path)
    put(store, "a", b"old")
    code = (
        "import os, signal\n"
        "from gdsckpt.store import local_files\n"
        "from gdsckpt.store.local import LocalStore\n"
        "local_files.write_attributes = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"LocalStore({str(tmp_path)!r}).put('a', memoryview(b'hello'), crc32=0x3610a686)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / "a").read_bytes() == b"old"
    assert [info.key for info in store.list_page().objects] == ["a"]
    assert len(names(tmp_path)) == 2
    put(store, "a", b"new")
    assert names(tmp_path) == ["a"]


def test_upload_outlives_its_process(tmp_path):
    first = LocalStore(tmp_path)
    upload = first.create_upload("run/a", metadata={"note": "x"})
    raw = bytes(PART_MIN_BYTES)
    part = first.put_part(upload, 1, memoryview(raw), crc32=zlib.crc32(raw))
    second = LocalStore(tmp_path)
    assert second.list_parts(upload) == (part,)
    last = second.put_part(upload, 2, memoryview(BODY), crc32=CRC32)
    whole = raw + BODY
    second.complete_upload(upload, [part, last], nbytes=len(whole), crc32=zlib.crc32(whole))
    assert (tmp_path / "run/a").read_bytes() == whole
    assert dict(second.head("run/a").metadata) == {"note": "x"}
    assert names(tmp_path) == ["a", "run"]


@pytest.mark.parametrize("upload_id", ["", "../../etc", "0" * 32, "x"])
def test_upload_id_of_nobody_is_no_upload(store, upload_id):
    upload = type(store.create_upload("a"))("a", upload_id)
    with pytest.raises(StoreError) as caught:
        store.put_part(upload, 1, memoryview(BODY), crc32=CRC32)
    assert (caught.value.status, caught.value.code) == (404, "NoSuchUpload")
    store.abort_upload(upload)


def test_upload_of_another_key_is_no_upload(store):
    upload = store.create_upload("a")
    other = type(upload)("b", upload.upload_id)
    with pytest.raises(StoreError) as caught:
        store.list_parts(other)
    assert caught.value.code == "NoSuchUpload"
    store.abort_upload(other)
    assert store.list_parts(upload) == ()


def test_get_range_of_a_file_replaced_while_it_is_read_is_one_of_them(store, tmp_path):
    bodies = [bytes([n]) * 3_000_000 for n in range(5)]
    put(store, "a", bodies[0])

    def replace():
        for raw in bodies:
            put(store, "a", raw)

    thread = threading.Thread(target=replace)
    thread.start()
    memory = bytearray(3_000_000)
    found = set()
    while thread.is_alive():
        store.get_range("a", 0, memoryview(memory))
        found |= set(memory)
        assert bytes(memory) in bodies
    thread.join()
    assert found


def test_open_store_of_a_file_url_writes_that_file(tmp_path):
    path = tmp_path / "run 1" / "a%b.pt"
    store, key = open_store(path.as_uri(), Config())
    put(store, key)
    assert path.read_bytes() == BODY
    assert f"{store.url}/{key}" == f"file://{path}"


@pytest.mark.parametrize(("fsync", "expected"), [(True, True), (False, False)])
def test_fsync_setting_decides_about_durability(tmp_path, monkeypatch, fsync, expected):
    synced = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(fd), real(fd)))
    store, key = open_store((tmp_path / "a").as_uri(), Config(fsync=fsync))
    put(store, key)
    assert bool(synced) is expected
