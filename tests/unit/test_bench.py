import json
import os

import pytest

from bench import environment, fio, markdown, measure, memory, results, run
from bench.measure import Method, OwnClock, Rounds, Sample
from bench.results import Target

torch_save = "torch.save + fsync"


def samples(*seconds, nbytes=1_000_000_000):
    return [Sample(s, 0.5, nbytes) for s in seconds]


def test_rotated_lets_everyone_begin_and_reverses_every_other_turn():
    orders = [measure.rotated("abc", turn) for turn in range(4)]
    assert orders == [["a", "b", "c"], ["a", "c", "b"], ["c", "a", "b"], ["c", "b", "a"]]


def test_rate_ratio_pairs_the_runs_of_one_round():
    # The third round was slow for both: the ratio is 2 in every round.
    assert results.rate_ratio(samples(1, 2, 10), samples(2, 4, 20)) == 2.0


def test_summarize_gives_medians_spread_and_ratios():
    rows = results.summarize(
        {
            "gdsckpt.save": samples(2, 1, 3),
            torch_save: samples(8, 4, 12),
            "fio direct write": samples(1, 1, 1),
        }
    )
    ours = rows[0]
    assert (ours["median_s"], ours["min_s"], ours["max_s"]) == (2, 1, 3)
    assert ours["gb_per_s"] == 0.5
    assert ours["cpu_s_per_gb"] == 0.5
    assert ours["ratio_to_limit"] == 0.5
    assert ours["ratio_to_torch"] == 4.0


def test_summarize_compares_into_with_the_limit_of_its_own_rounds():
    rows = results.summarize(
        {
            "gdsckpt.load": samples(2, 2),
            "fio direct read": samples(1, 1),
            "gdsckpt.load(into=)": samples(2, 2),
            "fio direct read, beside into=": samples(4, 4),
        }
    )
    assert [row["ratio_to_limit"] for row in rows] == [0.5, 1.0, 2.0, 1.0]


def test_summarize_keeps_the_medians_of_stages():
    runs = [Sample(1, 1, 1, {"write_s": s}) for s in (1.0, 5.0, 2.0)]
    assert results.summarize({"gdsckpt.save": runs})[0]["stages"] == {"write_s": 2.0}


@pytest.mark.parametrize(
    ("measured", "is_minimum", "is_met"),
    [(0.85, True, True), (0.84, True, False), (0.85, False, True), (0.86, False, False)],
)
def test_target_is_met_on_the_right_side_of_its_bound(measured, is_minimum, is_met):
    assert Target("x", measured, 0.85, is_minimum).is_met is is_met


def test_targets_cover_every_scenario():
    row = {"ratio_to_limit": 0.9, "ratio_to_torch": 3.5}
    held = results.targets(
        {
            "save": [{"method": "gdsckpt.save", **row}],
            "load_cold": [{"method": "gdsckpt.load", **row}],
            "memory": [
                {
                    "library": "gdsckpt",
                    "state_bytes": 1 << 30,
                    "save_extra_bytes": 64 << 20,
                    "load_extra_bytes": 600 << 20,
                },
                {"library": "torch", "state_bytes": 1 << 30},
            ],
            "file_size": [
                {
                    "tensor_bytes": 65536,
                    "payload_bytes": 1000,
                    "gdsckpt_bytes": 1005,
                    "torch_bytes": 1001,
                },
                {
                    "tensor_bytes": 4096,
                    "payload_bytes": 1000,
                    "gdsckpt_bytes": 1122,
                    "torch_bytes": 1100,
                },
            ],
        }
    )
    assert [round(target.measured, 3) for target in held] == [0.9, 3.5, 0.9, 64, 600, 0.5, 2.0]
    assert [target.is_met for target in held] == [True, True, True, True, False, True, False]


def test_command_line_hides_the_paths_of_the_machine():
    words = ["--size", "1GiB", "--dir", "/secret", "--json=/secret/x"]
    shown = environment.command_line(words, "bench/run.py")
    assert shown == "python bench/run.py --size 1GiB --dir DIR --json=OUT.json"


def test_markdown_table_aligns_numbers_to_the_right():
    assert markdown.table(("a", "b"), [("x", "1")]) == "| a | b |\n|---|---:|\n| x | 1 |\n"


def test_fio_command_of_a_write_syncs_and_of_a_read_does_not_write(tmp_path):
    write = fio.command("write", tmp_path / "f", 1 << 30, fio.FioOptions())
    read = fio.command("read", tmp_path / "f", 1 << 30, fio.FioOptions(iodepth=8))
    assert {"--direct=1", "--end_fsync=1", "--size=1073741824"} <= set(write)
    assert {"--readonly", "--iodepth=8"} <= set(read)


def test_run_rounds_takes_the_clock_of_a_tool_that_has_one(tmp_path):
    method = Method("fio direct write", lambda: OwnClock(2.0, 7), tmp_path / "f")
    prepared = []
    found = measure.run_rounds([method], Rounds(2, 1, 0), prepare=prepared.append)
    assert [(s.seconds, s.nbytes) for s in found["fio direct write"]] == [(2.0, 7)] * 2
    assert prepared == [method, method]


def test_resident_share_of_a_file_just_read_is_all(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(os.urandom(1 << 20))
    measure.warm(path)
    assert measure.resident_share(path) == 1.0


def test_memory_extra_bytes_of_a_save_is_measured_in_its_own_process(tmp_path):
    extra = memory.extra_bytes("save", "gdsckpt", tmp_path / "a.pt", 8 << 20, 1 << 20)
    assert 0 < extra < 256 << 20
    assert (tmp_path / "a.pt").stat().st_size >= 8 << 20


@pytest.mark.parametrize(
    "words", [["--only", "speed"], ["--tensor", "2GiB", "--size", "1GiB"], ["--size", "many"]]
)
def test_run_wrong_argument_is_status_2_and_says_why(words, capsys):
    assert run.main(words) == 2
    assert capsys.readouterr().err.startswith("bench: ")


def test_run_small_benchmark_writes_json_and_page(tmp_path):
    words = ["--quick", "--size", "2MiB", "--tensor", "1MiB", "--only", "save"]
    outputs = ["--json", str(tmp_path / "r.json"), "--markdown", str(tmp_path / "r.md")]
    assert run.main([*words, *outputs, "--dir", str(tmp_path)]) == 0
    report = json.loads((tmp_path / "r.json").read_text())
    methods = {row["method"] for row in report["results"]["save"]}
    assert {"gdsckpt.save", "torch.save + fsync", "DCP FileSystemWriter"} <= methods
    assert str(tmp_path) not in json.dumps(report)
    assert "## Targets" in (tmp_path / "r.md").read_text()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["r.json", "r.md"]
