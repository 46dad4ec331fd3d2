import json

import pytest
import torch

from bench import behind_results, checkpointer, fio
from bench.behind import COPY, DCP, FENCE, HOST, SAVE
from bench.behind_rounds import FIO, NOTHING, Beside, SmallSave, Stall
from bench.fio import FioOptions, ThrottledWrite
from bench.training import Training, checksums

GiB = 1 << 30


def stalls(*call_seconds, wait_s=0.0):
    return [Stall(call_s, wait_s) for call_s in call_seconds]


def beside(*step_seconds):
    return [Beside([seconds], [seconds / 2], [1e9]) for seconds in step_seconds]


def measured_stalls():
    return {
        SAVE: stalls(1.0, 3.0),
        FENCE: stalls(0.01, 0.04, wait_s=0.5),
        HOST: stalls(0.3, 0.6),
        COPY: stalls(0.2, 0.4),
        DCP: stalls(0.4, 1.2),
    }


def test_stall_rows_compare_calls_with_the_copy_of_the_same_round():
    rows = {row["method"]: row for row in behind_results.stall_rows(measured_stalls())}
    assert rows[HOST]["by_copy"] == pytest.approx(1.5)
    assert (rows[FENCE]["call_s"], rows[FENCE]["wait_s"]) == (0.025, 0.5)
    assert rows[FENCE]["stall_s"] == pytest.approx(0.525)


def test_targets_hold_stalls_against_the_save_the_copy_and_dcp():
    rows = behind_results.stall_rows(measured_stalls())
    held = behind_results.targets({"stall": rows}, 2 * GiB)
    # 2 % of 2 s are more than 10 ms for each of 2 GiB; DCP takes 40 and 30 times as long.
    assert [(round(t.measured, 6), t.bound) for t in held] == [(25, 40), (35, 20), (1.5, 1.6)]
    assert [target.is_met for target in held] == [True, True, True]


def test_targets_hold_steps_against_those_beside_fio_in_the_same_round():
    found = {
        HOST: beside(0.3, 0.9),
        FIO: beside(0.2, 0.6),
        FENCE: beside(0.2, 0.6),
        NOTHING: beside(0.1, 0.3),
    }
    rows = behind_results.beside_rows(found)
    held = behind_results.targets({"beside": rows}, GiB)
    assert [(round(t.measured, 6), t.is_met) for t in held] == [(1.5, False), (1.0, True)]
    assert [round(row["step_by_nothing"], 6) for row in rows] == [3, 2, 2, 1]


def test_beside_rows_without_whole_steps_or_fio_leave_ratios_out():
    rows = behind_results.beside_rows({HOST: [Beside()], NOTHING: beside(0.1)})
    assert rows[0]["num_steps"] == 0
    assert (rows[0]["step_s"], rows[0]["step_by_fio"], rows[0]["step_by_nothing"]) == (None,) * 3
    assert behind_results.targets({"beside": rows}, GiB) == []


def test_small_rows_give_what_many_tensors_cost_beyond_few():
    rows = behind_results.small_rows({SAVE: [SmallSave(2.0, 2.0, 0.5), SmallSave(4.0, 4.0, 1.5)]})
    assert (rows[0]["beyond_s"], rows[0]["max_beyond_s"]) == (2.0, 2.5)
    held = behind_results.targets({"small": rows}, GiB)
    assert [(target.bound, target.is_met) for target in held] == [(2.0, True)]


def test_training_step_changes_all_weights_and_times_the_wait_of_the_optimizer():
    training = Training(1 << 20, 4)
    before = checksums({"weights": list(training.model.parameters())})
    waited = []
    times = training.step(lambda: waited.append(True))
    after = checksums({"weights": list(training.model.parameters())})
    assert all(a != b for a, b in zip(before, after, strict=True))
    assert waited == [True]
    assert min(times.forward_backward_s, times.wait_s, times.optimizer_s) > 0


def test_training_tensors_are_weights_and_moments_once():
    training = Training(1 << 20, 4)
    num_parameters = len(list(training.model.parameters()))
    assert len(training.tensors()) == 4 * num_parameters  # one weight is at two places
    assert all(isinstance(tensor, torch.Tensor) for tensor in training.tensors())


@pytest.mark.skipif(fio.version() is None, reason="fio is not installed")
def test_throttled_write_begins_ends_and_tells_its_rate(tmp_path):
    writing = ThrottledWrite(tmp_path / "f", 1 << 20, 1e9, FioOptions(block_bytes=1 << 18))
    writing.wait_until_begun()
    assert writing.finish() > 0
    assert writing.is_over()
    assert (tmp_path / "f").stat().st_size == 1 << 20


@pytest.mark.parametrize("words", [["--only", "speed"], ["--rounds", "0"], ["--size", "many"]])
def test_checkpointer_wrong_argument_is_status_2_and_says_why(words, capsys):
    assert checkpointer.main(words) == 2
    assert capsys.readouterr().err.startswith("bench: ")


def test_checkpointer_small_benchmark_writes_json_and_page(tmp_path):
    words = ["--size", "1MiB", "--tokens", "4", "--rounds", "1", "--saves", "1", "--small", "40"]
    outputs = ["--json", str(tmp_path / "r.json"), "--markdown", str(tmp_path / "r.md")]
    assert checkpointer.main([*words, *outputs, "--dir", str(tmp_path)]) == 0
    report = json.loads((tmp_path / "r.json").read_text())
    assert {row["method"] for row in report["results"]["stall"]} >= {SAVE, FENCE, HOST, COPY, DCP}
    assert {row["method"] for row in report["results"]["beside"]} >= {FENCE, HOST, NOTHING, DCP}
    assert [row["method"] for row in report["results"]["small"]] == [SAVE, FENCE, HOST]
    assert str(tmp_path) not in json.dumps(report)
    assert "## Targets" in (tmp_path / "r.md").read_text()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["r.json", "r.md"]
