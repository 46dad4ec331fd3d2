"""What a child process of a probe does: all that may hang or end a process.

Only ``probe_process`` starts it. It tells each step before it takes it, so that whoever waits knows
which one did not come back.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import importlib
import json
import mmap
import os
import re
import signal
import sys
import tempfile
import time
import zlib
from array import array
from collections.abc import Callable, Mapping
from typing import Any

from gdsckpt import native
from gdsckpt.errors import CudaError, EngineUnavailableError, GdsckptError

TRIAL_BYTES = 16 << 20
"""One request, as saves make them."""

RACE_BYTES = 64 << 20
_ALIGNMENT = 64 << 10
_GRACE_S = 5
_NO_ROOM_CODES = (2, 46)  # CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_DEVICE_UNAVAILABLE of cuda.h
_NO_ROOM_MEND = (
    "The trial is a second process on the GPU and takes some hundred MiB of its memory. Run "
    "'gdsckpt probe' on the directory before: it is remembered until the machine starts anew."
)
_PASSING_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EMFILE, errno.ENFILE)

# cuFile's errors end with their number in parentheses, CUDA's and the log's words; then the mend.
_MEND = re.compile(r"(?<=\d\))((?: with CUDA error \d+)?(?:; cuFile logged '.*?')?)\. ?")


class _FailedError(Exception):
    """What was tried does not work here."""

    def __init__(self, reason: str, mend: str = "", *, is_passing: bool = False) -> None:
        super().__init__(reason)
        self.mend = mend
        self.is_passing = is_passing


class _Teller:
    """Writes messages to the parent, one line each."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def tell(self, **message: object) -> None:
        """Send one message; a parent that is gone does not matter."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._fd, json.dumps(message).encode() + b"\n")

    def doing(self, what: str) -> None:
        """Say what comes next."""
        self.tell(doing=what)

    def found(self, **facts: object) -> None:
        """Say what was found out."""
        self.tell(found=facts)


def main(fd: int) -> None:
    """Do what stdin asks for, and tell about it on a descriptor."""
    document = json.load(sys.stdin)
    # Not even a parent that was killed leaves a child that spins for ever.
    signal.alarm(int(document["limit_s"]) + _GRACE_S)
    teller = _Teller(fd)
    task = _TASKS[document["what"]]
    try:
        task(document["arguments"], teller)
    except _FailedError as error:
        teller.tell(failure=str(error), mend=error.mend, is_passing=error.is_passing)
    except (GdsckptError, OSError, MemoryError) as error:
        _tell_error(teller, error)
    else:
        teller.tell(finished=True)
    teller.doing("the end of the process")


def _tell_error(teller: _Teller, error: Exception) -> None:
    reason, mend = _split_mend(str(error) or type(error).__name__)
    if isinstance(error, EngineUnavailableError) and error.reasons:
        reason = error.reasons[0]
        mend = str(error).partition(f"{reason}. ")[2]
    has_no_room = isinstance(error, CudaError) and error.code in _NO_ROOM_CODES
    if has_no_room:
        mend = _NO_ROOM_MEND
    is_passing = (
        isinstance(error, MemoryError)
        or has_no_room
        or (isinstance(error, OSError) and error.errno in _PASSING_ERRNOS)
    )
    teller.tell(failure=reason, mend=mend, is_passing=is_passing)


def _split_mend(text: str) -> tuple[str, str]:
    found = _MEND.search(text)
    return (text[: found.end(1)], text[found.end() :]) if found else (text.rstrip("."), "")


def _look(arguments: Mapping[str, Any], teller: _Teller) -> None:
    """Load CUDA's driver and cuFile, and describe them."""
    with contextlib.suppress(_FailedError):  # told; cuFile can be looked at without
        _look_at_cuda(arguments, teller)
    teller.doing("loading libcufile")
    why = native.cufile_load(list(arguments["candidates"]))
    teller.found(cufile_missing=why)
    if not why:
        facts = native.cufile_facts()
        teller.found(cufile_path=facts["path"], cufile_version=facts["version"])


def _look_at_cuda(arguments: Mapping[str, Any], teller: _Teller) -> None:
    teller.doing("cuInit")
    why = native.cuda_load(str(arguments["libcuda"]))
    teller.found(cuda_missing=why)
    if why:
        raise _FailedError(why)
    teller.found(cuda_version=native.cuda_version(), devices=native.cuda_devices())


def _checksums(arguments: Mapping[str, Any], teller: _Teller) -> None:
    """Take a checksum on a GPU, and compare it with zlib's."""
    sys.path[:] = arguments["folders"]
    _load_cuda(arguments, teller)
    from gdsckpt import kernels

    sample = os.urandom((1 << 20) + 3)
    memory = native.DeviceMemory(0, len(sample))
    _to_device(memory.address, 0, sample)
    teller.doing("the compilation of the checksum kernel")
    (found,) = kernels.crc32_pieces([(memory.address, len(sample))], 0)
    if found != zlib.crc32(sample):
        raise _FailedError("the checksum that the GPU took is not zlib's")


