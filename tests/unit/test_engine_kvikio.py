"""The kvikio engine over the stand-ins: KvikIO itself is the real one."""

import functools

import pytest
from kvikio_runs import check
from with_kvikio import needs_kvikio

pytestmark = needs_kvikio


@pytest.fixture
def run(tmp_path):
    return functools.partial(check, tmp_path)


@pytest.fixture
def run_cufile(tmp_path):
    """Run with cuFile's stand-in under KvikIO, whose own way through the host is off."""
    allow = 'kvikio_library._MODULES = Path("/proc/self/maps")'
    return functools.partial(check, tmp_path, allow, variables={"KVIKIO_COMPAT_MODE": "OFF"})


def test_write_large_extent_goes_by_kvikio_and_the_odd_ends_do_not(run):
    run("""
engine, _ = engines()
data = random.Random(1).randbytes(3 * MiB + 777)
address = memory(data, offset=100)
file = opened()
transfer = finish(write(engine, file, [Extent(address, len(data), 4196, NO_SLOT, 0)]))
assert by_kvikio(transfer)
assert Path("file").read_bytes() == bytes(4196) + data
assert array("I", transfer.extent_crcs()).tolist() == [zlib.crc32(data)]
assert transfer.done_bytes == transfer.total_bytes == len(data)
assert transfer.buffered_bytes + transfer.direct_bytes == len(data)
moved = cuda.calls("cuMemcpyBatchAsync"), cuda.calls("cuMemcpyDtoHAsync")
assert moved == (7, 2)  # one task of KvikIO for each chunk; the head and the tail
assert cuda.stat("pageable_copies") == 0
""")


MIXED = """
rng = random.Random(7)
engine, pinned = engines()


def layout():
    extents, place = [], rng.choice([0, 1, 4096, 70_000])
    for _ in range(rng.randrange(1, 9)):
        nbytes = rng.choice([0, 1, 100, 4096, 300_000, 262_144, 1_048_576, rng.randrange(2 * MiB)])
        device = rng.choice([native.HOST, 0, 0, 1])
        aligned = rng.random() < 0.7
        if aligned:
            place = -(-place // 4096) * 4096
        skew = place % 4096 if rng.random() < 0.7 else rng.randrange(4096)
        extents.append((nbytes, device, skew, place))
        place += nbytes + rng.choice([0, 0, 3, 4096, 100_000])
    return extents


def made(layout, filled):
    # Gives extents in new memory, and what holds or frees it.
    extents, rooms = [], []
    for nbytes, device, skew, place in layout:
        data = rng.randbytes(nbytes) if filled else bytes(nbytes)
        if device == native.HOST:
            room = bytearray(data) or bytearray(1)
            address = native_address(room) if nbytes else 0
        else:
            room = None
            address = memory(data, device, skew) if nbytes else 0
        rooms.append((room, address, nbytes, device))
        extents.append(Extent(address, nbytes, place, NO_SLOT, device))
    return extents, rooms


def native_address(room):
    import ctypes

    return ctypes.addressof(ctypes.c_char.from_buffer(room))


def contents(rooms):
    return [
        bytes(room[:nbytes]) if device == native.HOST else nbytes and cuda.peek(address, nbytes)
        for room, address, nbytes, device in rooms
    ]


def free(rooms):
    for room, address, nbytes, device in rooms:
        if device != native.HOST and nbytes:
            cuda.free(address - address % 4096)
"""


def test_write_of_mixed_extents_equals_that_of_the_pinned_engine(run):
    run(
        MIXED,
        """
num_by_kvikio = 0
for case in range(40):
    extents, rooms = made(layout(), filled=True)
    by_pinned = finish(write(pinned, opened("pinned"), extents))
    transfer = finish(write(engine, opened("kvikio"), extents))
    num_by_kvikio += by_kvikio(transfer)
    assert Path("kvikio").read_bytes() == Path("pinned").read_bytes(), case
    assert transfer.extent_crcs() == by_pinned.extent_crcs(), case
    assert transfer.chunk_crcs() == by_pinned.chunk_crcs(), case
    assert transfer.total_bytes == by_pinned.total_bytes == transfer.done_bytes
    os.unlink("pinned"), os.unlink("kvikio")
assert num_by_kvikio > 10
""",
    )


