import contextlib
import os
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from remote_cases import MiB, take_temporary_directories

from gdsckpt.errors import StorageError, StoreError
from gdsckpt.remote.crew import Crew
from gdsckpt.remote.objects import RemoteObject
from gdsckpt.remote.ondemand import BLOCK_BYTES, END_BYTES, OnDemandFile
from gdsckpt.store.answers import Answer
from gdsckpt.store.memory import MemoryStore
from gdsckpt.testing.faulty_store import Fault, FaultyStore

NBYTES = 20 * MiB + 5
DATA = random.Random(3).randbytes(NBYTES)


@contextlib.contextmanager
def on_demand(*faults, num_threads=2):
    from gdsckpt import native

    store = FaultyStore(MemoryStore("m"), *faults)
    store.put("data", memoryview(DATA), crc32=native.crc32(DATA))
    with Crew(num_threads) as crew:
        file = OnDemandFile(RemoteObject.find(store, "data"), crew)
        with contextlib.closing(file):
            yield file, store


def received_bytes(store):
    return sum(call.nbytes for call in store.calls if call.op == "get_range")


def test_on_demand_file_has_the_size_and_no_bytes():
    with on_demand() as (file, store):
        assert os.fstat(file.fd).st_size == NBYTES
        assert os.fstat(file.fd).st_blocks == 0
        assert received_bytes(store) == 0


def test_provide_receives_the_blocks_of_a_range_once():
    with on_demand() as (file, store):
        file.provide(MiB + 5, 10)
        file.provide(MiB + 100, 1000)
        assert os.pread(file.fd, 10, MiB + 5) == DATA[MiB + 5 : MiB + 15]
        assert received_bytes(store) == BLOCK_BYTES


def test_provide_at_the_end_receives_all_of_the_end():
    with on_demand() as (file, store):
        file.provide(NBYTES - 100, 1000)  # more than there is
        assert os.pread(file.fd, 1000, NBYTES - 100) == DATA[-100:]
        assert received_bytes(store) == END_BYTES


@given(
    st.lists(st.tuples(st.integers(0, NBYTES - 1), st.integers(1, 3 * MiB)), min_size=1, max_size=8)
)
def test_provide_any_ranges_receives_no_byte_twice(ranges):
    with on_demand() as (file, store):
        for offset, nbytes in ranges:
            file.provide(offset, nbytes)
        for offset, nbytes in ranges:
            assert os.pread(file.fd, nbytes, offset) == DATA[offset : offset + nbytes]
            assert file.missing(offset, min(NBYTES, offset + nbytes)) == []
        missing_bytes = sum(end - begin for begin, end in file.missing(0, NBYTES))
        assert received_bytes(store) == NBYTES - missing_bytes


def test_provide_of_much_is_received_by_several_requests():
    with on_demand() as (file, store):
        file.provide(0, 18 * MiB)
        assert os.pread(file.fd, 18 * MiB, 0) == DATA[: 18 * MiB]
        assert len([call for call in store.calls if call.op == "get_range"]) == 2


def test_provide_all_then_anything_asks_for_nothing():
    with on_demand() as (file, store):
        file.provide(5 * MiB, 10)
        seen = []
        file.provide_all(lambda done, total: seen.append((done, total)))
        assert os.pread(file.fd, NBYTES, 0) == DATA
        assert received_bytes(store) == NBYTES
        assert seen[-1] == (NBYTES - BLOCK_BYTES, NBYTES - BLOCK_BYTES)
        file.provide(0, NBYTES)
        assert received_bytes(store) == NBYTES


def test_provide_blocks_joins_those_that_touch():
    with on_demand() as (file, store):
        file.provide_blocks([5, 10, BLOCK_BYTES + 1, 4 * BLOCK_BYTES])
        assert sorted(call.nbytes for call in store.calls if call.op == "get_range") == [
            BLOCK_BYTES,
            2 * BLOCK_BYTES,
        ]
        assert file.missing(0, 5 * BLOCK_BYTES) == [(2 * BLOCK_BYTES, 4 * BLOCK_BYTES)]


def test_forget_asks_again():
    with on_demand() as (file, store):
        file.provide(0, 10)
        file.forget()
        file.provide(0, 10)
        assert received_bytes(store) == 2 * BLOCK_BYTES


def test_provide_after_a_failure_asks_again():
    with on_demand(Fault("get_range", Answer(500, "InternalError"))) as (file, _):
        with pytest.raises(StoreError):
            file.provide(0, 10)
        file.provide(0, 10)
        assert os.pread(file.fd, 10, 0) == DATA[:10]


def test_on_demand_file_where_no_directory_can_be_written_says_what_to_set(monkeypatch):
    take_temporary_directories(monkeypatch)
    with pytest.raises(StorageError, match="TMPDIR") as caught, on_demand():
        pass
    assert caught.value.op == "open"


def test_on_demand_file_without_a_temporary_directory_says_which(monkeypatch, tmp_path):
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(StorageError) as caught, on_demand():
        pass
    assert caught.value.path == str(tmp_path / "missing")
