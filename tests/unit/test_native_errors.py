import array
import ctypes
import errno
import os
import subprocess
import sys

import pytest

from gdsckpt import native
from gdsckpt.errors import (
    ConfigError,
    EngineUnavailableError,
    ShortTransferError,
    StorageError,
)

SLAB = 1 << 20
CHUNK = 1 << 16
NONE = native.NO_CRC_SLOT

SOURCE = ctypes.create_string_buffer(4 * CHUNK)
ADDRESS = ctypes.addressof(SOURCE)


@pytest.fixture
def engine():
    made = native.Engine(io_threads=2, slab_bytes=SLAB, num_slabs=2)
    yield made
    made.close()


@pytest.fixture
def scratch(tmp_path):
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT, 0o600)
    yield native.File(str(tmp_path / "file"), fd)
    os.close(fd)


def extents(*rows):
    return array.array("Q", [number for row in rows for number in (*row, native.HOST)])


def test_write_to_a_full_disk_raises_storage_error(engine):
    fd = os.open("/dev/full", os.O_RDWR)
    file = native.File("/dev/full", fd)
    transfer = engine.write(file, extents((ADDRESS, 100, 4096, NONE)), chunk_bytes=CHUNK)
    with pytest.raises(StorageError) as caught:
        transfer.result()
    os.close(fd)
    error = caught.value
    assert (error.op, error.path, error.offset, error.nbytes, error.errno) == (
        "pwrite",
        "/dev/full",
        4096,
        100,
        errno.ENOSPC,
    )
    assert str(error) == (
        "pwrite of 100 bytes at offset 4096 in /dev/full failed: No space left on device "
        "(errno 28). Free space on the file system or save elsewhere."
    )
    assert isinstance(error, OSError)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a tmpfs needs root")
@pytest.mark.parametrize("direct", [False, True])
def test_write_to_a_full_file_system_raises_enospc(engine, tmp_path, direct):
    mount = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("this process may not mount a tmpfs")
    fd = direct_fd = -1
    file = native.File("none", -1)
    try:
        fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT, 0o600)
        if direct:
            direct_fd = os.open(tmp_path / "file", os.O_RDWR | os.O_DIRECT)
        file = native.File(str(tmp_path / "file"), fd, direct_fd)
        rows = extents((ADDRESS, 4 * CHUNK, 0, NONE))
        transfer = engine.write(file, rows, chunk_bytes=CHUNK)
        with pytest.raises(StorageError) as caught:
            transfer.result()
        assert caught.value.errno == errno.ENOSPC
        with pytest.raises(StorageError) as caught:
            native.fallocate(fd, 1 << 30)
        assert (caught.value.op, caught.value.errno) == ("fallocate", errno.ENOSPC)
        assert caught.value.path == str(tmp_path / "file")
    finally:
        file.close()
        for opened in (fd, direct_fd):
            if opened >= 0:
                os.close(opened)
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_write_with_a_bad_descriptor_raises_ebadf(engine):
    file = native.File("gone", 999_999)
    transfer = engine.write(file, extents((ADDRESS, 100, 0, NONE)), chunk_bytes=CHUNK)
    with pytest.raises(StorageError) as caught:
        transfer.result()
    assert caught.value.errno == errno.EBADF
    with pytest.raises(StorageError) as caught:
        transfer.chunk_crcs()
    assert caught.value.errno == errno.EBADF


def test_read_past_the_end_raises_short_transfer(engine, scratch, tmp_path):
    (tmp_path / "file").write_bytes(bytes(1000))
    target = ctypes.create_string_buffer(4096)
    rows = extents((ctypes.addressof(target), 4096, 10, NONE))
    with pytest.raises(ShortTransferError) as caught:
        engine.read(scratch, rows).result()
    error = caught.value
    assert (error.expected_bytes, error.actual_bytes) == (4096, 990)
    assert (error.op, error.offset, error.nbytes) == ("pread", 10, 4096)
    assert "ended after 990 bytes" in str(error)


def test_scan_past_the_end_raises_short_transfer(engine, scratch):
    with pytest.raises(ShortTransferError) as caught:
        engine.scan(scratch, 5, 50, chunk_bytes=CHUNK).result()
    assert (caught.value.expected_bytes, caught.value.actual_bytes) == (45, 0)


def test_direct_io_refused_goes_on_and_says_why(engine, tmp_path):
    # A pipe as direct descriptor would be ESPIPE; memory and offsets off the true alignment of
    # the file system are EINVAL, so claim an alignment of one byte.
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT, 0o600)
    direct_fd = os.open(tmp_path / "file", os.O_RDWR | os.O_DIRECT)
    file = native.File(str(tmp_path / "file"), fd, direct_fd, 1)
    payload = ctypes.create_string_buffer(b"\x5a" * 1001, 1001)
    rows = extents((ctypes.addressof(payload), 1001, 13, NONE))
    transfer = engine.write(file, rows, chunk_bytes=CHUNK)
    transfer.result()
    assert os.pread(fd, 2000, 13) == payload.raw
    os.close(fd)
    os.close(direct_fd)
    if not file.direct_refused:
        pytest.skip("this file system takes unaligned direct I/O")
    assert file.direct_refused == "EINVAL from pwrite of 1001 bytes at offset 13"
    assert transfer.buffered_bytes == 1001


