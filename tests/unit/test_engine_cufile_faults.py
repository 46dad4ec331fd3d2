"""The cufile engine over the stand-ins: what becomes of each of cuFile's errors."""

import errno
import zlib
from pathlib import Path

import pytest
from cufile_bench import (
    CHUNK_BYTES,
    LARGE,
    Bench,
    KnownChecksums,
    MiB,
    crcs,
    in_child,
    pattern,
    written,
)

from gdsckpt.engine import base
from gdsckpt.engine.base import Extent
from gdsckpt.errors import (
    ChecksumError,
    ConfigError,
    CudaError,
    ShortTransferError,
    StorageError,
)


@pytest.mark.parametrize("code", [5008, 5018, 5027, 5028, 5030])
@in_child()
def test_registration_refused_the_file_goes_through_the_host(tmp_path, code):
    bench = Bench(tmp_path)
    bench.cufile(f"fault cuFileHandleRegister code={code} count=-1")
    data = pattern(LARGE)
    file, transfer = bench.save(data)
    bench.check(transfer, data)
    assert (transfer.cufile_bytes, transfer.direct_bytes) == (0, LARGE)
    assert f"{code})" in file.cufile_refused
    assert bench.checksums.calls == []  # the CPU takes them
    assert not file.attach_cufile()  # not tried again
    assert bench.cufile.calls("cuFileHandleRegister") == 1


@pytest.mark.parametrize("old_errors", [0, 1])
@pytest.mark.parametrize("code", [5001, 5008, 5011, 5016, 5036, errno.EINVAL, errno.EREMOTEIO])
@in_child()
def test_write_refused_in_the_middle_goes_on_through_the_host(tmp_path, code, old_errors):
    bench = Bench(tmp_path)
    bench.cufile(f"set old_errors={old_errors}; fault cuFileWrite code={code} nth=2 count=-1")
    data = pattern(LARGE)
    file, transfer = bench.save(data)
    bench.check(transfer, data)
    assert transfer.cufile_bytes == MiB
    assert transfer.cufile_bytes + transfer.direct_bytes == LARGE
    assert str(code) in file.cufile_refused


@pytest.mark.parametrize("code", [errno.EINTR, errno.EAGAIN, 5039, 5043])
@in_child()
def test_write_that_is_to_be_tried_again_is(tmp_path, code):
    bench = Bench(tmp_path)
    bench.cufile(f"fault cuFileWrite code={code} nth=2 count=2")
    data = pattern(LARGE)
    file, transfer = bench.save(data)
    bench.check(transfer, data)
    assert transfer.cufile_bytes == LARGE
    assert file.cufile_refused == ""


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EDQUOT])
@in_child()
def test_write_error_of_the_file_is_raised(tmp_path, code):
    bench = Bench(tmp_path)
    bench.cufile(f"fault cuFileWrite code={code} nth=2 count=-1")
    file, transfer = bench.save(pattern(LARGE))
    with pytest.raises(StorageError) as raised:
        base.wait(transfer)
    error = raised.value
    assert (error.op, error.path, error.errno) == ("cuFileWrite", str(bench.path), code)
    assert (error.offset % MiB, error.nbytes) == (0, MiB)
    assert file.cufile_refused == ""


@pytest.mark.parametrize("nbytes", [4096, 8192 + 100, MiB - 1])
@in_child()
def test_write_short_is_continued(tmp_path, nbytes):
    bench = Bench(tmp_path)
    bench.cufile(f"short cuFileWrite bytes={nbytes} count=3")
    data = pattern(LARGE)
    _, transfer = bench.save(data)
    bench.check(transfer, data)
    assert transfer.cufile_bytes == LARGE


@in_child()
def test_write_without_progress_is_an_error(tmp_path):
    bench = Bench(tmp_path)
    bench.cufile("short cuFileWrite bytes=0 nth=2 count=-1")
    _, transfer = bench.save(pattern(LARGE))
    with pytest.raises(ShortTransferError) as raised:
        base.wait(transfer)
    assert (raised.value.expected_bytes, raised.value.actual_bytes) == (MiB, 0)


@pytest.mark.parametrize("fault", ["flip cuFileWrite bit=4711", "misplace cuFileWrite bytes=4096"])
@in_child()
def test_write_damage_on_the_way_is_seen_in_the_checksums(tmp_path, fault):
    bench = Bench(tmp_path)
    bench.cufile(f"{fault} nth=2")
    file, transfer = bench.save(pattern(LARGE))
    base.wait(transfer)
    scan = bench.engine.scan(file, 0, LARGE, chunk_bytes=CHUNK_BYTES)
    assert scan.chunk_crcs() != transfer.chunk_crcs()


