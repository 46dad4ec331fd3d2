"""Native core of gdsckpt: checksums, slabs and file transfers.

Addresses, sizes, paths and descriptors cross this line. Every call that can block releases the
GIL; no native thread calls Python. All CRCs are CRC-32 of zip and zlib.
"""

from collections.abc import Sequence
from typing import TypedDict, type_check_only

from typing_extensions import Buffer

NO_CRC_SLOT: int
"""``crc_offset`` of an extent whose checksum is not to be stored in the file (2**64 - 1)."""

HOST: int
"""``device`` of an extent in host memory (2**64 - 1)."""

def crc32(buffer: Buffer, value: int = 0) -> int:
    """CRC-32 of a contiguous buffer, as ``zlib.crc32``.

    Args:
        buffer: The bytes.
        value: CRC of the bytes before; 0 to begin.

    Returns:
        The CRC of both.
    """

def crc32_at(address: int, nbytes: int, value: int = 0) -> int:
    """CRC-32 of memory by address, which the caller keeps readable.

    Raises:
        ConfigError: ``address`` is 0 but ``nbytes`` is not.
    """

def crc32_combine(crc_a: int, crc_b: int, nbytes_b: int) -> int:
    """CRC-32 of A followed by B, from both CRCs and the number of bytes of B."""

def crc32_zeros(nbytes: int) -> int:
    """CRC-32 of ``nbytes`` zero bytes, in time logarithmic in ``nbytes``."""

def crc32_kernels() -> list[str]:
    """Names of the kernels that this processor can run, best first; the first one is used.

    Of ``vpclmulqdq``, ``pclmulqdq`` (x86-64), ``armv8-crc`` (aarch64) and ``table`` (everywhere).
    """

def crc32_with(kernel: str, buffer: Buffer, value: int = 0) -> int:
    """``crc32`` by a named kernel, for tests.

    Raises:
        ConfigError: ``kernel`` is not one of ``crc32_kernels()``.
    """

def copy_crc32_with(kernel: str, dest: Buffer, source: Buffer) -> int:
    """Copy ``source`` to ``dest`` and return the CRC-32 of the bytes copied, for tests.

    Args:
        kernel: One of ``crc32_kernels()``.
        dest: Writable, of the length of ``source``, not overlapping it.
        source: Each byte is read once.

    Raises:
        ConfigError: The kernel is not usable here, or the lengths differ.
    """

def fallocate(fd: int, nbytes: int) -> bool:
    """Reserve disk space for bytes [0, nbytes); the file gets at least that long.

    Returns:
        False where the file system cannot (EOPNOTSUPP, ENOSYS): go on without.

    Raises:
        StorageError: Any other failure, such as ENOSPC.
    """

def advise_hugepages(address: int, nbytes: int) -> None:
    """Ask for huge pages (MADV_HUGEPAGE) on the whole pages inside a range of memory.

    Only advice: a refusal changes nothing but speed and is not reported.
    """

def populate(address: int, nbytes: int) -> None:
    """Have the whole pages inside a range of memory provided now (MADV_POPULATE_WRITE).

    Their content stays. Threads that write to them later meet no page faults. Only advice, as
    above: kernels before 5.14 do nothing.
    """

def direct_alignment(fd: int) -> int:
    """Alignment in bytes that direct I/O on this file needs of memory and offsets.

    Returns:
        4096 where the kernel does not tell, 0 where it says that there is no direct I/O.

    Raises:
        StorageError: ``fd`` is not open.
    """

def gather(rows: Buffer, *, streams: Buffer | None = None) -> None:
    """Copy memory to host memory, with as many threads as help; returns when all is there.

    Args:
        rows: A buffer of unsigned 64-bit numbers, rows of (source, dest, nbytes, device); ``dest``
            is in host memory and overlaps nothing else.
        streams: As for ``Engine.write``: what makes the contents of device memory.

    Raises:
        ConfigError: A row has bytes and an address of 0.
        EngineUnavailableError: A source is on a device, and CUDA cannot be used.
        CudaError: A copy failed.
        MemoryError: There is no memory for the plan.
    """

