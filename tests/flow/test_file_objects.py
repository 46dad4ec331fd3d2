"""Save to and load from file objects: pipes, sockets, wrappers, and objects that misbehave."""

import bz2
import gzip
import io
import lzma
import os
import resource
import signal
import socket
import tarfile
import tempfile
import threading
import zipfile
from pathlib import Path

import pytest
import torch

import gdsckpt
from gdsckpt.errors import ConfigError, FormatError, StorageError

STATE = {"w": torch.arange(300_000), "s": [torch.ones(3), torch.zeros(2)], "n": 3}


def check(state):
    assert torch.equal(state["w"], STATE["w"])
    assert torch.equal(state["s"][0], torch.ones(3))
    assert state["n"] == 3


def saved():
    buffer = io.BytesIO()
    gdsckpt.save(STATE, buffer)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def raw():
    return saved()


def num_fds():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_bytesio_gets_the_bytes_of_a_file(tmp_path, raw):
    gdsckpt.save(STATE, tmp_path / "a.pt")
    assert raw == (tmp_path / "a.pt").read_bytes()
    check(torch.load(io.BytesIO(raw)))
    check(gdsckpt.load(io.BytesIO(raw)))


def test_stream_is_read_from_where_it_stands(raw):
    buffer = io.BytesIO(b"header" + raw)
    buffer.seek(6)
    check(gdsckpt.load(buffer))


def test_real_file_is_read_from_where_it_stands(tmp_path, raw):
    (tmp_path / "a").write_bytes(b"header" + raw)
    with (tmp_path / "a").open("rb") as file:
        file.seek(6)
        check(gdsckpt.load(file))


@pytest.mark.parametrize("mode", ["rb", "r+b"])
@pytest.mark.parametrize("buffering", [0, -1])
def test_real_files_are_read_by_their_descriptor(tmp_path, raw, mode, buffering):
    (tmp_path / "a").write_bytes(raw)
    with (tmp_path / "a").open(mode, buffering=buffering) as file:
        (tmp_path / "a").unlink()
        check(gdsckpt.load(file))
        check(gdsckpt.load(file, keys=["w", "s", "n"]))


def test_real_file_that_was_just_written_is_read(tmp_path):
    with (tmp_path / "a").open("w+b") as file:
        gdsckpt.save(STATE, file)
        file.seek(0)
        check(gdsckpt.load(file))
    check(torch.load(tmp_path / "a"))


@pytest.mark.parametrize("module", [gzip, bz2, lzma])
def test_compressing_wrappers_are_read_by_their_content(tmp_path, module):
    state = {"w": torch.arange(1000)}
    with module.open(tmp_path / "a", "wb") as file:
        gdsckpt.save(state, file)
    with module.open(tmp_path / "a", "rb") as file:
        assert torch.equal(gdsckpt.load(file)["w"], state["w"])


def test_members_of_archives_are_read(tmp_path, raw):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("state.pt", raw)
    with zipfile.ZipFile(tmp_path / "a.zip") as archive, archive.open("state.pt") as member:
        check(gdsckpt.load(member))
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        info = tarfile.TarInfo("state.pt")
        info.size = len(raw)
        archive.addfile(info, io.BytesIO(raw))
    with tarfile.open(tmp_path / "a.tar") as archive:
        check(gdsckpt.load(archive.extractfile("state.pt")))


def test_temporary_files_are_written_and_read(raw):
    kinds = (tempfile.TemporaryFile, tempfile.NamedTemporaryFile, tempfile.SpooledTemporaryFile)
    for factory in kinds:
        with factory() as file:
            gdsckpt.save(STATE, file)
            file.seek(0)
            check(gdsckpt.load(file))


def through(read_file, write_file):
    """Save into one end of a connection while the other end is loaded."""
    failed = []

    def write():
        try:
            with write_file:
                gdsckpt.save(STATE, write_file)
        except BaseException as error:  # noqa: BLE001 - told to the test
            failed.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    with read_file:
        check(gdsckpt.load(read_file))
    writer.join()
    assert failed == []


@pytest.mark.parametrize("buffering", [0, -1])
def test_pipe_carries_a_save_to_a_load(buffering):
    reads, writes = os.pipe()
    through(os.fdopen(reads, "rb", buffering), os.fdopen(writes, "wb", buffering))


def test_socket_carries_a_save_to_a_load():
    near, far = socket.socketpair()
    with near, far:
        read_file, write_file = near.makefile("rb"), far.makefile("wb")
        far.close()
        through(read_file, write_file)


def test_fifo_paths_are_written_through_and_read(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=gdsckpt.save, args=(STATE, path))
    writer.start()
    check(gdsckpt.load(path))
    writer.join()
    assert path.is_fifo()
    assert [*tmp_path.iterdir()] == [path]


def test_pipe_without_a_reader_raises():
    reads, writes = os.pipe()
    os.close(reads)
    with os.fdopen(writes, "wb", 0) as file, pytest.raises(StorageError) as caught:
        gdsckpt.save(STATE, file)
    assert (caught.value.op, caught.value.errno) == ("write", 32)  # EPIPE