def _trial(arguments: Mapping[str, Any], teller: _Teller) -> None:
    """Write and read device memory by cuFile, and see which way the bytes went."""
    _load_cuda(arguments, teller)
    device = _find_device(str(arguments["uuid"]))
    teller.doing("loading libcufile")
    why = native.cufile_load(list(arguments["candidates"]))
    if why:
        raise _FailedError(why, "Install nvidia-cufile 1.15 or newer (CUDA 13).")
    facts = native.cufile_facts()
    teller.found(library=facts["path"], version=facts["version"])
    teller.doing("cuFileDriverOpen")
    native.cufile_open(modules_path=str(arguments["modules_path"]))
    if native.cufile_facts()["allows_compat_mode"]:
        raise _FailedError("cuFile's compatibility mode cannot be switched off")
    with _Bench(str(arguments["path"]), device, int(arguments["io_threads"])) as bench:
        _prove(bench, teller)
        if float(arguments["race_s"]) > 0:
            _race(bench, float(arguments["race_s"]), teller)
    teller.doing("cuFileDriverClose")
    native.cufile_close()


def _load_cuda(arguments: Mapping[str, Any], teller: _Teller) -> None:
    teller.doing("cuInit")
    why = native.cuda_load(str(arguments["libcuda"]))
    if why:
        raise _FailedError(why)


def _find_device(uuid: str) -> int:
    for number, facts in enumerate(native.cuda_devices()):
        if facts["uuid"] == uuid:
            return number
    raise _FailedError("a process started now does not see this GPU: CUDA_VISIBLE_DEVICES changed")