def test_read_of_mixed_extents_equals_that_of_the_pinned_engine(run):
    run(
        MIXED,
        """
num_by_kvikio = 0
Path("file").write_bytes(rng.randbytes(24 * MiB))
file = opened()
for case in range(40):
    shape = layout()
    extents, rooms = made(shape, filled=False)
    others, other_rooms = made(shape, filled=False)
    by_pinned = finish(read(pinned, file, others))
    transfer = finish(read(engine, file, extents))
    num_by_kvikio += by_kvikio(transfer)
    assert contents(rooms) == contents(other_rooms), case
    assert transfer.extent_crcs() == by_pinned.extent_crcs(), case
    assert transfer.total_bytes == by_pinned.total_bytes == transfer.done_bytes
    assert raised(ConfigError, transfer.chunk_crcs).field == "chunk_crcs" if by_kvikio(
        transfer
    ) else True
assert num_by_kvikio > 10
""",
    )


SLOTS = (
    MIXED
    + """
header = bytearray(4096)
big = [rng.randbytes(MiB + 5000), rng.randbytes(700_000)]
small = rng.randbytes(1000)
addresses = [memory(data, device) for device, data in enumerate(big)]
behind = memory(small)


def extents(slots):
    return [
        Extent(native_address(header), 4096, 0),
        Extent(addresses[0], len(big[0]), 4096, slots[0], 0),
        Extent(addresses[1], len(big[1]), 3 * MiB, slots[1], 1),
        Extent(behind, len(small), 5 * MiB, slots[2], 0),
    ]
"""
)


def test_write_fills_slots_whose_extents_end_in_other_runs(run):
    run(
        SLOTS,
        """
# The last one lies across the border of two chunks, in the gap after the first extent.
for slots in ((10, 20, 30), (10, 3 * MiB - 4, 5 * MiB - 4), (10, 20, 3 * CHUNK - 2)):
    by_pinned = finish(write(pinned, opened("pinned"), extents(slots)))
    transfer = finish(write(engine, opened("kvikio"), extents(slots)))
    assert by_kvikio(transfer)
    content = Path("kvikio").read_bytes()
    assert content == Path("pinned").read_bytes()
    for slot, data in zip(slots, (*big, small), strict=True):
        assert content[slot : slot + 4] == zlib.crc32(data).to_bytes(4, "little")
    assert transfer.extent_crcs() == by_pinned.extent_crcs()
    assert transfer.chunk_crcs() == by_pinned.chunk_crcs()
    os.unlink("pinned"), os.unlink("kvikio")
""",
    )


def test_write_refuses_slots_that_the_pinned_engine_refuses(run):
    run(
        SLOTS,
        """
header[40] = 1
for slots in (
    (40, 20, 30),  # in use
    (10, 12, 30),  # overlapping
    (4095, 20, 30),  # not before its extent
    (10, 5 * MiB, 30),  # behind its extent
    (10, 20, 5000),  # in an extent with a checksum of its own
):
    for engine_ in (pinned, engine):
        error = raised(ConfigError, lambda: finish(write(engine_, opened(), extents(slots))))
        assert error.field == "extents", error
late = [Extent(addresses[0], len(big[0]), 4096, 0, 0)]
for engine_ in (pinned, engine):
    assert raised(ConfigError, lambda: write(engine_, opened(), late)).field == "extents"
""",
    )


def test_write_refuses_extents_and_chunks_that_the_pinned_engine_refuses(run):
    run("""
engine, pinned = engines()
address = memory(bytes(2 * MiB))
cases = [
    [Extent(address, MiB, 0, NO_SLOT, 0), Extent(address, MiB, MiB - 4096, NO_SLOT, 0)],
    [Extent(address, MiB, MiB, NO_SLOT, 0), Extent(address, MiB, 0, NO_SLOT, 0)],
    [Extent(address, MiB, 0, NO_SLOT, 0), Extent(0, 10, MiB, NO_SLOT, 0)],
    [Extent(address, MiB, 2**63 - MiB, NO_SLOT, 0)],
]
for engine_ in (pinned, engine):
    for extents in cases:
        assert raised(ConfigError, lambda: write(engine_, opened(), extents)).field == "extents"
        assert raised(ConfigError, lambda: read(engine_, opened(), extents)).field == "extents"
    rows = base.pack_extents(cases[0][:1])
    for chunk_bytes in (0, 1000, 1 << 30):
        error = raised(
            ConfigError,
            lambda: engine_.write(
                opened(), rows, chunk_bytes=chunk_bytes, streams=base.NO_STREAMS, owner=None
            ),
        )
        assert error.field == "chunk_bytes"
    half = array("Q", [address, MiB])
    raised(ConfigError, lambda: engine_.read(opened(), half, streams=base.NO_STREAMS, owner=None))
""")


