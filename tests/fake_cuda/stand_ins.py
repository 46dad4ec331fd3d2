"""Stand-ins for libcuda and libcufile: builds them, and drives them from a test.

The libraries are compiled from NVIDIA's own headers, so their functions have the true types. They
are for a process that has not loaded the real ones: their SONAMEs are those of the real ones. A
test starts such a process with ``environment()``, and in it talks to them through ``FakeCuda`` and
``FakeCufile``. What can be asked of them is in ``control.cpp``, ``cuda_control.cpp`` and
``FakeLibrary`` here.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
FLAGS = (
    *("-O1", "-std=c++17", "-fPIC", "-pthread", "-fvisibility=hidden", "-fno-gnu-unique"),
    *("-Wall", "-Wextra", "-Wshadow", "-Werror"),
)
LIBRARIES = {
    "cuda": ("FAKE_CUDA", "libcuda.so.1"),
    "cufile": ("FAKE_CUFILE", "libcufile.so.0"),
}
KINDS = {"device": 0, "mapped": 1, "managed": 2, "pool": 3}
"""How device memory was made: by cuMemAlloc, cuMemMap, cuMemAllocManaged, cuMemAllocAsync."""


def header_directories(*names: str) -> list[Path]:
    """Give the directories of NVIDIA's headers, by default of cuda.h and cufile.h.

    Raises:
        FileNotFoundError: One of them is missing, so the tests are not set up.
    """
    paths = sysconfig.get_paths()
    found = []
    for name in names or ("cuda.h", "cufile.h"):
        for root, pattern in (
            *((Path(paths[key]), "nvidia/*/include") for key in ("purelib", "platlib")),
            (Path("/usr/local"), "cuda*/include"),
        ):
            hits = sorted(root.glob(f"{pattern}/{name}"))
            if hits:
                found.append(hits[-1].parents[name.count("/")])
                break
        else:
            raise FileNotFoundError(
                f"{name} is neither in site-packages/nvidia/*/include nor in"
                " /usr/local/cuda*/include. Install the extra 'test'."
            )
    return list(dict.fromkeys(found))


def _has_cufile(name: str) -> bool:
    """Tell whether cufile.h has a name that came after 1.15."""
    (directory,) = header_directories("cufile.h")
    return name in (directory / "cufile.h").read_text()


@functools.cache
def cufile_version() -> int:
    """Give the version that libcufile's stand-in claims: structures are as in its header."""
    return 1200 if _has_cufile("CUfileIOVec_t") else 1150


def _cufile_defines() -> tuple[str, ...]:
    """Give the flags that say what the stand-in for libcufile is to be, by its header."""
    lacking = (
        ("CUfileIOVec_t", "-DFAKE_WITHOUT_VECTORS"),
        ("CUfileP2PFlags_t", "-DFAKE_WITHOUT_P2P_FLAGS"),
    )
    missing = (flag for name, flag in lacking if not _has_cufile(name))
    return (f"-DFAKE_CUFILE_VERSION={cufile_version()}", *missing)


def _key(sources: Iterable[Path], *more: str) -> str:
    digest = hashlib.sha256()
    for source in sources:
        digest.update(source.read_bytes())
    digest.update("\0".join(more).encode())
    return digest.hexdigest()[:16]


def _cache() -> Path:
    root = Path(tempfile.gettempdir()) / f"gdsckpt-stand-ins-{os.getuid()}"
    root.mkdir(mode=0o700, exist_ok=True)
    return root


