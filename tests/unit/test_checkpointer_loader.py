import errno

import pytest

from gdsckpt.checkpointer.copies import Copies
from gdsckpt.checkpointer.loader import load_newest
from gdsckpt.errors import (
    AccessDeniedError,
    CheckpointNotFoundError,
    ChecksumError,
    DamagedCheckpointWarning,
    FormatError,
    ObjectNotFoundError,
    ShortTransferError,
    StateMismatchError,
    StorageError,
    StoreError,
    UnpickleError,
    UnsafePickleError,
    UnsupportedVersionError,
)


@pytest.fixture
def copies(tmp_path):
    (tmp_path / ".gdsckpt").mkdir()
    for step in (1, 2):
        (tmp_path / f"step-0000000{step}").mkdir()
    return (
        Copies(1, tmp_path / "step-00000001", None),
        Copies(2, tmp_path / "step-00000002", "memory://run/step-00000002"),
    )


def reader(failures):
    """Give a read that fails for some places."""

    def read(place):
        for end, error in failures.items():
            if place.startswith(end) or place.endswith(end):
                raise error
        return place

    return read


@pytest.mark.parametrize(
    "error",
    [
        FormatError("x"),
        ChecksumError("x"),
        ShortTransferError("x"),
        StorageError("x", errno=errno.EIO),
        StorageError("x", errno=errno.EUCLEAN),
    ],
    ids=lambda error: f"{type(error).__name__} {getattr(error, 'errno', None)}",
)
def test_damage_is_set_aside_and_the_next_copy_is_taken(tmp_path, copies, error):
    local = str(copies[1].local)
    with pytest.warns(DamagedCheckpointWarning, match="set aside"):
        step, place = load_newest(copies, tmp_path, reader({local: error}))
    assert (step, place) == (2, copies[1].url)
    assert not copies[1].local.exists()
    (aside,) = (tmp_path / ".gdsckpt" / "quarantine").iterdir()
    assert aside.name.startswith("damaged.step-00000002.")


@pytest.mark.parametrize(
    "error", [CheckpointNotFoundError("x"), ObjectNotFoundError("x")], ids=repr
)
def test_copy_that_is_gone_is_passed_over(tmp_path, copies, error):
    with pytest.warns(DamagedCheckpointWarning):
        step, _ = load_newest(copies, tmp_path, reader({"step-00000002": error}))
    assert step == 1
    assert not (tmp_path / ".gdsckpt" / "quarantine").exists()


@pytest.mark.parametrize(
    "error",
    [
        UnpickleError("x"),
        UnsafePickleError("x"),
        UnsupportedVersionError("x"),
        StateMismatchError("x"),
        StorageError("x", errno=errno.EMFILE),
        StorageError("x", errno=errno.EACCES),
        StorageError("x", errno=errno.ENOSPC),
        StoreError("x", retryable=True),
        AccessDeniedError("x"),
    ],
    ids=lambda error: f"{type(error).__name__} {getattr(error, 'errno', None)}",
)
def test_what_says_nothing_of_the_copy_is_raised_at_once(tmp_path, copies, error):
    with pytest.raises(type(error)):
        load_newest(copies, tmp_path, reader({"step-00000002": error}))
    assert copies[1].local.exists()


def test_without_any_step_there_is_none(tmp_path):
    with pytest.raises(CheckpointNotFoundError):
        load_newest((), tmp_path, reader({}))


def test_all_damaged_raises_the_first_and_moves_nothing(tmp_path, copies):
    with pytest.raises(FormatError, match="of 2") as caught:
        load_newest(
            copies,
            tmp_path,
            reader({"2": FormatError("of 2"), "1": FormatError("of 1")}),
        )
    assert len(caught.value.__notes__) == 2
    assert copies[0].local.exists()
    assert copies[1].local.exists()


def test_only_one_step_is_asked_where_one_is_wanted(tmp_path, copies):
    with pytest.raises(FormatError):
        load_newest(copies, tmp_path, reader({"2": FormatError("x")}), only=True)