@pytest.mark.parametrize(
    "rows",
    [
        [(0, 1, 0, NONE)],  # bytes at address 0
        [(ADDRESS, 4, 10, NONE), (ADDRESS, 4, 12, NONE)],  # overlap
        [(ADDRESS, 4, 10, NONE), (ADDRESS, 4, 2, NONE)],  # descend
        [(ADDRESS, 4, 2**63 - 2, NONE)],  # beyond the largest file
        [(ADDRESS, 4, 0, NONE), (ADDRESS, 4, 100, 98)],  # slot reaches into its extent
        [(ADDRESS, 4, 8, NONE), (ADDRESS, 4, 100, 4)],  # slot before the range
    ],
)
def test_write_of_bad_extents_raises_config_error(engine, scratch, rows):
    with pytest.raises(ConfigError) as caught:
        engine.write(scratch, extents(*rows), chunk_bytes=CHUNK)
    assert caught.value.field == "extents"


@pytest.mark.parametrize(
    "buffer", [array.array("Q", [1, 2, 3]), array.array("d", [0] * 5), b"\0" * 40]
)
def test_extents_of_another_form_raise_config_error(engine, scratch, buffer):
    with pytest.raises(ConfigError) as caught:
        engine.read(scratch, buffer)
    assert caught.value.field == "extents"


def test_write_over_a_slot_in_use_raises_config_error(engine, scratch):
    header = ctypes.create_string_buffer(b"\1" * 30, 30)
    rows = extents((ctypes.addressof(header), 30, 0, NONE), (ADDRESS, 10, 30, 14))
    with pytest.raises(ConfigError) as caught:
        engine.write(scratch, rows, chunk_bytes=CHUNK).result()
    assert caught.value.field == "extents"


@pytest.mark.parametrize("chunk_bytes", [0, 1000, 2 * SLAB])
def test_chunks_that_do_not_fit_raise_config_error(engine, scratch, chunk_bytes):
    with pytest.raises(ConfigError) as caught:
        engine.write(scratch, extents(), chunk_bytes=chunk_bytes)
    assert caught.value.field == "chunk_bytes"
    with pytest.raises(ConfigError):
        engine.scan(scratch, 0, 1, chunk_bytes=chunk_bytes)


@pytest.mark.parametrize(
    ("field", "settings"),
    [
        ("io_threads", {"io_threads": 0, "slab_bytes": SLAB, "num_slabs": 1}),
        ("slab_bytes", {"io_threads": 1, "slab_bytes": 4096, "num_slabs": 1}),
        ("num_slabs", {"io_threads": 1, "slab_bytes": SLAB, "num_slabs": 0}),
    ],
)
def test_engine_of_bad_settings_raises_config_error(field, settings):
    with pytest.raises(ConfigError) as caught:
        native.Engine(**settings)
    assert caught.value.field == field


def test_slabs_that_cannot_be_mapped_raise_memory_error(scratch):
    engine = native.Engine(io_threads=1, slab_bytes=1 << 50, num_slabs=1)
    transfer = engine.write(scratch, extents((ADDRESS, 9, 0, NONE)), chunk_bytes=CHUNK)
    with pytest.raises(MemoryError, match="pinned_pool_bytes"):
        transfer.result()
    engine.close()


def test_file_of_a_bad_alignment_raises_config_error():
    with pytest.raises(ConfigError) as caught:
        native.File("x", 0, -1, 3000)
    assert caught.value.field == "alignment"


def test_file_keeps_a_path_of_any_bytes(engine):
    path = os.fsdecode(b"/nowhere/\xff\xfe")
    file = native.File(path, 999_999)
    assert file.path == path
    with pytest.raises(StorageError) as caught:
        engine.scan(file, 0, 1, chunk_bytes=CHUNK).result()
    assert caught.value.path == path


def test_closed_engine_raises_unavailable(engine, scratch):
    engine.close()
    engine.close()
    with pytest.raises(EngineUnavailableError) as caught:
        engine.read(scratch, extents())
    assert caught.value.engine == "pinned"
    assert caught.value.reasons == ("it has been closed",)


def test_results_that_a_transfer_does_not_have_raise_config_error(engine, scratch):
    with pytest.raises(ConfigError) as caught:
        engine.scan(scratch, 0, 0, chunk_bytes=CHUNK).extent_crcs()
    assert caught.value.field == "extent_crcs"
    with pytest.raises(ConfigError) as caught:
        engine.read(scratch, extents()).chunk_crcs()
    assert caught.value.field == "chunk_crcs"


@pytest.mark.parametrize("call", [native.direct_alignment, lambda fd: native.fallocate(fd, 1)])
def test_calls_on_a_bad_descriptor_raise_ebadf(call):
    with pytest.raises(StorageError) as caught:
        call(999_999)
    assert caught.value.errno == errno.EBADF


def test_import_without_the_extension_says_how_to_build_it():
    code = "import sys; sys.modules['gdsckpt._C'] = None; import gdsckpt.native"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "ImportError: The native extension gdsckpt._C cannot be loaded" in run.stderr
    assert "build_ext --inplace" in run.stderr