class _Bench:
    """A file, two buffers of device memory and an engine; everything a trial works with."""

    def __init__(self, path: str, device: int, io_threads: int) -> None:
        self.device = device
        self.sample = os.urandom(TRIAL_BYTES)
        self._memories: list[native.DeviceMemory] = []
        self._stack = contextlib.ExitStack()
        try:
            self._fds = [self._open(path, flags) for flags in (0, os.O_DIRECT)]
            native.fallocate(self._fds[0], RACE_BYTES)
            self.path = path
            self.engine = native.Engine(
                io_threads=io_threads, slab_bytes=TRIAL_BYTES, num_slabs=io_threads
            )
            self._stack.callback(self.engine.close)
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> _Bench:
        return self

    def __exit__(self, *_raised: object) -> None:
        self._stack.close()
        self._memories.clear()

    def _open(self, path: str, flags: int) -> int:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | flags)
        self._stack.callback(os.close, fd)
        return fd

    def file(self) -> native.File:
        """Describe the file anew: registered with nothing yet."""
        alignment = native.direct_alignment(self._fds[1]) or 4096
        file = native.File(self.path, self._fds[0], self._fds[1], alignment)
        self._stack.callback(file.close)
        return file

    def memory(self, nbytes: int) -> int:
        """Allocate aligned device memory; gives its address."""
        memory = native.DeviceMemory(self.device, nbytes + _ALIGNMENT)
        self._memories.append(memory)
        return -(-memory.address // _ALIGNMENT) * _ALIGNMENT

    def rows(self, address: int, nbytes: int) -> array[int]:
        """Pack the one extent of a transfer."""
        return array("Q", (address, nbytes, 0, native.NO_CRC_SLOT, self.device))

    def write(self, file: native.File, rows: array[int]) -> native.Transfer:
        """Write device memory that holds the sample, once or several times, to the file."""
        num_pieces = rows[1] // TRIAL_BYTES
        crcs = array("I", [native.crc32(self.sample)] * num_pieces)
        transfer = self.engine.write(file, rows, chunk_bytes=TRIAL_BYTES, device_crcs=crcs)
        transfer.result()
        return transfer

    def stored(self) -> bytes:
        """Read what has come to the drive, past the page cache."""
        with mmap.mmap(-1, TRIAL_BYTES) as room:  # aligned
            os.preadv(self._fds[1], [room], 0)
            return room[:]


def _address_of(buffer: bytearray) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def _to_device(address: int, device: int, content: bytes) -> None:
    room = bytearray(content)
    native.cuda_copy_to_device(device, address, _address_of(room), len(room))


def _prove(bench: _Bench, teller: _Teller) -> None:
    teller.doing("the allocation of GPU memory")
    source, target = bench.memory(TRIAL_BYTES), bench.memory(TRIAL_BYTES)
    _to_device(source, bench.device, bench.sample)
    file = bench.file()
    teller.doing("cuFileHandleRegister")
    file.attach_cufile()
    _require_accepted(file)
    teller.doing("cuFileWrite")
    transfer = bench.write(file, bench.rows(source, TRIAL_BYTES))
    _require_accepted(file)
    _require_all(file, transfer)
    teller.doing("reading back what cuFileWrite wrote")
    if bench.stored() != bench.sample:
        raise _FailedError("cuFileWrite reported success, but other bytes are in the file")
    teller.doing("cuFileRead")
    transfer = bench.engine.read(file, bench.rows(target, TRIAL_BYTES))
    transfer.result()
    _require_accepted(file)
    _require_all(file, transfer)
    room = bytearray(TRIAL_BYTES)
    native.cuda_copy_to_host(_address_of(room), bench.device, target, TRIAL_BYTES)
    if room != bench.sample:
        raise _FailedError("cuFileRead reported success, but other bytes are in GPU memory")
    teller.doing("cuFileGetStatsL3")
    teller.found(way=_way_taken(dict[str, int](**native.cufile_stats())))


def _require_accepted(file: native.File) -> None:
    if file.cufile_refused:
        raise _FailedError(*_split_mend(file.cufile_refused))


def _require_all(file: native.File, transfer: native.Transfer) -> None:
    if transfer.cufile_bytes != TRIAL_BYTES:
        why = file.cufile_skipped or "its place is not aligned"
        raise _FailedError(f"GPU memory did not go by cuFile: {why}")


def _way_taken(stats: Mapping[str, int]) -> str:
    """Name the direct path, or fail: register and write succeed also where there is none."""
    posix = stats["posix_writes"] + stats["posix_reads"]
    ways = {
        "p2pdma": min(stats["p2p_writes"], stats["p2p_reads"]),
        "nvidia-fs": min(stats["nvfs_writes"], stats["nvfs_reads"]),
    }
    taken = [name for name, count in ways.items() if count]
    if posix or not taken:
        counted = ", ".join(f"{name} {count}" for name, count in stats.items() if count)
        raise _FailedError(
            "cuFile moved the bytes through host memory and did not say so "
            f"(statistics: {counted or 'nothing counted'})",
            "Run 'gdsckpt probe' on the directory: nvidia_fs and p2pdma tell what is missing.",
        )
    return taken[0]


def _race(bench: _Bench, seconds: float, teller: _Teller) -> None:
    """Write by cuFile and by pinned in turn, for about so long."""
    teller.doing("the race")
    try:
        rows = bench.rows(bench.memory(RACE_BYTES), RACE_BYTES)
    except CudaError as error:
        teller.found(race_failure=_split_mend(str(error))[0])
        return
    for begin in range(0, RACE_BYTES, TRIAL_BYTES):
        _to_device(rows[0] + begin, bench.device, bench.sample)
    by_cufile, by_pinned = bench.file(), bench.file()
    by_cufile.attach_cufile()
    files = {"cufile": by_cufile, "pinned": by_pinned}
    spent_s = dict.fromkeys(files, 0.0)
    num_rounds = 0
    for file in files.values():  # slabs are pinned, blocks of the file written for the first time
        bench.write(file, rows)
    while not by_cufile.cufile_refused and sum(spent_s.values()) < seconds:
        for name, file in files.items():
            started = time.perf_counter()
            bench.write(file, rows)
            spent_s[name] += time.perf_counter() - started
        num_rounds += 1
    if by_cufile.cufile_refused:
        teller.found(race_failure=_split_mend(by_cufile.cufile_refused)[0])
        return
    nbytes = num_rounds * RACE_BYTES
    teller.found(**{f"{name}_bytes_per_s": nbytes / spent_s[name] for name in files})


def _kvikio(arguments: Mapping[str, Any], teller: _Teller) -> None:
    """Open a file by KvikIO, and with it cuFile's driver. Only what ends or hangs is a failure."""
    sys.path[:] = arguments["sys_path"]
    os.environ["KVIKIO_COMPAT_MODE"] = arguments["compat_mode"]
    teller.doing("loading libcuda")
    why = native.cuda_load(arguments["libcuda"])
    if why:
        raise _FailedError(why)
    if arguments["libcufile"]:
        ctypes.CDLL(arguments["libcufile"])  # KvikIO finds the loaded one, by its name
    teller.doing("opening a file by KvikIO")
    kvikio = importlib.import_module("kvikio")
    with tempfile.NamedTemporaryFile() as file, contextlib.suppress(RuntimeError):
        kvikio.CuFile(file.name, "r+").close()


_TASKS: dict[str, Callable[[Mapping[str, Any], _Teller], None]] = {
    "look": _look,
    "checksums": _checksums,
    "kvikio": _kvikio,
    "trial": _trial,
}