@pytest.mark.parametrize("kind", ["mapped", "managed", "pool"])
def test_transfers_take_memory_of_every_kind(run, kind):
    run(
        f"kind = {kind!r}",
        """
engine, _ = engines()
data = random.Random(2).randbytes(MiB)
file = opened()
transfer = finish(write(engine, file, [Extent(memory(data, kind=kind), MiB, 0, NO_SLOT, 0)]))
assert by_kvikio(transfer)
back = memory(bytes(MiB), kind=kind)
finish(read(engine, file, [Extent(back, MiB, 0, NO_SLOT, 0)]))
assert cuda.peek(back, MiB) == data
""",
    )


def test_write_takes_what_was_queued_on_the_producer_before(run):
    run("""
engine, _ = engines()
user = Driver(cuda)
with user.on(0):
    stream = user.stream()
    address = memory(bytes(2 * MiB))
    cuda(f"hold stream={stream}")
    user.check("cuMemsetD8Async", address, 7, 2 * MiB, stream)
    transfer = write(engine, opened(), [Extent(address, 2 * MiB, 0, NO_SLOT, 0)], (0, stream))
    assert by_kvikio(transfer) and not transfer.wait(0)
    cuda(f"release stream={stream}")
    finish(transfer)
assert Path("file").read_bytes() == b"\\7" * 2 * MiB
""")


def test_read_waits_for_what_used_the_memory_before(run):
    run("""
engine, _ = engines()
user = Driver(cuda)
data = random.Random(3).randbytes(2 * MiB)
Path("file").write_bytes(data)
with user.on(1):
    stream = user.stream()
    address = memory(bytes(2 * MiB), 1)
    cuda(f"hold stream={stream}")
    user.check("cuMemsetD8Async", address, 7, 2 * MiB, stream)
    transfer = read(engine, opened(), [Extent(address, 2 * MiB, 0, NO_SLOT, 1)], (1, stream))
    cuda(f"release stream={stream}")
    finish(transfer)
    user.check("cuStreamSynchronize", stream)
assert cuda.peek(address, 2 * MiB) == data
""")


def test_write_without_direct_io_is_left_to_the_pinned_engine(run):
    run("""
engine, _ = engines()
data = random.Random(4).randbytes(MiB)
file = opened(direct=False)
transfer = finish(write(engine, file, [Extent(memory(data), MiB, 0, NO_SLOT, 0)]))
assert Path("file").read_bytes() == data
assert not by_kvikio(transfer) and transfer.direct_bytes == 0
""")


def test_failed_copy_is_a_cuda_error_with_its_code(run):
    run("""
engine, _ = engines()
address = memory(bytes(2 * MiB))
cuda("fault dtoh code=700")
error = raised(
    CudaError, lambda: finish(write(engine, opened(), [Extent(address, MiB, 0, NO_SLOT, 0)]))
)
assert error.code == 700 and "CUDA_ERROR_ILLEGAL_ADDRESS" in str(error)
""")


def test_failed_transfer_ends_after_the_copies_that_kvikio_gave_up(run):
    run(
        """
engine, _ = engines()
address, file = memory(bytes(MiB)), opened()
extents = [Extent(address, MiB, 0, NO_SLOT, 0)]
finish(write(engine, file, extents))
cuda("hold; fault cuStreamSynchronize code=2")
synchronized = cuda.calls("cuStreamSynchronize")
transfer = read(engine, file, extents)
while cuda.calls("cuStreamSynchronize") == synchronized:
    assert not transfer.wait(0.01)
assert not transfer.wait(0.2)
cuda("release")
assert raised(CudaError, transfer.result).code == 2
"""
    )


def test_refused_write_is_a_storage_error_with_place_and_errno(run):
    run("""
import resource, signal

engine, _ = engines()
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
address = memory(bytes(4 * MiB))
file = opened()
resource.setrlimit(resource.RLIMIT_FSIZE, (MiB, resource.RLIM_INFINITY))
error = raised(
    StorageError, lambda: finish(write(engine, file, [Extent(address, 4 * MiB, 0, NO_SLOT, 0)]))
)
assert (error.errno, error.op, error.path) == (errno.EFBIG, "pwrite", file.path)
assert error.offset >= MiB and error.nbytes == CHUNK
""")