def splice_pickle(pickle: bytes, rows: Buffer, pieces: list[bytes]) -> bytes:
    """Give a pickle in which tensors stand in the place of their numbers.

    Each becomes ``rebuild(storage, offset, size, stride, requires_grad, None[, dtype])``, with
    the persistent id ``("storage", storage_type, str(key), location, numel)`` for the storage. A
    tensor that is named more than once is one object.

    Args:
        pickle: Of protocol 2; the persistent id of tensor ``n`` is the number ``n``. Other
            persistent ids that are no whole numbers stay.
        rows: A buffer of unsigned 64-bit numbers, a row per tensor of (rebuild, storage_type,
            dtype, key, location, numel, offset, size, stride, requires_grad). Rebuild,
            storage_type, dtype, location, size and stride are indices of pieces; dtype is
            2**64 - 1 where it is left out.
        pieces: Opcodes that push one object each and put nothing into the memo.

    Raises:
        ConfigError: It is no such pickle, or names a tensor or piece that is not there.
    """

def sample_crcs(rows: Buffer, seed: int) -> bytes:
    """CRC-32 of blocks that stand for the memory around them, native-endian uint32.

    Every MiB of each row has one, of at most 4096 bytes; which one depends on ``seed``, the number
    of the row and the MiB.

    Args:
        rows: A buffer of unsigned 64-bit numbers, rows of (number, address, nbytes), in host
            memory.
        seed: Any unsigned 64-bit number.

    Returns:
        The checksums in the order of the rows and then of the addresses.
    """

def sample_blocks(rows: Buffer, seed: int) -> bytes:
    """Tell where the blocks of ``sample_crcs`` lie, in the same order; the memory is not read.

    Returns:
        Rows of unsigned 64-bit numbers: (index of the row, offset in its memory, nbytes).
    """

def zip_local_headers(prefix: str, numbers: Buffer, nbytes: Buffer) -> bytes:
    """Encode the local headers of zip records, as ``zipfmt.local_header`` does with a CRC of 0.

    Args:
        prefix: What all names begin with; the number of the record follows.
        numbers: A buffer of unsigned 64-bit numbers: one per record.
        nbytes: Likewise: the size of each payload.

    Returns:
        The headers, one after the other.

    Raises:
        ConfigError: A column is no such buffer or not as long as ``numbers``, or ``prefix`` is too
            long for a name.
    """

def zip_central_entries(
    prefix: str, numbers: Buffer, nbytes: Buffer, crcs: Buffer, header_offsets: Buffer
) -> bytes:
    """Encode entries of the central directory, as ``zipfmt.central_entry`` does.

    Args:
        prefix: As for ``zip_local_headers``; likewise ``numbers`` and ``nbytes``.
        numbers: As above.
        nbytes: As above.
        crcs: A buffer of unsigned 32-bit numbers: the CRC-32 of each payload.
        header_offsets: A buffer of unsigned 64-bit numbers: where in the file each local header is.

    Raises:
        ConfigError: As for ``zip_local_headers``.
    """

class HostMemory:
    """Host memory of our own whose pages are there, freed with the object.

    A forked child has none of it.
    """

    def __init__(self, nbytes: int, device: int = ...) -> None:
        """Allocate.

        Args:
            nbytes: At least 1.
            device: CUDA's number of a GPU: page-locked for copies from all GPUs, near this one. Or
                ``HOST``.

        Raises:
            MemoryError: There is not that much.
            EngineUnavailableError: CUDA cannot be used.
            CudaError: The device cannot be used.
        """

    @property
    def address(self) -> int:
        """Address of the first byte, which begins a page."""

    @property
    def nbytes(self) -> int:
        """Size in bytes."""

    @property
    def pin_refused(self) -> str:
        """Why it could not be page-locked, so that copies are slower; empty if it could."""

