import copy
import errno
import inspect
import pickle
import re
from pathlib import Path

import pytest

from gdsckpt import errors
from gdsckpt.errors import GdsckptError, StorageError, storage_error_from

DOCS = Path(__file__).parents[2] / "docs" / "errors.md"

PARENTS = {
    "GdsckptError": {Exception},
    "ConfigError": {ValueError},
    "CuFileError": {GdsckptError},
    "CudaError": {GdsckptError},
    "EngineUnavailableError": {GdsckptError},
    "StorageError": {OSError},
    "ShortTransferError": {errors.StorageError, OSError},
    "FormatError": {ValueError},
    "UnsupportedVersionError": {errors.FormatError},
    "ChecksumError": {errors.FormatError},
    "UnsafePickleError": {errors.FormatError, pickle.UnpicklingError},
    "UnpickleError": {errors.FormatError, pickle.UnpicklingError},
    "CheckpointNotFoundError": {FileNotFoundError},
    "CheckpointExistsError": {FileExistsError},
    "StateMismatchError": {RuntimeError},
    "TimeoutExpiredError": {TimeoutError},
    "TornSnapshotError": {RuntimeError},
    "SnapshotBusyError": {RuntimeError},
    "RootLockedError": {BlockingIOError},
    "StoreError": {GdsckptError},
    "ObjectNotFoundError": {errors.StoreError, FileNotFoundError},
    "AccessDeniedError": {errors.StoreError, PermissionError},
}

STORE_FIELDS = {
    "op": "put_part",
    "key": "run/shard.pt",
    "attempts": 3,
    "status": 503,
    "code": "SlowDown",
    "retryable": False,
}

FIELDS = {
    "GdsckptError": {},
    "ConfigError": {"field": "io_threads"},
    "CuFileError": {
        "op": "cuFileWrite",
        "path": "/nvme/shard",
        "offset": 4096,
        "nbytes": 16777216,
        "code": 5011,
    },
    "CudaError": {"op": "cuMemcpyDtoHAsync", "code": 719},
    "EngineUnavailableError": {"engine": "cufile", "reasons": ("no driver", "no device")},
    "StorageError": {
        "op": "pwrite",
        "path": "/nvme/a.pt",
        "offset": 4096,
        "nbytes": 512,
        "errno": errno.ENOSPC,
    },
    "ShortTransferError": {
        "op": "pread",
        "path": "/nvme/a.pt",
        "offset": 0,
        "nbytes": 512,
        "errno": None,
        "expected_bytes": 512,
        "actual_bytes": 100,
    },
    "FormatError": {"path": "/nvme/a.pt", "offset": 7},
    "UnsupportedVersionError": {"path": "/a", "offset": 0, "found": 3, "supported": 1},
    "ChecksumError": {
        "path": "/nvme/a.pt",
        "offset": 65536,
        "shard": "rank-00000.pt",
        "fqn": "layer.weight",
        "record": "data/0",
        "expected": 0xDEADBEEF,
        "actual": 0,
    },
    "UnsafePickleError": {"path": "/nvme/a.pt", "offset": None},
    "UnpickleError": {"path": "/nvme/a.pt", "offset": 0},
    "CheckpointNotFoundError": {"path": "/nvme/a.pt"},
    "CheckpointExistsError": {"path": "/nvme/a.pt"},
    "StateMismatchError": {
        "missing": ("a", "b"),
        "unexpected": ("c",),
        "shapes": {"d": ((1, 2), (2, 1))},
    },
    "TimeoutExpiredError": {"what": "rank 3", "timeout_s": 1.5},
    "TornSnapshotError": {"names": ("layer.weight",)},
    "SnapshotBusyError": {"step": 12},
    "RootLockedError": {"path": "/nvme/run", "holder": "process 4711 on node-3"},
    "StoreError": STORE_FIELDS,
    "ObjectNotFoundError": STORE_FIELDS,
    "AccessDeniedError": STORE_FIELDS,
}

ERRORS = [
    cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, GdsckptError)
]
WARNINGS = [
    cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, Warning)
]

every_error = pytest.mark.parametrize("cls", ERRORS, ids=lambda cls: cls.__name__)


def make(cls):
    return cls("It failed: why. Do this.", **FIELDS[cls.__name__])


def test_errors_all_classes_are_covered():
    assert {cls.__name__ for cls in ERRORS} == set(PARENTS) == set(FIELDS)


@every_error
def test_error_class_has_its_builtin_parents(cls):
    assert all(issubclass(cls, parent) for parent in PARENTS[cls.__name__])


@every_error
def test_error_fields_are_attributes(cls):
    exc = make(cls)
    assert exc.fields == FIELDS[cls.__name__]
    assert cls.field_names == tuple(FIELDS[cls.__name__])


@every_error
def test_error_fields_are_optional(cls):
    assert str(cls("only text")) == "only text"


@every_error
def test_error_fields_are_keyword_only(cls):
    with pytest.raises(TypeError):
        cls("text", "a field by position")


@every_error
def test_error_text_is_the_message(cls):
    assert str(make(cls)) == "It failed: why. Do this."


@every_error
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_error_pickled_keeps_fields_and_notes(cls, protocol):
    exc = make(cls)
    exc.add_note("abort of upload also failed")
    exc.rank = 3

    back = pickle.loads(pickle.dumps(exc, protocol))

    assert type(back) is cls
    assert str(back) == str(exc)
    assert back.fields == FIELDS[cls.__name__]
    assert back.__notes__ == ["abort of upload also failed"]
    assert back.rank == 3


