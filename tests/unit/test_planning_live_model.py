import json
import resource
import subprocess
import sys

import pytest
import torch
from torch import nn

from gdsckpt.errors import ConfigError
from gdsckpt.planning.band import Band
from gdsckpt.planning.live_model import measure
from gdsckpt.planning.sizing import Recipe

HERE = __name__


class Small(nn.Module):
    """8 tokens of width 4: an embedding, a hidden matrix, a norm, an output matrix."""

    def __init__(self, *, is_tied=False):
        super().__init__()
        self.tokens = nn.Embedding(8, 4)
        self.hidden = nn.Linear(4, 6, bias=False)
        self.norm = nn.LayerNorm(6)
        self.out = nn.Linear(4, 8, bias=False)
        if is_tied:
            self.out.weight = self.tokens.weight
        self.register_buffer("kept", torch.zeros(3, dtype=torch.int64))
        self.register_buffer("passing", torch.zeros(100), persistent=False)


def small():
    return Small()


def tied():
    return Small(is_tied=True)


def half_frozen():
    model = Small().to(torch.bfloat16)
    model.tokens.requires_grad_(False)
    return model


def all_frozen():
    return Small().requires_grad_(False)


def with_experts():
    model = nn.Module()
    model.experts = nn.ModuleList(nn.Linear(10, 3, bias=False) for _ in range(3))
    model.router = nn.Linear(10, 1, bias=False)
    return model


def lazy():
    return nn.LazyLinear(3)


def empty():
    return nn.Sequential()


def no_model():
    return 7


def failing():
    raise RuntimeError("no\nGPU here")


def with_argument(width):
    return nn.Linear(width, 1)


class Factories:
    @staticmethod
    def small():
        return Small()


def llama_405b():
    """As large as Llama 3.1 405B, 126 layers of 16,384: 812 GB in 16 bits."""
    h, f, kv, layers, vocabulary = 16384, 53248, 1024, 126, 128256
    model = nn.Module()
    model.tokens = nn.Embedding(vocabulary, h, dtype=torch.bfloat16)

    def matrix(rows, columns):
        return nn.Linear(rows, columns, bias=False, dtype=torch.bfloat16)

    model.layers = nn.ModuleList(
        nn.ModuleList(
            [
                *(matrix(h, n) for n in (h, kv, kv, h, f, f)),
                matrix(f, h),
                *(nn.RMSNorm(h, dtype=torch.bfloat16) for _ in range(2)),
            ]
        )
        for _ in range(layers)
    )
    model.norm = nn.RMSNorm(h, dtype=torch.bfloat16)
    model.out = matrix(h, vocabulary)
    return model


def test_measure_counts_what_the_model_has():
    found = measure(f"{HERE}:small")
    assert found.num_parameters == found.num_trainable == 32 + 24 + 12 + 32
    assert found.weights_bytes == 400
    assert found.dtypes == (("float32", 100),)
    assert found.buffer_bytes == 24  # of three int64; what is not persistent is not saved
    assert found.dense_share == (32 + 12 + 32) / 100
    assert found.expert_share == 0
    assert found.matrix_width == 4
    assert found.largest_bytes == 128
    assert json.loads(json.dumps(found.as_dict()))["dtypes"] == {"float32": 100}


def test_measure_tied_weights_count_once():
    assert measure(f"{HERE}:tied").num_parameters == 32 + 24 + 12


def test_measure_finds_experts_by_name():
    found = measure(f"{HERE}:with_experts")
    assert found.expert_share == 0.9


def test_measure_takes_a_function_within_a_class():
    assert measure(f"{HERE}:Factories.small").num_parameters == 100


def test_live_model_size_keeps_only_weights_of_what_is_frozen():
    found = measure(f"{HERE}:half_frozen")
    assert (found.num_parameters, found.num_trainable) == (100, 68)
    assert found.weights_bytes == 200
    sized = found.size(Recipe())
    assert sized.nbytes == Band.exactly(100 * 2 + 68 * 12 + 24)
    assert sized.source == "model"


def test_live_model_size_is_exact_for_muon():
    found = measure(f"{HERE}:small")
    # 24 elements in a hidden matrix, with one momentum; 76 others with two moments.
    momentum = found.size(Recipe(optimizer="muon")).parts[2]
    assert momentum.nbytes.mid == pytest.approx(24 * 4 + 76 * 8)
    assert momentum.nbytes.width == pytest.approx(0)


def test_live_model_size_of_all_frozen_with_an_optimizer_is_refused():
    found = measure(f"{HERE}:all_frozen")
    with pytest.raises(ConfigError) as info:
        found.size(Recipe())
    assert info.value.field == "optimizer"
    assert found.size(Recipe(optimizer="none")).nbytes == Band.exactly(100 * 2 + 24)


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        ("", "give module:function"),
        ("nothing", "give module:function"),
        (":small", "give module:function"),
        ("no.such.module:small", "cannot be imported"),
        (f"{HERE}:absent", "has no function 'absent'"),
        (f"{HERE}:HERE", "has no function"),
        (f"{HERE}:with_argument", "without arguments"),
        (f"{HERE}:failing", "RuntimeError: no GPU here"),
        (f"{HERE}:no_model", "returned int"),
        (f"{HERE}:empty", "has no parameters"),
        (f"{HERE}:lazy", "no shape before the first batch"),
    ],
)
def test_measure_of_no_model_is_refused_in_one_line(factory, said):
    with pytest.raises(ConfigError) as info:
        measure(factory)
    assert info.value.field == "model"
    assert said in str(info.value)
    assert "\n" not in str(info.value)


def test_measure_imports_from_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "own_model.py").write_text(
        "import torch\ndef build():\n    import own_part\n    return torch.nn.Linear(2, 3)\n"
    )
    (tmp_path / "own_part.py").write_text("")
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    assert measure("own_model:build").num_parameters == 9
    assert sys.path == before
    for name in ("own_model", "own_part"):
        sys.modules.pop(name)


def test_measure_405b_takes_no_memory_for_its_tensors():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = measure(f"{HERE}:llama_405b")
    grown_bytes = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    # The shapes of the model card; MLPerf Storage v2.0 counts the same.
    assert found.num_parameters == 405_853_388_800
    assert found.weights_bytes == 2 * 405_853_388_800
    assert grown_bytes < 200 * 2**20
    assert found.size(Recipe()).nbytes.mid == pytest.approx(5290 * 2**30, rel=0.001)


def test_planning_without_a_model_does_not_import_torch():
    modules = ("band", "sizing", "published", "shapes", "layouts", "hardware", "bandwidth")
    names = ", ".join(f"gdsckpt.planning.{name}" for name in (*modules, "live_model"))
    code = f"import sys, {names}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