def nvtx_compiled() -> bool:
    """Tell whether NVTX's headers were there at build time; without, ranges do nothing."""

class NvtxRange:
    """A range of NVTX domain ``gdsckpt``, open in the body of a ``with``; for one thread.

    No signal handler runs between its opening and the body, so an interrupt leaves none open.
    """

    def __init__(self, name: str, nbytes: int = 0) -> None:
        """Describe a range.

        Args:
            name: ``plan``, ``stage``, ``copy``, ``checksum``, ``write``, ``sync``, ``commit``,
                ``upload`` or ``read``.
            nbytes: The payload; 0 gives none.

        Raises:
            ConfigError: There is no such name.
        """

    def __enter__(self) -> None:
        """Open the range."""

    def __exit__(self, *raised: object) -> None:
        """Close the range that the thread opened last."""

def cuda_load(path: str = "") -> str:
    """Load CUDA's driver and initialise it, once for the process.

    Args:
        path: The library instead of ``libcuda.so.1``; only the first call's counts.

    Returns:
        Why CUDA cannot be used, or an empty text.
    """

def cuda_version() -> int:
    """CUDA version of the driver: 1000 * major + 10 * minor.

    Raises:
        EngineUnavailableError: CUDA cannot be used.
    """

def cuda_devices() -> list[dict[str, str | int | bool]]:
    """Facts of each GPU that this process sees, in CUDA's order.

    ``name``, ``pci_bus_id``, ``uuid`` (32 hex digits), ``numa_node`` (-1: unknown),
    ``compute_capability`` (90 for 9.0), ``has_gpu_direct_rdma``, ``is_coherent_with_host`` (Grace).

    Raises:
        EngineUnavailableError: CUDA cannot be used.
    """

def cuda_device_of(address: int) -> int:
    """Give the number of the GPU that an address belongs to.

    Raises:
        EngineUnavailableError: CUDA cannot be used.
        CudaError: The address is no device's.
    """

def cuda_copy_to_host(
    dest: int, device: int, address: int, nbytes: int, *, streams: Buffer | None = None
) -> None:
    """Copy device memory to host memory at ``dest``; ``streams`` as for ``Engine.write``.

    Raises:
        EngineUnavailableError: CUDA cannot be used.
        CudaError: The copy failed.
    """

def cuda_copy_to_device(
    device: int, address: int, source: int, nbytes: int, *, streams: Buffer | None = None
) -> None:
    """Copy host memory at ``source`` to device memory. Raises as ``cuda_copy_to_host``."""

class StreamFence:
    """The ends of what is queued on streams when it is made. Any thread may use it."""

    def __init__(self, extents: Buffer, streams: Buffer) -> None:
        """Mark the streams of those devices that ``extents`` are on; both as for ``Engine.write``.

        Raises:
            ConfigError: One of them is no such buffer.
            EngineUnavailableError: CUDA cannot be used.
            CudaError: CUDA refused a stream.
        """

    def wait(self) -> None:
        """Wait until all of it is done.

        Raises:
            CudaError: A device was lost, or its work failed.
        """

class DeviceMemory:
    """Device memory of our own, freed with the object."""

    def __init__(self, device: int, nbytes: int) -> None:
        """Allocate.

        Raises:
            EngineUnavailableError: CUDA cannot be used.
            CudaError: There is not that much.
        """

    @property
    def address(self) -> int:
        """Address on the device."""

    @property
    def nbytes(self) -> int:
        """Size in bytes."""

def cuda_wait(streams: Buffer | None) -> None:
    """Wait until what is queued now on streams, as of ``Engine.write``, is done.

    Raises:
        EngineUnavailableError: CUDA cannot be used.
        CudaError: The work on a stream failed.
    """