def test_pipe_that_ends_early_raises(raw):
    reads, writes = os.pipe()
    sender = threading.Thread(
        target=lambda: (os.write(writes, raw[:50_000]), os.close(writes)), daemon=True
    )
    sender.start()
    with os.fdopen(reads, "rb") as file, pytest.raises(FormatError, match="cut short"):
        gdsckpt.load(file)
    sender.join()


class Sink(io.RawIOBase):
    """A raw file that takes what a function says, and keeps it."""

    def __init__(self, take):
        self._take = take
        self.raw = bytearray()

    def writable(self):
        return True

    def write(self, piece):
        taken = self._take(len(piece), len(self.raw))
        if taken is not None:
            self.raw += piece[:taken]
        return taken


def test_sink_that_takes_few_bytes_at_a_time_gets_all(raw):
    sink = Sink(lambda nbytes, done: min(nbytes, 1 + done % 5000))
    report = gdsckpt.save(STATE, sink)
    assert bytes(sink.raw) == raw
    assert (report.nbytes, report.direct_io, report.path) == (len(raw), False, "<Sink>")


@pytest.mark.parametrize("taken", [0, None])
def test_sink_that_takes_nothing_raises(taken):
    with pytest.raises(StorageError) as caught:
        gdsckpt.save(STATE, Sink(lambda nbytes, done: taken if done > 1000 else min(nbytes, 600)))
    assert (caught.value.op, caught.value.path, caught.value.errno) == ("write", "<Sink>", None)
    assert caught.value.offset is not None


class Plain:
    """No io class: just what torch asks of a file object."""

    def __init__(self, raw=b""):
        self.raw = bytearray(raw)
        self._at = 0

    def write(self, piece):  # says nothing, as many do
        self.raw += piece

    def read(self, nbytes=-1):
        end = len(self.raw) if nbytes < 0 else self._at + min(nbytes, 777)
        part = bytes(self.raw[self._at : end])
        self._at += len(part)
        return part


def test_object_that_only_writes_or_reads_is_enough(raw):
    sink = Plain()
    gdsckpt.save(STATE, sink)
    assert bytes(sink.raw) == raw
    check(gdsckpt.load(Plain(raw)))


class Failing(io.RawIOBase):
    name = "my-sink"

    def __init__(self, error):
        self._error = error

    def writable(self):
        return True

    def readable(self):
        return True

    def write(self, piece):
        raise self._error

    def read(self, nbytes=-1):
        raise self._error


def test_object_that_raises_oserror_gives_a_storage_error():
    for call, op in ((lambda f: gdsckpt.save(STATE, f), "write"), (gdsckpt.load, "read")):
        with pytest.raises(StorageError) as caught:
            call(Failing(OSError(5, "Input/output error")))
        assert (caught.value.op, caught.value.path, caught.value.errno) == (op, "my-sink", 5)


def test_object_that_raises_its_own_error_gives_that():
    class Own(Exception):
        pass

    for call in (lambda f: gdsckpt.save(STATE, f), gdsckpt.load):
        with pytest.raises(Own):
            call(Failing(Own()))


def test_file_objects_of_the_wrong_kind_raise(tmp_path, raw):
    (tmp_path / "a").write_bytes(raw)
    text = (tmp_path / "a").open("r", encoding="latin-1")
    with text, pytest.raises(ConfigError) as caught:
        gdsckpt.load(text)
    assert caught.value.field == "f"
    with (tmp_path / "b").open("w", encoding="latin-1") as file:
        with pytest.raises(ConfigError) as caught:
            gdsckpt.save(STATE, file)
        assert caught.value.field == "f"
    closed = io.BytesIO(raw)
    closed.close()
    for call in (lambda f: gdsckpt.save(STATE, f), gdsckpt.load):
        for wrong in (closed, 7, None, b"path", object()):
            with pytest.raises(ConfigError) as caught:
                call(wrong)
            assert caught.value.field == "f"
    with (tmp_path / "a").open("rb") as file, pytest.raises(StorageError):
        gdsckpt.save(STATE, file)
    with (tmp_path / "c").open("wb") as file, pytest.raises(gdsckpt.errors.GdsckptError):
        gdsckpt.load(file)


def test_source_that_gives_nothing_yet_raises():
    reads, writes = os.pipe()
    os.set_blocking(reads, False)
    with os.fdopen(writes, "wb"), os.fdopen(reads, "rb", 0) as file:
        with pytest.raises(StorageError) as caught:
            gdsckpt.load(file)
        assert caught.value.op == "read"


def test_file_objects_leave_no_descriptors(raw):
    before = num_fds()
    for _ in range(5):
        gdsckpt.load(io.BytesIO(raw))
        for bad in (raw[:1000], b"", raw[:-1]):
            with pytest.raises(FormatError):
                gdsckpt.load(io.BytesIO(bad))
        with pytest.raises(StorageError):
            gdsckpt.load(Failing(OSError(5, "no")))
    assert num_fds() == before


class Endless(io.RawIOBase):
    def readable(self):
        return True

    def read(self, nbytes=-1):
        return b"x" * (1 << 20)


def test_spooling_without_room_names_the_temporary_directory():
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 20, hard))
    try:
        with pytest.raises(StorageError) as caught:
            gdsckpt.load(Endless())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, old)
    assert (caught.value.op, caught.value.errno) == ("write", 27)  # EFBIG
    assert caught.value.path == tempfile.gettempdir()