def test_refused_write_of_the_pinned_part_ends_the_transfer(run):
    run("""
engine, _ = engines()
cuda("fault cuMemcpyDtoHAsync code=1")
data = random.Random(5).randbytes(MiB + 100)
error = raised(
    CudaError,
    lambda: finish(write(engine, opened(), [Extent(memory(data), MiB + 100, 0, NO_SLOT, 0)])),
)
assert error.code == 1
""")


def test_read_beyond_the_end_is_a_short_transfer(run):
    run("""
engine, _ = engines()
Path("file").write_bytes(bytes(MiB))
error = raised(
    ShortTransferError,
    lambda: finish(
        read(engine, opened(), [Extent(memory(bytes(2 * MiB)), 2 * MiB, 0, NO_SLOT, 0)])
    ),
)
assert error.actual_bytes < error.expected_bytes
""")


def test_failed_checksum_ends_the_transfer(run):
    run("""
class Broken:
    def crc32_pieces(self, pieces, device, *, stream=None):
        raise CudaError("the kernel failed.", op="cuLaunchKernel", code=719)

engine, pinned = engines()
engine = KvikioEngine(pinned, kvikio_library.load_library(needs_kernels=False), Broken())
extents = [Extent(memory(bytes(MiB)), MiB, 0, NO_SLOT, 0)]
file = opened()
for start in (write, read):
    assert raised(CudaError, lambda: finish(start(engine, file, extents))).code == 719
    Path("file").write_bytes(bytes(MiB))
""")


def test_cancelled_transfer_says_so_and_leaves_nothing_behind(run):
    run("""
engine, _ = engines()
user = Driver(cuda)
address, file = memory(bytes(8 * MiB)), opened()
extents = [Extent(address, 8 * MiB, 0, NO_SLOT, 0)]
finish(write(engine, file, extents))
before = len(os.listdir("/proc/self/fd"))
with user.on(0):
    stream = user.stream()
    cuda(f"hold stream={stream}")
    user.check("cuMemsetD8Async", address, 7, 8 * MiB, stream)
    for start in (write, read):
        transfer = start(engine, file, extents, (0, stream))
        threading.Timer(0.05, cuda, [f"release stream={stream}"]).start()
        transfer.cancel()
        error = raised(StorageError, transfer.result)
        assert (error.errno, error.op) == (errno.ECANCELED, start.__name__)
        raised(StorageError, transfer.extent_crcs)
assert len(os.listdir("/proc/self/fd")) == before
transfer = finish(write(engine, file, extents))
transfer.cancel()  # too late
transfer.result()
""")


def test_transfer_that_is_let_go_has_ended(run):
    run("""
import gc, weakref

class Owner:
    pass

engine, _ = engines()
address, file, owner = memory(bytes(8 * MiB)), opened(), Owner()
alive = weakref.ref(owner)
write(engine, file, [Extent(address, 8 * MiB, 0, NO_SLOT, 0)], owner=owner)
cuda.free(address)
del owner
gc.collect()
assert alive() is None and cuda.stat("copies_of_freed_memory") == 0
""")


def test_running_transfer_at_exit_is_ended(run):
    run("""
engine, _ = engines()
kept = write(engine, opened(), [Extent(memory(bytes(16 * MiB)), 16 * MiB, 0, NO_SLOT, 0)])
""")


def test_closed_engine_has_ended_its_transfers_and_takes_no_more(run):
    run("""
engine, _ = engines()
extents = [Extent(memory(bytes(8 * MiB)), 8 * MiB, 0, NO_SLOT, 0)]
transfer = write(engine, opened(), extents)
engine.close()
assert transfer.wait(0)
error = raised(EngineUnavailableError, lambda: write(engine, opened(), extents))
assert error.engine == "kvikio"
engine.close()
""")


def test_forked_child_is_refused_and_the_parent_goes_on(run):
    run("""
engine, pinned = engines()
data = random.Random(6).randbytes(4 * MiB)
extents, file = [Extent(memory(data), 4 * MiB, 0, NO_SLOT, 0)], opened()
transfer = write(engine, file, extents)
pid = os.fork()
if pid == 0:
    for call in (
        lambda: write(engine, file, extents),
        lambda: engine.scan(file, 0, 10, chunk_bytes=CHUNK),
        lambda: transfer.wait(0),
        transfer.cancel,
        transfer.result,
        lambda: transfer.done_bytes,
        lambda: kvikio_library.load_library(needs_kernels=False),
    ):
        raised(EngineUnavailableError, call)
    del transfer  # nothing to wait for
    os._exit(77)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 77
finish(transfer)
assert Path("file").read_bytes() == data
""")