def cufile_load(candidates: Sequence[str]) -> str:
    """Load libcufile, once for the process; nothing is opened.

    Args:
        candidates: Paths and names to try in this order; only the first call's count. Where
            ``libcufile.so.0`` is one of them, a library that the process has loaded under this name
            comes first: two would be two drivers.

    Returns:
        Why cuFile cannot be used, or an empty text.
    """

def cufile_open(
    *,
    allow_compat_mode: bool = False,
    request_p2pdma: bool = True,
    private_log: bool = True,
    stats_level: int = 3,
    max_direct_io_bytes: int = 16777216,
    modules_path: str = "/proc/modules",
) -> None:
    """Open cuFile's driver, once: when it is open, the options of the first call stay.

    May hang where the driver is broken: try it in a child process first.

    Args:
        allow_compat_mode: cuFile may send bytes through the host; for tests only.
        request_p2pdma: Ask for DMA by the kernel's own means, which comes before nvidia-fs, unless
            the environment decides that (CUFILE_USE_PCIP2PDMA).
        private_log: Keep the log in memory, unless the user has said where it goes
            (CUFILE_LOGFILE_PATH, cufile.json). Otherwise cuFile makes a ``cufile.log`` in the
            working directory.
        stats_level: 0 to 3; which way the bytes go is counted at 3 only.
        max_direct_io_bytes: Largest request that cuFile does not split.
        modules_path: What has to exist, for cuFile waits for it in an endless loop.

    Raises:
        EngineUnavailableError: The driver or the library cannot be used, or belongs to the parent
            process.
    """

def cufile_close() -> None:
    """End the registration of every file and close the driver; requests that run are waited for.

    Does nothing when it is not open. At the end of the interpreter this is done by itself, after
    the engines were closed (atexit).

    Raises:
        CuFileError: The driver could not be closed.
        EngineUnavailableError: It belongs to the parent process.
    """

def cufile_facts() -> CuFileFacts:
    """Tell what is known of the library and its driver.

    Raises:
        EngineUnavailableError: There is no library, or it belongs to the parent process.
    """

def cufile_stats() -> CuFileStats:
    """Tell which way requests of this process went so far, as the library counts them.

    Raises:
        EngineUnavailableError: The driver is not open, or cannot count.
        CuFileError: It refuses to tell.
    """

def cufile_last_error() -> str:
    """Give what cuFile logged last as an error, or an empty text; it is told once.

    Raises:
        EngineUnavailableError: There is no library, or it belongs to the parent process.
    """

@type_check_only
class CuFileFacts(TypedDict):
    """See ``cufile_facts``.

    Attributes:
        path: The library.
        version: 1000 * major + 10 * minor.
        is_open: Whether the driver is open.
        allows_compat_mode: Whether cuFile may send bytes through the host without telling.
        max_direct_io_bytes: Largest request that it does not split.
        notes: What did not go as asked, as sentences.
    """

    path: str
    version: int
    is_open: bool
    allows_compat_mode: bool
    max_direct_io_bytes: int
    notes: list[str]

@type_check_only
class CuFileStats(TypedDict):
    """Numbers of requests of all GPUs, by the way they went: see ``cufile_stats``."""

    p2p_reads: int
    nvfs_reads: int
    posix_reads: int
    read_errors: int
    p2p_writes: int
    nvfs_writes: int
    posix_writes: int
    write_errors: int

