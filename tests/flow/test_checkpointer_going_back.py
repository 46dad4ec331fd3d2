"""Saves after training went back: only the first has to say so, however far the others are."""

import pytest
from checkpoint_cases import held_up, number_of, state

import gdsckpt
from gdsckpt.errors import CheckpointExistsError


def test_async_save_after_one_that_goes_back_is_newer_while_that_is_in_flight(tmp_path):
    with gdsckpt.Checkpointer(tmp_path / "root") as checkpointer:
        checkpointer.save(6, state(6))
        checkpointer.save(8, state(8))
        with held_up(checkpointer.root, 7):
            checkpointer.async_save(7, state(70), overwrite=True)
            with pytest.raises(CheckpointExistsError):
                checkpointer.async_save(7, state(71))
            checkpointer.async_save(8, state(80))
        checkpointer.wait()
        assert checkpointer.steps() == [6, 7, 8]
        assert number_of(checkpointer.load()) == 80


def test_save_after_one_that_goes_back_before_what_is_in_the_store_is_newer(tmp_path):
    store = f"file://{tmp_path}/store"
    with gdsckpt.Checkpointer(tmp_path / "root", store=store) as checkpointer:
        for step in (6, 8, 10):
            checkpointer.save(step, state(step))
    with gdsckpt.Checkpointer(tmp_path / "root", store=store) as checkpointer:
        with pytest.raises(CheckpointExistsError):
            checkpointer.save(9, state(90))
        checkpointer.save(7, state(70), overwrite=True)
        checkpointer.save(8, state(80))
        assert checkpointer.steps() == [6, 7, 8]


def test_checkpointer_uploads_what_an_earlier_run_had_left(tmp_path):
    store = f"file://{tmp_path}/store"
    with gdsckpt.Checkpointer(tmp_path / "root", store=store) as checkpointer:
        checkpointer.save(4, state(4))
    # As after a kill between the commits and the uploads.
    with gdsckpt.Checkpointer(tmp_path / "root") as checkpointer:
        checkpointer.save(5, state(5))
        checkpointer.save(6, state(6))
    gdsckpt.Checkpointer(tmp_path / "root", store=store).close()
    assert number_of(gdsckpt.load(f"{store}/step-00000005")) == 5
    assert number_of(gdsckpt.load(f"{store}/step-00000006")) == 6


def test_steps_that_training_left_stay_out_when_the_upload_that_told_was_killed(tmp_path):
    store = f"file://{tmp_path}/store"
    with gdsckpt.Checkpointer(tmp_path / "root", store=store, keep_local=1) as checkpointer:
        checkpointer.save(4, state(4))
        checkpointer.save(6, state(6))
    # As after a kill between the commit and the upload.
    with gdsckpt.Checkpointer(tmp_path / "root", keep_local=1) as checkpointer:
        checkpointer.save(5, state(50), overwrite=True)
    with gdsckpt.Checkpointer(tmp_path / "root", store=store, keep_local=1) as checkpointer:
        checkpointer.save(7, state(70))
        checkpointer.wait()
        assert checkpointer.steps() == [4, 5, 7]