def test_transfers_of_several_threads_do_not_mix(run):
    run(
        """
engine, _ = engines()
wrong = []

def work(n):
    data = random.Random(n).randbytes(2 * MiB + n)
    file = opened(f"file-{n}")
    device = n % 2
    finish(write(engine, file, [Extent(memory(data, device), len(data), 0, NO_SLOT, device)]))
    back = memory(bytes(len(data)), device)
    finish(read(engine, file, [Extent(back, len(data), 0, NO_SLOT, device)]))
    if Path(f"file-{n}").read_bytes() != data or cuda.peek(back, len(data)) != data:
        wrong.append(n)

threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not wrong
""",
        variables={"KVIKIO_NTHREADS": "3"},
    )


def test_write_uses_kvikios_own_settings(run):
    run(
        """
engine, _ = engines()
finish(write(engine, opened(), [Extent(memory(bytes(2 * MiB)), 2 * MiB, 0, NO_SLOT, 0)]))
assert cuda.calls("cuMemcpyBatchAsync") == 16
assert "has 3 threads" in engine.reasons[0] and "mode is ON" in engine.reasons[0]
""",
        variables={
            "KVIKIO_NTHREADS": "3",
            "KVIKIO_TASK_SIZE": str(128 * 1024 + 1),
            "KVIKIO_COMPAT_MODE": "ON",
        },
    )


CUFILE = """
engine, _ = engines()
data = random.Random(8).randbytes(2 * MiB)
address, file = memory(data), opened()
extents = [Extent(address, 2 * MiB, 0, NO_SLOT, 0)]
"""


def test_transfers_go_by_cufile_where_kvikio_uses_it(run_cufile):
    run_cufile(
        CUFILE,
        """
finish(write(engine, file, extents))
assert Path("file").read_bytes() == data and cufile.calls("cuFileWrite") == 4
cuda.poke(address, bytes(2 * MiB))
finish(read(engine, file, extents))
assert cuda.peek(address, 2 * MiB) == data and cufile.calls("cuFileRead") == 1
assert cufile.stat("live.handles") == 0
""",
    )


def test_short_results_of_cufile_are_continued(run_cufile):
    run_cufile(
        CUFILE,
        """
cufile("short cuFileWrite bytes=4096; short cuFileRead bytes=8192")
finish(write(engine, file, extents))
assert Path("file").read_bytes() == data and cufile.calls("cuFileWrite") == 5
cuda.poke(address, bytes(2 * MiB))
finish(read(engine, file, extents))
assert cuda.peek(address, 2 * MiB) == data and cufile.calls("cuFileRead") == 2
cufile("short cuFileWrite bytes=0 nth=3")
error = raised(ShortTransferError, lambda: finish(write(engine, file, extents)))
assert (error.offset, error.expected_bytes, error.actual_bytes) == (2 * CHUNK, CHUNK, 0)
assert cufile.stat("live.handles") == 0
""",
    )


@pytest.mark.parametrize(
    ("fault", "start", "kind", "op", "code"),
    [
        ("cuFileWrite code=28", "write", "StorageError", "pwrite", 28),
        ("cuFileWrite code=5030", "write", "CuFileError", "cuFileWrite", 5030),
        # KvikIO does not tell why a cuFileRead failed.
        ("cuFileRead code=5030", "read", "CuFileError", "cuFileRead", None),
        ("cuFileHandleRegister code=5027", "write", "CuFileError", "cuFileHandleRegister", 5027),
        ("cuFileHandleRegister code=5011 detail=801", "read", "CudaError", None, 801),
    ],
)
def test_faults_of_cufile_are_the_right_errors(run_cufile, fault, start, kind, op, code):
    run_cufile(
        CUFILE,
        f"""
finish(write(engine, file, extents))
cufile("fault {fault} count=-1")
error = raised({kind}, lambda: finish({start}(engine, file, extents)))
found = error.errno if isinstance(error, StorageError) else error.code
assert (error.op, found) == ({op!r}, {code}), error
cufile("clear")
finish(write(engine, file, extents))
assert cufile.stat("live.handles") == 0
""",
    )