class File:
    """What a transfer needs to know of an open file.

    Has duplicates of the descriptors: whatever interrupts its maker, no transfer works on a number
    that has become another file. After a refusal of direct I/O (EINVAL, EOPNOTSUPP) all its
    transfers go on buffered.
    """

    def __init__(
        self, path: str, buffered_fd: int, direct_fd: int = -1, alignment: int = 4096
    ) -> None:
        """Describe an open file.

        Args:
            path: For messages and errors only.
            buffered_fd: Descriptor without O_DIRECT.
            direct_fd: Descriptor of the same file with O_DIRECT, or -1 for none.
            alignment: What direct I/O needs, a power of two from 1 to 65536.

        Raises:
            ConfigError: ``alignment`` is something else.
            StorageError: There are no more descriptors.
        """

    def close(self) -> None:
        """Let the descriptors go as soon as no transfer uses them. A second call does nothing."""

    def abandon(self) -> None:
        """Close a forked child's copies of the descriptors: the transfers are the parent's."""

    @property
    def path(self) -> str:
        """The path as given."""

    @property
    def buffered_fd(self) -> int:
        """The object's own descriptor without O_DIRECT; -1 once it is closed."""

    @property
    def alignment(self) -> int:
        """What direct I/O needs of memory and offsets, in bytes."""

    @property
    def is_direct(self) -> bool:
        """True while direct I/O is there and has not been refused."""

    @property
    def direct_refused(self) -> str:
        """Why direct I/O was given up; empty if it was not."""

    def attach_cufile(self) -> bool:
        """Register the file with cuFile, once: later transfers of device memory go that way.

        Only large aligned parts do, of memory that is fit for it; the rest goes through the host,
        and so does all of it when cuFile refuses a request.

        Returns:
            False where cuFile does not take the file; ``cufile_refused`` tells why.

        Raises:
            EngineUnavailableError: The driver is not open, or belongs to the parent process.
        """

    @property
    def cufile_refused(self) -> str:
        """Why cuFile was given up for this file; empty if it was not."""

    @property
    def cufile_skipped(self) -> str:
        """Why some memory was not given to cuFile; empty if all could be."""

class Transfer:
    """A write, read or scan that is under way. Any thread may use it.

    Letting go of it cancels the transfer and waits for its end. In a forked child every method
    raises EngineUnavailableError.
    """

    def wait(self, timeout_s: float) -> bool:
        """Wait up to ``timeout_s`` seconds; True when ended, well or not. Signals are handled."""

    def cancel(self) -> None:
        """Drop the jobs that have not been started; running ones go to their end.

        The transfer then fails with ECANCELED, unless it had already ended.
        """

    def result(self) -> None:
        """Wait for the end and raise the first thing that went wrong.

        Raises:
            StorageError: The kernel refused an operation; or ``errno`` ECANCELED after a cancel.
            ShortTransferError: The file ended before its time, or took no more bytes.
            ConfigError: A CRC slot holds bytes that are not zero.
            ChecksumError: Device memory is not what it was when ``device_crcs`` were taken.
            CudaError: A copy to or from a device failed.
        """

    @property
    def done_bytes(self) -> int:
        """File bytes done so far."""

    @property
    def total_bytes(self) -> int:
        """File bytes of the whole transfer; of a read, those of its extents."""

    @property
    def prefix_bytes(self) -> int:
        """Bytes from the beginning of a write below which all is done: their source was read.

        0 while the first chunk is at work, and for reads and scans.
        """

    @property
    def buffered_bytes(self) -> int:
        """Of the bytes done, those that went through the page cache."""

    @property
    def direct_bytes(self) -> int:
        """Of the bytes done, those that went by direct I/O."""

    @property
    def cufile_bytes(self) -> int:
        """Of the bytes done, those that cuFile moved, past the host."""

    def extent_crcs(self) -> bytes:
        """CRC-32 of each extent of a write or read, native-endian uint32, in the order given.

        For a write, of the bytes taken from memory: zeros where a CRC slot lies in an extent. For a
        read, 0 where cuFile brought bytes of the extent to a device: the host has not seen them.
        Waits for the end and raises as ``result``.

        Raises:
            ConfigError: The transfer is a scan.
        """

    def chunk_crcs(self) -> bytes:
        """CRC-32 of each chunk of a write or scan, native-endian uint32, in file order.

        Of the bytes as they stand in the file, CRC slots included; a chunk is clipped to the
        range of the transfer. Waits for the end and raises as ``result``.

        Raises:
            ConfigError: The transfer is a read.
        """