@in_child()
def test_write_memory_that_changed_since_its_checksum_is_an_error(tmp_path):
    bench = Bench(tmp_path, checksums=KnownChecksums(b"something else"))
    _, transfer = bench.save(pattern(1000))
    with pytest.raises(ChecksumError, match="let nothing change the tensors") as raised:
        base.wait(transfer)
    error = raised.value
    assert (error.path, error.offset) == (str(bench.path), 0)
    assert error.expected == zlib.crc32(b"something else")
    assert error.actual == zlib.crc32(pattern(1000))


@in_child()
def test_write_memory_that_was_freed_is_an_error(tmp_path):
    bench = Bench(tmp_path, checksums=KnownChecksums(b""))
    address = bench.memory(pattern(MiB))
    bench.cuda.free(address)
    with pytest.raises(CudaError) as raised:
        bench.write(bench.open(), [Extent(address, MiB, 0, device=0)])
    assert raised.value.op == "cuPointerGetAttribute"


@in_child()
def test_write_device_lost_in_the_middle_is_an_error(tmp_path):
    bench = Bench(tmp_path)
    data = pattern(LARGE)
    file = bench.open()
    address = bench.memory(data)
    # cuFile refuses, so it goes on through the host; that cannot read the device either.
    bench.cufile("fault cuFileWrite code=5011 detail=719 nth=2 count=-1")
    bench.cuda("fault cuMemcpyDtoHAsync code=719 nth=4 count=-1")  # behind the three checksums
    transfer = bench.write(file, [Extent(address, LARGE, 0, device=0)])
    with pytest.raises(CudaError) as raised:
        base.wait(transfer)
    assert raised.value.code == 719
    assert "5011" in file.cufile_refused


@in_child()
def test_read_refused_in_the_middle_goes_on_through_the_host(tmp_path):
    bench = Bench(tmp_path)
    data = pattern(LARGE)
    written(bench, data)
    bench.cufile("fault cuFileRead code=5016 nth=2 count=-1")
    place = bench.memory(bytes(LARGE))
    file = bench.open()
    transfer = bench.read(file, [Extent(place, LARGE, 0, device=0)])
    base.wait(transfer)
    assert bench.cuda.peek(place, LARGE) == data
    assert transfer.cufile_bytes == MiB
    assert crcs(transfer.extent_crcs()) == [zlib.crc32(data)]
    assert "5016" in file.cufile_refused


@in_child()
def test_read_bit_flipped_on_the_way_is_seen_in_the_checksum(tmp_path):
    bench = Bench(tmp_path)
    data = pattern(LARGE)
    written(bench, data)
    bench.cufile("flip cuFileRead bit=4711 nth=2")
    place = bench.memory(bytes(LARGE))
    transfer = bench.read(bench.open(), [Extent(place, LARGE, 0, device=0)])
    assert crcs(transfer.extent_crcs()) == [zlib.crc32(bench.cuda.peek(place, LARGE))]
    assert crcs(transfer.extent_crcs()) != [zlib.crc32(data)]


@in_child()
def test_read_beyond_the_end_of_the_file_is_an_error(tmp_path):
    bench = Bench(tmp_path)
    written(bench, pattern(MiB + 5000))
    place = bench.memory(bytes(LARGE))
    transfer = bench.read(bench.open(), [Extent(place, LARGE, 0, device=0)])
    with pytest.raises(ShortTransferError):
        base.wait(transfer)
    with pytest.raises(ShortTransferError):
        transfer.extent_crcs()


@in_child()
def test_read_can_be_cancelled(tmp_path):
    bench = Bench(tmp_path)
    written(bench, pattern(LARGE))
    bench.cufile("hang cuFileRead")
    transfer = bench.read(bench.open(), [Extent(bench.memory(bytes(LARGE)), LARGE, 0, device=0)])
    bench.cufile.wait_hanging("cuFileRead")
    transfer.cancel()
    assert not transfer.wait(0)
    bench.cufile("release cuFileRead")
    assert transfer.wait(60)
    with pytest.raises(ConfigError):
        transfer.chunk_crcs()


def num_descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


@in_child()
def test_many_transfers_with_random_faults_leave_nothing(tmp_path):
    bench = Bench(tmp_path)
    bench.cufile("set seed=7")
    for code in (5008, 5043, errno.EINTR):
        bench.cufile(f"fault cuFileWrite code={code} permille=60 count=-1")
    bench.cufile("fault cuFileHandleRegister code=5030 permille=100 count=-1")
    bench.cufile("short cuFileWrite bytes=8192 permille=100 count=-1")
    data = pattern(LARGE)
    address = bench.memory(data)
    ways = set()
    fds = num_descriptors()
    for _ in range(60):
        file = bench.open()
        transfer = bench.write(file, [Extent(address, LARGE, 0, device=0)])
        bench.check(transfer, data)
        ways.add((transfer.cufile_bytes > 0, transfer.direct_bytes > 0))
        file.close()
    assert len(ways) == 3  # all by cuFile, all through the host, both
    assert bench.cufile.stat("live.handles") == 0
    assert num_descriptors() == fds
