"""Commands on the root of a Checkpointer: its steps, and what is set aside."""

import json
import os
from pathlib import Path

import pytest
from cli_runs import flip, run_here
from root_cases import finish, save_step, shard_of, start, states, tear_step

from gdsckpt.staging import manifests, pruning, quarantine
from gdsckpt.staging.root_lock import RootLock

HOLD = """
import sys
from gdsckpt.staging.root_lock import RootLock
with RootLock.acquire(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def place(tmp_path):
    """A root in which training went back to step 10, that nobody holds."""
    RootLock.acquire(tmp_path / "root").release()
    for step, sequence in ((10, 1), (20, 4), (30, 2), (40, 3)):
        save_step(tmp_path / "root", step, sequence=sequence, metric=1 / step)
    return tmp_path / "root"


def document_of(capsys, *arguments, code=0):
    done = run_here(capsys, *arguments)
    assert done.code == code, done.err
    return json.loads(done.out)


def test_ls_of_a_root_shows_ranks_and_superseded_steps(capsys, place):
    save_step(place, 25, sequence=5, num_ranks=3)
    rows = document_of(capsys, "ls", "--json", place)["entries"]
    assert [(row["step"], row["state"], row["num_ranks"]) for row in rows] == [
        (10, "complete", 1),
        (20, "complete", 1),
        (25, "complete", 3),
        (30, "superseded", 1),
        (40, "superseded", 1),
    ]
    assert rows[0]["metric"] == 0.1
    done = run_here(capsys, "ls", place)
    head, *lines = done.out.splitlines()
    assert head.split()[:5] == ["name", "kind", "step", "ranks", "bytes"]
    assert lines[2].split()[2:4] == ["25", "3"]
    assert lines[5] == (
        f"superseded: {place / 'step-00000030'}: training went back and saved step 25 after it"
    )


def test_ls_of_a_root_shows_what_is_set_aside(capsys, place):
    tear_step(place, 50)
    shard_of(save_step(place, 22, sequence=5)).unlink()
    quarantine.recover(place)
    rows = document_of(capsys, "ls", "--json", place)["entries"]
    assert [(row["step"], row["state"]) for row in rows if row["state"] != "complete"] == [
        (22, "set aside"),
        (30, "set aside"),
        (40, "set aside"),
        (50, "set aside"),
    ]
    assert [row["reason"].split(": ")[1].split(";")[0] for row in rows[2:]] == [
        "damaged",
        "superseded",
        "superseded",
        "torn",
    ]


def test_ls_of_a_root_shows_an_empty_step_directory(capsys, place):
    (place / "step-00000050").mkdir()
    rows = document_of(capsys, "ls", "--json", place)["entries"]
    assert (Path(rows[-1]["path"]).name, rows[-1]["state"]) == ("step-00000050", "no manifest")


def test_ls_of_a_root_removes_what_was_pruned_by_half(capsys, place):
    moved = pruning.take_off(place, place / "step-00000040")
    rows = document_of(capsys, "ls", "--json", place)["entries"]
    assert (rows[-1]["path"], rows[-1]["state"]) == (str(moved), "leftover")
    assert rows[-1]["nbytes"] > 0
    document = document_of(capsys, "ls", "--json", "--remove-leftovers", place)
    assert document["removed"] == [str(moved)]
    assert not moved.exists()


def test_ls_of_a_root_says_who_holds_it(capsys, place):
    assert document_of(capsys, "ls", "--json", place)["holders"] == {}
    process = start(HOLD, place)
    process.stdout.readline()
    holders = document_of(capsys, "ls", "--json", place)["holders"]
    assert holders[str(place)].startswith(f"process {process.pid} on ")
    done = run_here(capsys, "ls", place)
    assert f"{place} is in use by process {process.pid} on " in done.err
    finish(process)


def test_inspect_of_a_root_shows_its_newest_step(capsys, place):
    done = run_here(capsys, "inspect", place)
    assert done.code == 0
    assert "newest" in done.err
    lines = dict(line.split(None, 1) for line in done.out.splitlines() if " " in line)
    assert (lines["step"], lines["sequence"], lines["metric"]) == ("20", "4", "0.05")


def test_inspect_of_a_root_without_complete_step_is_code_4(capsys, tmp_path):
    tear_step(tmp_path, 1)
    done = run_here(capsys, "inspect", tmp_path)
    assert done.code == 4
    assert "none of the 1 steps" in done.err


def test_verify_of_a_root_checks_each_step(capsys, place):
    tear_step(place, 50)
    document = document_of(capsys, "verify", "--json", place)
    assert document["ok"] is True
    assert [Path(report["path"]).name for report in document["reports"]] == [
        f"step-000000{step}" for step in (10, 20, 30, 40)
    ]
    assert [Path(step["path"]).name for step in document["skipped"]] == ["step-00000050"]
    assert "skipped" in run_here(capsys, "verify", place).err


def test_verify_of_a_root_names_the_damaged_step(capsys, place):
    flip(shard_of(place / "step-00000030"), 200)
    done = run_here(capsys, "verify", place)
    assert done.code == 1
    lines = [line for line in done.out.splitlines() if not line.startswith(" ")]
    assert [line.split(":")[1].split(",")[0] for line in lines] == [" ok", " ok", " DAMAGED", " ok"]


def test_verify_of_a_root_without_any_save_is_code_4(capsys, tmp_path):
    tear_step(tmp_path, 1)
    assert run_here(capsys, "verify", tmp_path).code == 4


def test_verify_of_several_ranks_names_the_shard(capsys, place):
    path = save_step(place, 50, sequence=9, num_ranks=3)
    shard = path / manifests.read_manifest(path).shards[1].name
    flip(shard, 200)
    done = run_here(capsys, "verify", path)
    assert done.code == 1
    assert str(shard) in done.out


def test_diff_of_several_ranks_compares_rank_by_rank(capsys, tmp_path):
    a = save_step(tmp_path, 1, num_ranks=2)
    b = save_step(tmp_path, 2, num_ranks=2)
    document = document_of(capsys, "diff", "--json", a, b, code=1)
    assert [(each["rank"], [c["name"] for c in each["changed"]]) for each in document["ranks"]] == [
        (0, ["a"]),
        (1, ["a"]),
    ]
    assert (document["added_ranks"], document["removed_ranks"]) == ([], [])
    done = run_here(capsys, "diff", a, b)
    assert [line for line in done.out.splitlines() if line.startswith("rank")] == [
        "rank 0",
        "rank 1",
    ]
    assert document_of(capsys, "diff", "--json", a, a)["same"] is True


def test_diff_of_other_numbers_of_ranks_names_those_that_differ(capsys, tmp_path):
    a = save_step(tmp_path, 1, value=5, num_ranks=1)
    b = save_step(tmp_path, 2, value=5, num_ranks=3)
    document = document_of(capsys, "diff", "--json", a, b, code=1)
    assert document["added_ranks"] == [1, 2]
    assert document["removed_ranks"] == []
    done = run_here(capsys, "diff", b, a)
    assert done.out.splitlines()[-1] == f"removed ranks 1 to 2: only {b} has them"


def test_diff_of_steps_of_one_rank_is_as_of_files(capsys, place):
    document = document_of(
        capsys, "diff", "--json", place / "step-00000010", place / "step-00000020", code=1
    )
    assert [each["name"] for each in document["changed"]] == ["a"]


def test_diff_of_a_root_asks_for_a_step(capsys, place):
    done = run_here(capsys, "diff", place, place / "step-00000010")
    assert done.code == 4
    assert "Name one, such as" in done.err


def names_in(place):
    return sorted(path.name for path in place.iterdir() if path.name.startswith("step-"))


def test_prune_deletes_what_no_rule_keeps(capsys, place):
    for step, sequence in ((22, 5), (24, 6), (26, 7)):
        save_step(place, step, sequence=sequence, metric=1.0)
    arguments = ("prune", place, "--keep-local", 1, "--keep-every", 8, "--keep-best", 1, "--json")
    plan = document_of(capsys, *arguments, "--dry-run")
    assert plan["dry_run"] is True
    assert {each["step"]: (each["action"], each["why"]) for each in plan["steps"]} == {
        10: (
            "delete",
            "not one of the 1 newest, nor of the 1 with the best metric, nor a multiple of 8",
        ),
        20: ("keep", "one of the 1 with the best metric (0.05)"),
        22: (
            "delete",
            "not one of the 1 newest, nor of the 1 with the best metric, nor a multiple of 8",
        ),
        24: ("keep", "a multiple of 8"),
        26: ("keep", "the newest"),
        30: ("set aside", "training went back and saved step 26 after it"),
        40: ("set aside", "training went back and saved step 26 after it"),
    }
    before = names_in(place)
    assert len(before) == 7
    done = document_of(capsys, *arguments)
    assert done["steps"] == plan["steps"]
    assert done["freed_bytes"] == plan["freed_bytes"] > 0
    assert names_in(place) == ["step-00000020", "step-00000024", "step-00000026"]
    assert [entry.step for entry in quarantine.entries(place)] == [30, 40]


def test_prune_prints_a_table(capsys, place):
    done = run_here(capsys, "prune", place, "--keep-local", 1)
    lines = [line.split() for line in done.out.splitlines()]
    assert lines[0] == ["step", "bytes", "action", "why", "path"]
    assert [(line[0], line[3]) for line in lines[1:3]] == [("10", "deleted"), ("20", "kept")]
    assert lines[-1][-1] == "freed"


def test_prune_keeps_a_step_that_is_being_read(capsys, place):
    with manifests.being_read(place / "step-00000010"):
        document = document_of(capsys, "prune", place, "--keep-local", 1, "--json")
    assert [(each["step"], each["action"], each["why"]) for each in document["steps"]][0] == (
        10,
        "keep",
        "it is in use",
    )
    assert "step-00000010" in names_in(place)


def test_prune_keeps_a_superseded_step_that_is_being_read_superseded(capsys, place):
    save_step(place, 50, sequence=5)
    with manifests.being_read(place / "step-00000040"):
        document = document_of(capsys, "prune", place, "--keep-local", 1, "--json")
    assert [(each["step"], each["action"]) for each in document["steps"]] == [
        (10, "delete"),
        (20, "keep"),
        (30, "set aside"),
        (40, "keep"),
        (50, "keep"),
    ]
    assert states(place) == {20: "complete", 40: "superseded", 50: "complete"}


def test_prune_of_a_root_in_use_is_code_4_and_changes_nothing(capsys, place):
    process = start(HOLD, place)
    process.stdout.readline()
    before = names_in(place)
    done = run_here(capsys, "prune", place, "--keep-local", 1)
    assert done.code == 4
    assert f"in use by process {process.pid}" in done.err
    assert run_here(capsys, "prune", place, "--keep-local", 1, "--dry-run").code == 0
    assert names_in(place) == before
    finish(process)


def test_prune_of_the_quarantine_deletes_what_is_set_aside(capsys, place):
    shard_of(save_step(place, 50, sequence=9)).unlink()
    quarantine.recover(place)
    assert len(quarantine.entries(place)) == 3
    plan = document_of(capsys, "prune", place, "--quarantine", "--dry-run", "--json")
    assert [(each["step"], each["action"]) for each in plan["steps"]] == [
        (10, "keep"),
        (20, "keep"),
        (30, "delete"),
        (40, "delete"),
        (50, "delete"),
    ]
    assert len(quarantine.entries(place)) == 3
    document_of(capsys, "prune", place, "--quarantine", "--json")
    assert quarantine.entries(place) == ()
    assert names_in(place) == ["step-00000010", "step-00000020"]


def test_prune_leaves_torn_damaged_and_foreign_steps(capsys, place):
    tear_step(place, 50)
    shard_of(save_step(place, 60, sequence=9)).unlink()
    (tear_step(place, 70) / ".metadata").write_bytes(b"of DCP")
    document = document_of(capsys, "prune", place, "--keep-local", 9, "--json")
    assert [(each["step"], each["action"]) for each in document["steps"]][-3:] == [
        (50, "keep"),
        (60, "keep"),
        (70, "keep"),
    ]
    assert names_in(place)[-3:] == ["step-00000050", "step-00000060", "step-00000070"]


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--keep-every", 5),
        ("--keep-best", 5, "--quarantine"),
        ("--keep-local", 0),
        ("--keep-local", "x"),
        ("--keep-local", 1, "--metric", "mean"),
    ],
)
def test_prune_without_usable_rules_is_code_2_and_changes_nothing(capsys, place, arguments):
    before = names_in(place)
    assert run_here(capsys, "prune", place, *arguments).code == 2
    assert names_in(place) == before


def test_prune_of_another_directory_is_code_4_and_makes_nothing(capsys, tmp_path):
    (tmp_path / "other").mkdir()
    done = run_here(capsys, "prune", tmp_path / "other", "--keep-local", 1)
    assert done.code == 4
    assert os.listdir(tmp_path / "other") == []  # noqa: PTH208
    assert run_here(capsys, "prune", tmp_path / "absent", "--keep-local", 1).code == 4
    assert not (tmp_path / "absent").exists()