def temporary_directory(name: str) -> Path:
    """Make a directory that is removed when this process ends."""
    made = Path(tempfile.mkdtemp(prefix=f"gdsckpt-{name}-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


def run_compiler(*arguments: object) -> None:
    """Run g++; its complaint is the test's failure."""
    done = subprocess.run(["g++", *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"g++ failed:\n{done.stderr}")


def _install(made: Path, target: Path) -> None:
    """Put a finished directory into its place, unless another process was faster."""
    try:
        made.rename(target)
    except OSError:
        shutil.rmtree(made)


@functools.cache
def _objects() -> Path:
    """Compile all sources; gives the directory of the objects."""
    includes = header_directories()
    flags = (*FLAGS, *(f"-isystem{directory}" for directory in includes), *_cufile_defines())
    headers = [path for directory in includes for path in directory.glob("cu*.h")]
    target = _cache() / _key(sorted([*HERE.glob("*.[ch]pp"), *headers]), *flags)
    if target.exists():
        return target
    made = Path(tempfile.mkdtemp(dir=_cache()))
    jobs = []
    for library, (variable, _) in LIBRARIES.items():
        for source in (HERE / "control.cpp", *sorted(HERE.glob(f"{library}_*.cpp"))):
            output = made / f"{library}-{source.stem}.o"
            define = f'-DFAKE_ENVIRONMENT="{variable}"'
            jobs.append((*flags, define, "-c", source, "-o", output))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda job: run_compiler(*job), jobs))
    _install(made, target)
    return target


@functools.cache
def build(library: str, without: tuple[str, ...] = ()) -> Path:
    """Build a stand-in.

    Args:
        library: ``cuda`` or ``cufile``.
        without: Symbols to leave out, as an older library would.

    Returns:
        The path of the shared object.
    """
    objects = _objects()
    name = f"libfake{library}"
    target = objects / f"{name}-{_key([], *without)}" / f"{name}.so"
    if target.exists():
        return target
    made = Path(tempfile.mkdtemp(dir=objects))
    script = made / "symbols.map"
    # A name by itself is stronger than a pattern.
    hidden = "".join(f" {symbol};" for symbol in without)
    script.write_text(f"{{ global: cu*; fake_*; local:{hidden} *; }};\n")
    run_compiler(
        *("-shared", "-pthread", f"-Wl,-soname,{LIBRARIES[library][1]}", "-Wl,-z,nodelete"),
        *(f"-Wl,--version-script={script}", "-o", made / f"{name}.so"),
        *(*sorted(objects.glob(f"{library}-*.o")), "-ldl"),
    )
    _install(made, target.parent)
    return target


def environment(
    cuda: str | None = "", cufile: str | None = "", *, without: Iterable[str] = ()
) -> dict[str, str]:
    """Give the variables that make gdsckpt load the stand-ins.

    Args:
        cuda: Commands for libcuda's from its first call on; None for no libcuda.
        cufile: As ``cuda``, for libcufile's.
        without: Symbols that the libraries are to lack.
    """
    variables = {}
    lacking = tuple(without)
    for library, commands in (("cuda", cuda), ("cufile", cufile)):
        missing = str(HERE / f"there-is-no-lib{library}.so")
        path = missing if commands is None else str(build(library, lacking))
        variables[f"GDSCKPT_LIB{library.upper()}"] = path
        if commands:
            variables[LIBRARIES[library][0]] = commands
    return variables


class FakeLibrary:
    """The control functions that both stand-ins have. Any thread may use it."""

    def __init__(self, path: Path | str) -> None:
        self.library = ctypes.CDLL(str(path))
        self.library.fake_command.argtypes = [ctypes.c_char_p]
        self.library.fake_stat.argtypes = [ctypes.c_char_p]
        self.library.fake_stat.restype = ctypes.c_int64
        self.library.fake_wait_hanging.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_int]

    def __call__(self, command: str) -> None:
        """Run commands, separated by ``;``.

        ``fault F code=C [nth=N] [count=K] [permille=P] [detail=D]``: calls N to N+K-1 of F from
        now on fail with C (K below 0: all of them; P: so many of 1000, at random).
        ``short F bytes=B``, ``flip F bit=B``, ``misplace F bytes=B``: as ``fault``, for transfers.
        ``hang F`` and ``release F``; ``delay F us=U``; ``set NAME=VALUE ...``; ``clear``: no more
        rules and delays. F may be ``*``.

        Of libcuda, also: ``hold`` and ``release [stream=S] [device=D]``, ``step stream=S
        [count=K]``; ``lose device=D [code=C]`` and ``restore``; ``attribute device=D number=A
        value=V``; ``set devices=N driver_version=V memory_bytes=B host_bytes_max=B late_us=U
        hold_new=1 strict=0``. Copies, fills and kernels can fail when they run, and are then called
        ``dtoh``, ``htod``, ``dtod``, ``memset``, ``kernel``: their device is lost with the code.
        """
        if self.library.fake_command(command.encode()) != 0:
            raise ValueError(f"not understood: {command!r}")

    def stat(self, name: str) -> int:
        """Give a count; ``live.*`` are those of what has not been given back."""
        return self.library.fake_stat(name.encode())

    def calls(self, function: str) -> int:
        """Give the number of calls of a function, without its ``_v2``."""
        return self.stat(f"calls.{function}")

    def wait_hanging(self, function: str, num_calls: int = 1, timeout_s: float = 30.0) -> None:
        """Wait until calls of a function hang."""
        if self.library.fake_wait_hanging(function.encode(), num_calls, int(timeout_s * 1000)) != 0:
            raise TimeoutError(f"{num_calls} calls of {function} do not hang")

    def reset(self) -> None:
        """Forget rules, settings and counts; what hangs or is held goes on."""
        self.library.fake_reset()


