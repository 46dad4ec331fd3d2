"""The command ``gdsckpt plan``, as a user runs it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import gdsckpt
from gdsckpt.cli.main import main

ROOT = Path(__file__).parents[2]


@pytest.fixture
def plan(capsys):
    def call(*arguments, simulate="0"):
        capsys.readouterr()
        words = ["plan", *map(str, arguments)]
        if not {"--watch", "--references", "--help", "--simulate"} & set(words):
            words += ["--simulate", simulate]
        try:
            code = main(words)
        except SystemExit as exc:
            code = exc.code or 0
        captured = capsys.readouterr()
        return int(code), captured.out, captured.err

    return call


@pytest.mark.parametrize("name", ["gb200-nvl72-hourly", "h100-70b", "1t-mlperf", "small"])
def test_plan_of_ready_made_scenario_prints_tables(plan, name):
    code, out, err = plan("--scenario", name)
    assert (code, err) == (0, "")
    assert out.startswith(name)
    for heading in ("Advice", "One checkpoint", "Who writes", "One save", "Cadence", "Cost of"):
        assert f"\n{heading}" in out


def test_plan_json_has_the_numbers(plan):
    code, out, err = plan("--parameters", "70B", "--gpus", "64", "--json")
    assert err == ""
    found = json.loads(out)
    assert found["size"]["nbytes"]["mid"] == 980e9
    assert found["placement"]["layout"]["data"] == 64
    assert code == (1 if any(each["level"] == "warning" for each in found["advice"]) else 0)


def test_plan_with_warnings_exits_with_a_finding(plan):
    code, out, _ = plan("--scenario", "h100-70b", "--interval", "5s", "--mode", "sync")
    assert code == 1
    assert "- warning: training waits" in out


def test_plan_simulates(plan):
    code, out, err = plan("--scenario", "small", simulate="200")
    assert (code, err) == (0, "")
    assert "simulated 200 runs of 7 d" in out


@pytest.mark.parametrize("suffix", ["png", "svg", "html"])
def test_plan_plots(plan, tmp_path, suffix):
    path = tmp_path / f"out.{suffix}"
    code, _, err = plan("--scenario", "small", "--plot", path)
    assert (code, err) == (0, f"wrote {path}\n")
    beginning = {"png": b"\x89PNG", "svg": b"<?xml", "html": b"<!DOCTYPE html>"}[suffix]
    assert path.read_bytes().startswith(beginning)


def test_plan_reads_a_file_and_flags_win(plan, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('name = "mine"\n[model]\nparameters = "8B"\n[saves]\ninterval = "20min"\n')
    _, out, _ = plan("--file", path, "--parameters", "1B", "--json")
    found = json.loads(out)
    assert found["scenario"]["name"] == "mine"
    assert found["scenario"]["model"]["parameters"] == 10**9
    assert found["schedule"]["interval_s"] == 1200


def test_plan_takes_a_live_model(plan, tmp_path, monkeypatch):
    (tmp_path / "my_model.py").write_text(
        "import torch\ndef make():\n    return torch.nn.Linear(100_000, 1_000_000, bias=False)\n"
    )
    monkeypatch.chdir(tmp_path)
    code, out, err = plan("--model", "my_model:make", "--json")
    assert err == ""
    found = json.loads(out)
    assert found["size"]["num_parameters"] == 10**11  # 400 GB, were it made
    assert found["size"]["nbytes"]["mid"] == 14e11
    assert found["scenario"]["name"] == "my_model:make"
    assert code in (0, 1)


def test_plan_takes_the_configuration_of_a_model(plan, tmp_path):
    config = {
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    _, out, _ = plan("--model-config", path, "--json")
    # Llama 3 70B has 70,553,706,496 parameters.
    assert json.loads(out)["size"]["num_parameters"] == 70_553_706_496


def test_plan_references(plan):
    code, out, err = plan("--references")
    assert (code, err) == (0, "")
    assert "521 GB" in out
    assert "+20.0 %" in out


def test_plan_references_json(plan):
    code, out, err = plan("--references", "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    published = {each["name"]: each for each in document["sizes"]}
    assert published["70B, rule of 14 bytes"]["computed_bytes"] == 980e9
    assert document["rates"][-1]["difference"] == pytest.approx(0.2)


def test_plan_run_too_short_is_named_as_given(plan):
    code, _, err = plan("--scenario", "small", "--run", "0.1s")
    assert code == 2
    assert "--run is '0.1s'" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--parameters 70B"),
        (("--scenario", "huge"), "--scenario is 'huge'"),
        (("--parameters", "-1"), "--parameters"),
        (("--parameters", "0"), "--parameters"),
        (("--parameters", "70GB"), "--parameters"),
        (("--checkpoint", "912"), "--checkpoint is '912', without a unit"),
        (("--scenario", "small", "--interval", "60"), "--interval is '60'"),
        (("--scenario", "small", "--interval", "0s"), "--interval"),
        (("--scenario", "small", "--store-rate", "70GB"), "--store-rate"),
        (("--scenario", "small", "--gpu-hour", "3"), "--gpu-hour is '3'"),
        (("--scenario", "small", "--part", "1MB"), "--part"),
        (("--scenario", "small", "--node", "toaster"), "--node is 'toaster'"),
        (("--scenario", "small", "--file", "x.toml"), "--scenario and --file contradict"),
        (("--parameters", "1B", "--checkpoint", "1GB"), "--checkpoint and --parameters contra"),
        (("--parameters", "1B", "--model", "a:b"), "--model and --parameters contradict"),
        (("--parameters", "1B", "--gpus", "8", "--data", "4"), "--gpus and --data contradict"),
        (
            ("--parameters", "1B", "--gpus", "8", "--tensor", "3"),
            "--gpus is 8, no multiple of --tensor",
        ),
        (("--scenario", "small", "--plot", "out.pdf"), "--plot is 'out.pdf'"),
        (("--scenario", "small", "--every", "1s"), "--every belongs to --watch"),
        (("--scenario", "small", "--simulate", "-5"), "--simulate"),
        (
            ("--scenario", "small", "--simulate", "99999999"),
            "--simulate is 99999999: give 0 to 1000000",
        ),
        (("--scenario", "small", "--seed", "x"), "--seed"),
        (("--watch", "r", "--plot", "a.png"), "--watch and --plot contradict"),
        (("--watch", "r", "--json", "--rounds", "2"), "--json and --rounds contradict"),
        (("--scenario", "small", "--file-system", "weka"), "storage.weka"),
        (("--scenario", "small", "--experts", "50%", "--expert", "3"), "--expert is 3"),
        (("--parameters", "1B", "--expert", "2"), "--expert is 2, but the model has no experts"),
        (("--scenario", "small", "--sharding", "hsdp"), "hsdp, which needs --shard-ranks"),
        (("--scenario", "small", "--shard-ranks", "2"), "--shard-ranks is 2, but --sharding is"),
        (("--parameters", "1B", "--keep-every", "2"), "give --keep-uploads"),
        (("--scenario", "small", "--bucket", "tape"), "--bucket: storage 'tape'"),
        (("--scenario", "small", "--file-system", "ext4"), "--file-system: storage 'ext4'"),
        (("--scenario", "small", "--model", "train"), "--model is 'train'"),
        (("--scenario", "small", "--prices", __file__), "--prices: "),
        (("--scenario", "small", "--step-time", "1h"), "--step-time is 1 h, more than --interval"),
        (("--scenario", "small", "--weights", "fp32", "--master", "yes"), "--master is yes"),
        (("--scenario", "small", "--mtbf-job", "1ms"), "--mtbf-job is '1ms'"),
        (("--scenario", "small", "--bogus", "1"), "unrecognized arguments: --bogus"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_plan_bad_input_is_one_line_that_names_it(plan, arguments, said):
    code, out, err = plan(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("gdsckpt: error: ")
    assert err.count("\n") == 1
    assert said in err


def test_plan_missing_files_are_one_line(plan, tmp_path):
    for flag in ("--file", "--from-report", "--watch"):
        code, out, err = plan(flag, tmp_path / "missing")
        assert (code, out) == (4, "")
        assert err.count("\n") == 1
        assert str(tmp_path / "missing") in err


def save_run(root, num_steps=3):
    """A real run of a Checkpointer."""
    with gdsckpt.Checkpointer(root, keep_local=2) as checkpointer:
        for step in range(1, num_steps + 1):
            state = {"weights": torch.full((300_000,), float(step)), "step": step}
            checkpointer.save(step, state)
    return root


def test_plan_from_report_of_a_real_run(plan, tmp_path):
    root = save_run(tmp_path / "run")
    code, out, err = plan("--from-report", root, "--interval", "10min", "--json")
    assert err == ""
    found = json.loads(out)
    assert found["measured"]["num_saves"] == 3
    assert found["measured"]["num_skipped"] == 0
    assert 1_200_000 <= found["size"]["nbytes"]["mid"] < 1_400_000
    assert found["schedule"]["interval_s"] == 600
    assert found["placement"]["layout"]["data"] == 1
    assert code in (0, 1)


def test_plan_watch_of_a_real_run(plan, tmp_path):
    root = save_run(tmp_path / "run")
    code, out, err = plan("--watch", root, "--rounds", "2", "--every", "1ms", "--interval", "10min")
    assert err == ""
    assert out.count("fits: 3 saves") == 2
    assert code == 0


def test_plan_watch_before_the_first_save(plan, tmp_path):
    code, out, _ = plan("--watch", tmp_path, "--json")
    assert code == 0
    assert json.loads(out)["fits"] is None


def test_plan_help_names_every_input_with_its_unit(plan):
    code, out, _ = plan("--help")
    assert code == 0
    for word in ("--interval TIME", "--store-rate RATE", "--part BYTES", "--gpu-hour USD"):
        assert word in out


def test_plan_page_needs_no_torch_and_no_display(tmp_path):
    code = (
        "import sys\n"
        "from gdsckpt.cli.main import main\n"
        "done = main(['plan', '--scenario', 'small', '--simulate', '0', '--plot', 'a.html'])\n"
        "assert 'torch' not in sys.modules\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
        "sys.exit(done)\n"
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    environ.pop("DISPLAY", None)
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "wrote a.html\n")
