import copy
import dataclasses
import json
import subprocess
import sys

import pytest

from gdsckpt.config import Config
from gdsckpt.demo import checks
from gdsckpt.demo import run as demo
from gdsckpt.demo.model import Gpt, Shape, shape_for
from gdsckpt.demo.resume import Order, ResumeError, run_in_child
from gdsckpt.demo.training import RunOptions, Training, deterministic, fingerprint
from gdsckpt.errors import ConfigError

TINY = Shape(num_layers=1, width=32)
TEXT = bytes(range(256)) * 20
OPTIONS = RunOptions(TINY, num_steps=6, seed=5, threads=1)
LOCAL_CLAIMS = [
    "stock_torch",
    "zip",
    "verify",
    "losses",
    "final_state",
    "killed",
    "crash_losses",
    "crash_state",
    "flip_verify",
    "flip_load",
]
TIMINGS = [
    "gdsckpt.save",
    "torch.save + fsync",
    "gdsckpt.load, verified",
    "torch.load",
]


def command(*arguments, cwd):
    return subprocess.run(
        [sys.executable, "-m", "gdsckpt.cli.main", "demo", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=200,
    )


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    directory = tmp_path_factory.mktemp("demo")
    arguments = ["--params", "60K", "--steps", "6", "--no-store", "--dir", str(directory), "--json"]
    return command(*arguments, cwd=directory), directory


def test_demo_proves_every_claim(done):
    result, _ = done
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["ok"] is True
    assert [claim["name"] for claim in document["claims"]] == LOCAL_CLAIMS
    assert all(claim["ok"] for claim in document["claims"])
    assert document["losses"] == document["resumed_losses"]
    assert len(document["losses"]) == 3
    assert [timing["what"] for timing in document["timings"]] == TIMINGS


def test_demo_no_store_says_what_is_left_out(done):
    result, _ = done
    document = json.loads(result.stdout)
    assert document["store"] is None
    assert document["left_out"] == "--no-store was given."
    assert "== Left out: to a bucket and back" in result.stderr
    assert "All 10 claims hold. Left out: the bucket." in result.stderr


def test_demo_json_keeps_the_story_off_stdout(done):
    result, _ = done
    assert "== Flip one bit in a copy" in result.stderr


def test_demo_removes_its_files(done):
    _, directory = done
    assert list(directory.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--params", "1K"), 4),
        (("--steps", "1"), 4),
        (("--params", "many"), 2),
        (("--store", "file:///mnt/checkpoints"), 4),
        (("--store", "s3://checkpoints", "--no-store"), 2),
        (("--endpoint-url", "http://127.0.0.1:9"), 2),
    ],
)
def test_demo_wrong_options_are_one_line(arguments, code, tmp_path):
    result = command(*arguments, "--dir", str(tmp_path), cwd=tmp_path)
    assert result.returncode == code
    assert result.stderr.startswith("gdsckpt: error: ")
    assert result.stderr.count("\n") == 1


def test_demo_checks_wrong_options_before_writing(tmp_path):
    options = demo.DemoOptions(1000, 4, tmp_path / "new", keep=False, config=Config())
    with pytest.raises(ConfigError) as raised:
        demo.run(options, print)
    assert raised.value.field == "params"
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("wanted", [60_000, 1_000_000, 10_000_000, 50_000_000, 1_300_000_000])
def test_shape_for_is_near(wanted):
    assert abs(shape_for(wanted).num_parameters / wanted - 1) < 0.1


@pytest.mark.parametrize("shape", [TINY, Shape(num_layers=3, width=64)])
def test_shape_counts_the_parameters_of_the_model(shape):
    assert sum(p.numel() for p in Gpt(shape).parameters()) == shape.num_parameters


def saved(tmp_path, change=None):
    """Train half, save (a changed state, if asked), train on; gives the order and the end."""
    import gdsckpt

    order = Order(tmp_path / "c.pt", tmp_path / "text", OPTIONS, Config())
    order.text.write_bytes(TEXT)
    with deterministic(OPTIONS.threads):
        training = Training(OPTIONS, TEXT)
        training.train(3)
        state = training.state_dict()
        if change is not None:
            state = copy.deepcopy(state)  # its containers are those of the optimizer
            change(state)
        gdsckpt.save(state, order.checkpoint)
        losses = training.train(3)
    return order, losses, fingerprint(training.state_dict())


def test_resume_equals_the_run_that_went_on(tmp_path):
    order, losses, end = saved(tmp_path)
    resumed = run_in_child(order)
    assert resumed.losses == tuple(losses)
    assert resumed.fingerprint == end
    assert resumed.first_step == 3


def lose_torch_rng(state):
    import torch

    state["random"]["torch"] = torch.Generator().manual_seed(99).get_state()


def lose_python_rng(state):
    import random

    state["random"]["python"] = random.Random(99).getstate()


def lose_data_position(state):
    state["data"]["position"] = 0


def lose_momentum(state):
    for entry in state["optimizer"]["state"].values():
        entry["exp_avg"] = entry["exp_avg"].clone() * 2


def lose_schedule(state):
    state["scheduler"]["last_epoch"] = 0


@pytest.mark.parametrize(
    "lose",
    [lose_torch_rng, lose_python_rng, lose_data_position, lose_momentum, lose_schedule],
)
def test_resume_without_one_part_of_the_state_differs(lose, tmp_path):
    import gdsckpt

    order, losses, end = saved(tmp_path, lose)
    with deterministic(OPTIONS.threads):
        training = Training(OPTIONS, TEXT)
        training.load_state_dict(gdsckpt.load(order.checkpoint))
        resumed = training.train(3)
    assert (resumed, fingerprint(training.state_dict())) != (losses, end)


def test_resume_from_a_damaged_file_fails(tmp_path):
    order, _, _ = saved(tmp_path)
    raw = bytearray(order.checkpoint.read_bytes())
    raw[len(raw) // 2] ^= 1
    order.checkpoint.write_bytes(raw)
    with pytest.raises(ResumeError, match="ChecksumError"):
        run_in_child(order)


def test_stock_torch_check_sees_a_difference(tmp_path):
    import gdsckpt

    state = Training(OPTIONS, TEXT).state_dict()
    gdsckpt.save(state, tmp_path / "a.pt")
    assert checks.stock_torch_opens(tmp_path / "a.pt", state).ok
    state["step"] = 7
    assert not checks.stock_torch_opens(tmp_path / "a.pt", state).ok


def test_zip_check_sees_damage(tmp_path):
    import gdsckpt

    path = tmp_path / "a.pt"
    gdsckpt.save(Training(OPTIONS, TEXT).state_dict(), path)
    assert checks.is_sound_zip(path).ok
    checks.flip(path)
    assert not checks.is_sound_zip(path).ok
    assert not checks.is_verified(path, Config()).ok


def test_flip_check_sees_that_nothing_was_found(tmp_path):
    import gdsckpt

    path = tmp_path / "a.pt"
    gdsckpt.save(Training(OPTIONS, TEXT).state_dict(), path)
    claims = checks.damage_is_caught(path, "no bit", Config(), "flip")
    assert [(claim.name, claim.ok) for claim in claims] == [
        ("flip_verify", False),
        ("flip_load", False),
    ]


def test_demo_result_without_claims_is_not_ok():
    assert not demo.DemoResult("d").ok
    failed = dataclasses.replace(demo.DemoResult("d"), claims=[checks.Claim("zip", False, "bad")])
    assert not failed.ok