@every_error
@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_error_copied_keeps_fields_and_own_notes(cls, duplicate):
    exc = make(cls)
    exc.add_note("one")

    back = duplicate(exc)
    back.add_note("two")

    assert back.fields == FIELDS[cls.__name__]
    assert back.__notes__ == ["one", "two"]
    assert exc.__notes__ == ["one"]


@every_error
def test_error_is_retryable_only_where_time_helps(cls):
    assert make(cls).retryable is (cls.__name__ == "SnapshotBusyError")


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("StorageError", errno.ENOSPC),
        ("CheckpointNotFoundError", errno.ENOENT),
        ("CheckpointExistsError", errno.EEXIST),
    ],
)
def test_os_error_children_have_errno_and_filename(name, number):
    exc = make(getattr(errors, name))
    for each in (exc, pickle.loads(pickle.dumps(exc))):
        assert each.errno == number
        assert each.filename == "/nvme/a.pt"
        assert each.strerror


@pytest.mark.parametrize(
    ("name", "number"),
    [("ObjectNotFoundError", errno.ENOENT), ("AccessDeniedError", errno.EACCES)],
)
def test_store_errors_that_are_os_errors_have_errno_and_filename(name, number):
    exc = make(getattr(errors, name))
    for each in (exc, pickle.loads(pickle.dumps(exc))):
        assert each.errno == number
        assert each.filename == "run/shard.pt"
        assert each.strerror


def test_store_error_says_of_each_instance_whether_it_is_retryable():
    exc = errors.StoreError("x", retryable=True)
    assert exc.retryable
    assert pickle.loads(pickle.dumps(exc)).retryable


def test_timeout_error_has_errno():
    assert make(errors.TimeoutExpiredError).errno == errno.ETIMEDOUT


def test_error_path_may_be_a_path_object():
    assert errors.FormatError("x", path=Path("/nvme/a.pt")).path == "/nvme/a.pt"


def test_error_subclass_declares_fields_by_its_constructor():
    class Child(errors.FormatError):
        def __init__(self, message, *, line):
            super().__init__(message)
            self.line = line

    assert copy.copy(Child("x", line=4)).fields == {"line": 4}


def test_warning_classes_form_one_tree():
    assert {cls.__name__ for cls in WARNINGS} == {
        "GdsckptWarning",
        "FallbackWarning",
        "UnverifiedWarning",
        "StaleSaveWarning",
        "DamagedCheckpointWarning",
    }
    assert all(issubclass(cls, errors.GdsckptWarning) for cls in WARNINGS)
    assert issubclass(errors.GdsckptWarning, UserWarning)


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "Free space"),
        (errno.EDQUOT, "raise the quota"),
        (errno.EROFS, "Mount the file system writable"),
        (errno.EACCES, "owner and mode"),
        (errno.EPERM, "owner, mode"),
        (errno.EIO, "look at the kernel log"),
        (errno.ENOENT, "does not exist"),
        (errno.ENOTDIR, "is a file"),
        (errno.EISDIR, "is a directory"),
        (errno.ELOOP, "circle"),
        (errno.ENAMETOOLONG, "shorter path"),
        (errno.EMFILE, "ulimit -n"),
        (errno.ENFILE, "fs.file-max"),
        (errno.EFBIG, "ulimit -f"),
        (errno.ESTALE, "mount it again"),
        (errno.EBUSY, "no longer in use"),
    ],
)
def test_storage_error_from_known_errno_says_what_to_do(number, advice):
    exc = storage_error_from(OSError(number, "x"), op="open", path="/nvme/a.pt")

    assert type(exc) is StorageError
    assert exc.fields == {
        "op": "open",
        "path": "/nvme/a.pt",
        "offset": None,
        "nbytes": None,
        "errno": number,
    }
    assert str(exc).startswith("open of /nvme/a.pt failed: ")
    assert f"(errno {number})." in str(exc)
    assert advice in str(exc)


def test_storage_error_from_transfer_names_bytes_and_offset():
    cause = OSError(errno.ENOSPC, "x")
    exc = storage_error_from(cause, op="pwrite", path=Path("/nvme/a.pt"), offset=4096, nbytes=512)
    assert str(exc) == (
        "pwrite of 512 bytes at offset 4096 in /nvme/a.pt failed: No space left on device "
        "(errno 28). Free space on the file system or save elsewhere."
    )
    assert (exc.offset, exc.nbytes) == (4096, 512)


def test_storage_error_from_unknown_errno_gives_no_advice():
    exc = storage_error_from(OSError(errno.EXDEV, "x"), op="rename", path="/a")
    assert str(exc) == "rename of /a failed: Invalid cross-device link (errno 18)."


def test_storage_error_from_error_without_errno_keeps_its_text():
    exc = storage_error_from(OSError("the drive is gone"), op="fsync", path="/a")
    assert exc.errno is None
    assert str(exc) == "fsync of /a failed: the drive is gone."


def test_docs_name_every_error_with_its_fields():
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*)$", DOCS.read_text(), re.MULTILINE))
    assert set(rows) == {cls.__name__ for cls in [*ERRORS, *WARNINGS]}
    for cls in ERRORS:
        inherited = set(getattr(cls.__mro__[1], "field_names", ()))
        own = [name for name in cls.field_names if name not in inherited]
        assert all(f"`{name}`" in rows[cls.__name__] for name in own), cls
