"""`gdsckpt probe` over stand-in GPUs, in processes of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_cuda import stand_ins

ROOT = Path(__file__).parents[2]
RUN = "import sys; from gdsckpt.cli.main import main; sys.exit(main())"


def probe(directory, *arguments, **libraries):
    return subprocess.run(
        [sys.executable, "-c", RUN, "probe", *arguments, str(directory)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={
            **os.environ,
            **stand_ins.environment(**libraries),
            "PYTHONPATH": str(ROOT),
            "XDG_CACHE_HOME": str(directory / "cache"),
        },
    )


def document_of(done):
    assert done.stdout, done.stderr
    document = json.loads(done.stdout)
    return document, {step["name"]: step for step in document["steps"]}


def test_probe_shows_gpus_and_library(tmp_path):
    done = probe(tmp_path, "--json", cuda="attribute device=1 number=134 value=1")
    document, steps = document_of(done)
    assert done.returncode == 0
    assert steps["cuda_driver"]["ok"]
    assert [gpu["name"] for gpu in document["gpus"]] == ["Stand-in GPU 0", "Stand-in GPU 1"]
    assert [gpu["numa_node"] for gpu in document["gpus"]] == [0, 1]
    assert "cuda:1: Stand-in GPU 1, compute capability 9.0, NUMA node 1" in steps["gpus"]["reason"]
    assert steps["cufile_library"]["reason"].startswith("cuFile 1.20, ")
    assert document["engine"] == "pinned"
    assert all(reason.startswith("auto: ") for reason in document["engine_reasons"])
    assert list(tmp_path.iterdir()) == []


def test_probe_in_text_says_what_mends(tmp_path):
    done = probe(tmp_path)
    assert done.returncode == 0
    assert "\nengine pinned:\n" in done.stdout
    assert " -> " in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100


def test_probe_of_a_demand_that_cannot_be_met_is_code_1(tmp_path):
    done = probe(tmp_path, "--json", "--set", "engine=cufile", cuda=None)
    document, steps = document_of(done)
    assert done.returncode == 1
    assert (document["ok"], document["engine"]) == (False, None)
    assert steps["engine"]["needed"]
    assert not steps["engine"]["ok"]
    assert document["engine_reasons"][0].startswith("no CUDA driver: ")


@pytest.mark.parametrize(
    ("libraries", "step", "said"),
    [
        ({"cuda": "set devices=0"}, "cuda_driver", "CUDA_ERROR_NO_DEVICE"),
        ({"cuda": "fault cuInit code=999"}, "cuda_driver", "cuInit"),
        ({"without": ["cuMemAlloc_v2"]}, "cuda_driver", "too old: it has no cuMemAlloc_v2"),
        ({"cufile": None}, "cufile_library", "no cuFile: "),
        ({"cufile": "set version=1100"}, "cufile_library", "too old: version 1.10"),
        ({"without": ["cuFileWrite"]}, "cufile_library", "it has no cuFileWrite"),
    ],
    ids=["no device", "cuInit", "old driver", "no cuFile", "old cuFile", "no function"],
)
def test_probe_of_libraries_that_cannot_be_used(tmp_path, libraries, step, said):
    done = probe(tmp_path, "--json", **libraries)
    document, steps = document_of(done)
    assert done.returncode == 0  # host memory can be saved all the same
    assert not steps[step]["ok"]
    assert said in steps[step]["reason"]
    assert steps["cufile_trial"]["reason"].startswith("not tried: ")
    assert document["engine"] == "pinned"