class Engine:
    """Threads and slabs that move bytes between memory and files. Any thread may use it.

    Transfers are queued and run in the order given. ``extents`` is a C-contiguous buffer of
    unsigned 64-bit numbers, rows of (address, nbytes, file_offset, crc_offset, device), ascending
    by file_offset and not overlapping; ``device`` is CUDA's number of a GPU, or ``HOST``. Their
    memory must stay valid until the transfer has ended. In a forked child every method raises
    EngineUnavailableError; a child may make its own engine, for host memory. An engine that is left
    open is closed when the interpreter ends (atexit).

    Device memory goes through page-locked slabs, by copies on streams of the transfer's own.
    ``streams`` is a buffer of rows of (device, CUDA stream, 0 for the default one), or None: the
    copies begin after what is queued on these streams at the call.
    """

    def __init__(self, *, io_threads: int, slab_bytes: int, num_slabs: int) -> None:
        """Start the threads; slabs are mapped when first needed.

        Args:
            io_threads: Threads, at least 1.
            slab_bytes: Size of a slab, a multiple of 64 KiB and at least every ``chunk_bytes``.
            num_slabs: Slabs at most, at least 1; fewer than ``io_threads`` make threads wait.

        Raises:
            ConfigError: A value is out of bounds.
            MemoryError: The threads cannot be started.
        """

    def write(
        self,
        file: File,
        extents: Buffer,
        *,
        chunk_bytes: int,
        streams: Buffer | None = None,
        device_crcs: Buffer | None = None,
        owner: object = None,
    ) -> Transfer:
        """Write extents, and zeros between them, from the first to the last byte named.

        Args:
            file: Where to.
            extents: ``crc_offset`` is where the file gets the extent's CRC-32, 4 bytes
                little-endian, or ``NO_CRC_SLOT``. A slot lies in the range written, before its
                extent, over 4 zero bytes.
            chunk_bytes: Unit of I/O and of checksums, a multiple of the file's alignment; cuts at
                multiples of the file offset.
            streams: What the contents of device memory wait for.
            device_crcs: CRC-32 of device memory, taken on the device: unsigned 32-bit numbers, one
                for each piece of the extents on devices, in their order, which are cut at multiples
                of ``chunk_bytes`` of the file offset; or None. What is gathered through the host is
                compared with them. Without them nothing goes by cuFile.
            owner: Kept alive until the transfer has ended: whatever keeps the memory alive.

        Raises:
            ConfigError: Extents or ``chunk_bytes`` cannot be.
            EngineUnavailableError: The engine is closed or belongs to the parent process; or an
                extent is on a device and there is no CUDA.
            CudaError: CUDA refused a stream.
        """

    def read(
        self,
        file: File,
        extents: Buffer,
        *,
        gap_bytes: int = 65536,
        streams: Buffer | None = None,
        owner: object = None,
    ) -> Transfer:
        """Read extents to their addresses; ``crc_offset`` is ignored.

        Args:
            file: Where from.
            extents: What to read.
            gap_bytes: Neighbours with a hole of at most this many bytes are read together.
            streams: As for ``write``: what used the memory before.
            owner: As for ``write``.

        Raises:
            ConfigError: The extents cannot be.
            EngineUnavailableError: As for ``write``.
            CudaError: CUDA refused a stream.
        """

    def scan(self, file: File, begin: int, end: int, *, chunk_bytes: int) -> Transfer:
        """Checksum the chunks of bytes [begin, end) of a file; chunks as for ``write``.

        Raises:
            ConfigError: The range or ``chunk_bytes`` cannot be.
            EngineUnavailableError: The engine is closed or belongs to the parent process.
        """

    @property
    def pin_refused(self) -> str:
        """Why slabs could not be page-locked, so that copies are slower; empty if they could."""

    def close(self) -> None:
        """Cancel the transfers that run, wait for their ends, join the threads, free the slabs.

        A second call does nothing.
        """