def test_save_and_load_by_the_setting_use_kvikio(run):
    run(
        """
import gdsckpt, torch
from device_arrays import FakeArray
from gdsckpt.engine import kvikio, pinned

started = []

class Counting(KvikioEngine):
    def write(self, *args, **options):
        started.append(super().write(*args, **options))
        return started[-1]

    def read(self, *args, **options):
        started.append(super().read(*args, **options))
        return started[-1]

def shared_engine(config, slab_bytes=None):
    # The real kernels need a real GPU.
    library = kvikio_library.load_library(needs_kernels=False)
    return Counting(pinned.shared_engine(config, slab_bytes), library, Checksums())

kvikio.shared_engine = shared_engine
config = gdsckpt.Config(engine="kvikio", chunk_bytes=CHUNK)
rng = random.Random(9)
contents = [rng.randbytes(nbytes) for nbytes in (9 * MiB + 4, 100, 2 * MiB)]
arrays = [FakeArray(cuda, data, device=n % 2) for n, data in enumerate(contents)]
state = {"arrays": arrays, "host": torch.arange(1000)}
report = gdsckpt.save(state, "state.pt", config=config)
assert report.engine == "kvikio" and "KvikIO 2" in report.engine_reasons[1]
assert by_kvikio(started.pop(0))
assert gdsckpt.verify("state.pt").ok
stock = torch.load("state.pt", map_location="cpu", weights_only=True)
assert [tensor.numpy().tobytes() for tensor in stock["arrays"]] == contents
blank = [FakeArray(cuda, bytes(len(data)), device=n % 2) for n, data in enumerate(contents)]
started.clear()
gdsckpt.load("state.pt", into={"arrays": blank, "host": torch.zeros(1000).long()}, config=config)
assert [array.read() for array in blank] == contents
assert any(by_kvikio(transfer) for transfer in started)
"""
    )


def test_save_by_the_setting_without_the_package_says_what_is_missing(run):
    run("""
import importlib.util

import gdsckpt
from device_arrays import FakeArray

real = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name == "kvikio" else real(name)
state = {"a": FakeArray(cuda, bytes(MiB))}
error = raised(
    EngineUnavailableError,
    lambda: gdsckpt.save(state, "state.pt", config=gdsckpt.Config(engine="kvikio")),
)
assert error.engine == "kvikio" and "the package kvikio is not installed" in error.reasons
assert not Path("state.pt").exists()
""")


FAULTS = """
import gc

rng = random.Random(5)
engine, _ = engines()
data = rng.randbytes(2 * MiB + 100)
file = opened()


def extents_of(addresses):
    places = zip(addresses, (0, 4 * MiB), (0, 1), strict=True)
    return [Extent(address, len(data), place, NO_SLOT, device) for address, place, device in places]


sources = extents_of([memory(data, device) for device in (0, 1)])
# After a failed read its memory holds anything.
targets = extents_of([memory(bytes(len(data)), device) for device in (0, 1)])
faults = [
    "cuMemcpyBatchAsync code=2", "cuMemcpyDtoHAsync code=2", "cuStreamCreate code=2",
    "cuEventRecord code=2", "cuPointerGetAttributes code=1", "cuStreamSynchronize code=2",
    "cuFileWrite code=28", "cuFileRead code=5030",
    "cuFileHandleRegister code=5027",
]


def held():
    gc.collect()
    names = ("allocations", "events", "host_registrations", "streams")
    counts = [cuda.stat(f"live.{name}") for name in names]
    return len(os.listdir("/proc/self/fd")), cufile.stat("live.handles"), counts


for _ in range(2):
    finish(write(engine, file, sources))
    finish(read(engine, file, targets))
before, num_failed = held(), 0
for _ in range(80):
    fault = rng.choice(faults)
    library = cufile if "cuFile" in fault else cuda
    library(f"fault {fault} nth={rng.randrange(1, 8)}")
    transfer = None
    try:
        start, extents = rng.choice(((write, sources), (read, targets)))
        transfer = start(engine, file, extents)
        if rng.random() < 0.1:
            transfer.cancel()
        if rng.random() < 0.9:
            finish(transfer)
    except (StorageError, CudaError, CuFileError):
        num_failed += 1
    del transfer
    library("clear")
assert num_failed > 20, num_failed
finish(write(engine, file, sources))
assert Path("file").read_bytes() == data + bytes(4 * MiB - len(data)) + data
finish(read(engine, file, targets))
assert [cuda.peek(extent.address, len(data)) for extent in targets] == [data, data]
assert held() == before, (before, held())
"""


def test_random_faults_leave_nothing_behind(run):
    run(FAULTS)


def test_random_faults_under_cufile_leave_nothing_behind(run_cufile):
    run_cufile(FAULTS)