class FakeCuda(FakeLibrary):
    """Libcuda's stand-in in this process."""

    def __init__(self, path: Path | str) -> None:
        super().__init__(path)
        library = self.library
        library.fake_alloc.argtypes = [ctypes.c_int, ctypes.c_size_t, ctypes.c_int]
        library.fake_alloc.restype = ctypes.c_uint64
        library.fake_free.argtypes = [ctypes.c_uint64]
        for name in ("fake_poke", "fake_peek"):
            getattr(library, name).argtypes = [ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t]

    def alloc(self, nbytes: int, device: int = 0, kind: str = "device") -> int:
        """Make device memory; gives its address. ``kind`` is one of ``KINDS``."""
        address = self.library.fake_alloc(device, nbytes, KINDS[kind])
        if address == 0:
            raise MemoryError(f"{nbytes} bytes of device {device}")
        return address

    def free(self, address: int) -> None:
        """Give device memory back, without the wait that cuMemFree makes."""
        if self.library.fake_free(address) != 0:
            raise ValueError(f"{address:#x} is no allocation")

    def poke(self, address: int, data: bytes | bytearray | memoryview) -> None:
        """Write to device memory, behind the back of all streams."""
        view = (ctypes.c_char * len(data)).from_buffer_copy(data)
        if self.library.fake_poke(address, view, len(data)) != 0:
            raise ValueError(f"{address:#x}: {len(data)} bytes are not in one allocation")

    def peek(self, address: int, nbytes: int) -> bytes:
        """Read device memory, behind the back of all streams."""
        room = ctypes.create_string_buffer(nbytes)
        if self.library.fake_peek(address, room, nbytes) != 0:
            raise ValueError(f"{address:#x}: {nbytes} bytes are not in one allocation")
        return room.raw


class FakeCufile(FakeLibrary):
    """Libcufile's stand-in in this process.

    Settings: ``version``, ``gds`` (0: there is none), ``path`` (0 p2pdma, 1 nvidia-fs),
    ``silent_posix``, ``old_errors`` (negative codes), ``abort_on_open``, ``spin_without_modules``,
    ``bar_bytes``, ``register_mapped``, ``strict`` (0: no transfer needs a context).
    """


@dataclass
class StandIns:
    """Both stand-ins in this process, at the paths that gdsckpt was given."""

    cuda: FakeCuda
    cufile: FakeCufile

    @classmethod
    def loaded(cls) -> StandIns:
        """Open those of ``environment()``."""
        return cls(
            FakeCuda(os.environ["GDSCKPT_LIBCUDA"]), FakeCufile(os.environ["GDSCKPT_LIBCUFILE"])
        )
