import copy
import functools
import json
import math

import pytest
import torch
from cli_runs import flip, run_here

import gdsckpt
from gdsckpt.loading import comparing
from gdsckpt.loading.differences import difference_of

# Deprecated by torch 2.13, and still in old files.
pytestmark = pytest.mark.filterwarnings(
    "ignore:torch.quantize_per_tensor:UserWarning",
    "ignore:TypedStorage is deprecated:UserWarning",
    "ignore:ComplexHalf support is experimental:UserWarning",
)

SAVERS = {"gdsckpt": gdsckpt.save, "torch": torch.save}


def differ(capsys, tmp_path, a, b, *arguments, savers=("gdsckpt", "gdsckpt")):
    SAVERS[savers[0]](a, tmp_path / "a.pt")
    SAVERS[savers[1]](b, tmp_path / "b.pt")
    done = run_here(capsys, "diff", "--json", *arguments, tmp_path / "a.pt", tmp_path / "b.pt")
    assert done.code in (0, 1), done.err
    document = json.loads(done.out)
    assert document["same"] == (done.code == 0)
    return document


BASE = {
    "w": torch.arange(6.0).reshape(2, 3),
    "old": torch.ones(2),
    "shaped": torch.zeros(3),
    "typed": torch.zeros(3),
    "equal": torch.ones(1000),
    "step": 3,
    "lr": [0.1, {"name": "adamw"}],
}


def other_state():
    state = copy.deepcopy(BASE)
    state["w"][0, 1] = 5.0
    state["new"] = state.pop("old")
    state["shaped"] = torch.zeros(4)
    state["typed"] = torch.zeros(3, dtype=torch.float64)
    state["step"] = 4
    state["lr"][1]["name"] = "sgd"
    state["extra"] = None
    return state


@pytest.mark.parametrize(
    "savers", [("gdsckpt", "gdsckpt"), ("torch", "torch"), ("gdsckpt", "torch")]
)
def test_diff_tells_every_kind_of_change(capsys, tmp_path, savers):
    found = differ(capsys, tmp_path, BASE, other_state(), savers=savers)
    assert found["removed"] == ["old"]
    assert found["added"] == ["new"]
    assert found["reshaped"] == [
        {"name": "shaped", "a": "float32 [3]", "b": "float32 [4]"},
        {"name": "typed", "a": "float32 [3]", "b": "float64 [3]"},
    ]
    assert found["others"] == [
        {"name": "step", "a": "3", "b": "4"},
        {"name": "lr.1.name", "a": "'adamw'", "b": "'sgd'"},
        {"name": "extra", "a": None, "b": "None"},
    ]
    (change,) = found["changed"]
    assert change["name"] == "w"
    assert (change["numel"], change["num_differing"], change["max_abs"]) == (6, 1, 4.0)
    assert change["relative_l2"] == pytest.approx(4 / math.sqrt(55))
    assert found["num_equal"] == 1


def test_diff_text_ends_with_a_summary(capsys, tmp_path):
    gdsckpt.save(BASE, tmp_path / "a.pt")
    gdsckpt.save(other_state(), tmp_path / "b.pt")
    done = run_here(capsys, "diff", tmp_path / "a.pt", tmp_path / "b.pt")
    assert (done.code, done.err) == (1, "")
    assert done.out.splitlines()[-1] == (
        "different: 1 tensors equal (1 by length and CRC-32), 1 changed, 2 reshaped, 1 added, "
        "1 removed; 3 other values differ"
    )


def test_diff_same_files_are_code_0_and_not_read(capsys, tmp_path):
    found = differ(capsys, tmp_path, BASE, BASE)
    assert found["same"]
    assert found["num_equal"] == found["num_skipped"] == 5


def test_diff_full_reads_what_looks_equal(capsys, tmp_path):
    found = differ(capsys, tmp_path, BASE, BASE, "--full")
    assert found["same"]
    assert (found["num_equal"], found["num_skipped"]) == (5, 0)


def test_diff_full_finds_damage(capsys, tmp_path):
    state = {"w": torch.ones(50_000)}
    gdsckpt.save(state, tmp_path / "a.pt")
    gdsckpt.save(state, tmp_path / "b.pt")
    flip(tmp_path / "b.pt", 70_000)
    assert run_here(capsys, "diff", tmp_path / "a.pt", tmp_path / "b.pt").code == 0
    done = run_here(capsys, "diff", "--full", tmp_path / "a.pt", tmp_path / "b.pt")
    assert done.code == 4
    assert "is damaged" in done.err
    assert done.err.count("\n") == 1


def test_diff_directories(capsys, tmp_path):
    gdsckpt.save_checkpoint(BASE, tmp_path / "a", step=1)
    gdsckpt.save_checkpoint(other_state(), tmp_path / "b", step=2)
    done = run_here(capsys, "diff", "--json", tmp_path / "a", tmp_path / "b")
    assert done.code == 1
    assert [change["name"] for change in json.loads(done.out)["changed"]] == ["w"]


@pytest.mark.filterwarnings("ignore::gdsckpt.errors.UnverifiedWarning")
def test_diff_legacy_file(capsys, tmp_path):
    def save_legacy(obj, path):
        torch.save(obj, path, _use_new_zipfile_serialization=False)

    SAVERS["legacy"] = save_legacy
    done = differ(capsys, tmp_path, BASE, other_state(), savers=("legacy", "gdsckpt"))
    assert [change["name"] for change in done["changed"]] == ["w"]


def of(dtype, *values):
    return torch.tensor(values, dtype=torch.float32).to(dtype)


def bits(dtype, *values):
    return torch.tensor(values, dtype=torch.uint8).view(dtype)


def float4_pair():
    return bits(torch.float4_e2m1fn_x2, 0, 7), bits(torch.float4_e2m1fn_x2, 0, 8)


def parameter(value):
    return torch.nn.Parameter(torch.tensor([value]))


def quantized(*values, scale=0.5):
    return torch.quantize_per_tensor(torch.tensor(values), scale, 1, torch.quint8)


FLOATS = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
FLOATS += ("float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")


def floats(dtype):
    return of(dtype, 1, 2), of(dtype, 1, 4), 1, 2.0


def pair(a, b):
    """Two tensors that differ in the bits of one element."""
    return torch.tensor(a), torch.tensor(b)


ZOO = {
    **{name: functools.partial(floats, getattr(torch, name)) for name in FLOATS},
    "float4": lambda: (*float4_pair(), 1, None),
    "bool": lambda: (*pair([True, False], [True, True]), 1, 1.0),
    "uint8": lambda: (bits(torch.uint8, 1, 255), bits(torch.uint8, 1, 0), 1, 255.0),
    "int8": lambda: (bits(torch.int8, 128, 0), bits(torch.int8, 127, 0), 1, 255.0),
    "int16": lambda: (of(torch.int16, 1, 2), of(torch.int16, 1, 9), 1, 7.0),
    "uint16": lambda: (of(torch.uint16, 1, 2), of(torch.uint16, 1, 9), 1, 7.0),
    "uint32": lambda: (of(torch.uint32, 1, 2), of(torch.uint32, 1, 9), 1, 7.0),
    "int64": lambda: (*pair([2**62, 5], [2**62 + 1, 5]), 1, 1.0),
    "int64 ends": lambda: (*pair([-(2**63)], [2**63 - 1]), 1, 2.0**64),
    "uint64": lambda: (
        *(bits(torch.uint64, last, *[255] * 7) for last in (255, 254)),
        1,
        1.0,
    ),
    "complex64": lambda: (*pair([1 + 1j], [1 + 3j]), 1, 2.0),
    "complex32": lambda: (torch.ones(1).chalf(), torch.zeros(1).chalf(), 1, 1.0),
    "conjugate": lambda: (torch.tensor([1 + 1j]), torch.tensor([1 + 1j]).conj(), 1, 2.0),
    "transposed": lambda: (torch.eye(3).t(), torch.arange(9.0).reshape(3, 3).t(), 9, 7.0),
    "expanded": lambda: (torch.zeros(1).expand(5), torch.ones(1).expand(5), 5, 1.0),
    "scalar": lambda: (*pair(1.0, 1.5), 1, 0.5),
    "sign of zero": lambda: (*pair([0.0], [-0.0]), 1, 0.0),
    "parameter": lambda: (parameter(0.0), parameter(1.0), 1, 1.0),
    "quantized": lambda: (quantized(1.0, 2.0), quantized(1.0, 4.0), 1, 2.0),
    "other scale": lambda: (quantized(2.0, 2.0), quantized(2.0, 2.0, scale=0.25), 0, 0.0),
}


@pytest.mark.parametrize("case", list(ZOO))
@pytest.mark.parametrize("savers", [("gdsckpt", "gdsckpt"), ("torch", "torch")], ids=str)
def test_diff_of_every_kind_of_tensor(capsys, tmp_path, case, savers):
    a, b, num_differing, max_abs = ZOO[case]()
    found = differ(capsys, tmp_path, {"t": a}, {"t": b}, savers=savers)
    (change,) = found["changed"]
    assert (change["num_differing"], change["max_abs"]) == (num_differing, max_abs)
    assert differ(capsys, tmp_path, {"t": a}, {"t": a}, "--full", savers=savers)["num_equal"] == 1


def test_diff_negative_view_is_not_taken_for_its_bytes(capsys, tmp_path):
    values = torch.tensor([1 + 2j, 3 + 4j])
    plain = {"t": values.imag}
    negative = {"t": values.conj().imag}  # the same bytes, with the negative bit set
    (change,) = differ(capsys, tmp_path, plain, negative)["changed"]
    assert change["max_abs"] == 8.0


def test_diff_sparse_and_nested_tensors(capsys, tmp_path):
    def nested(value):
        parts = [torch.ones(2), torch.full((3,), value)]
        return torch.nested.nested_tensor(parts, layout=torch.jagged)

    a = {"s": torch.eye(3).to_sparse(), "moved": torch.eye(3).to_sparse(), "n": nested(1.0)}
    b = {
        "s": (torch.eye(3) * 2).to_sparse(),
        "moved": torch.ones(3, 3).to_sparse(),
        "n": nested(5.0),
    }
    found = differ(capsys, tmp_path, a, b)
    changed = {change["name"]: change for change in found["changed"]}
    assert changed["s.values"]["max_abs"] == 1.0
    assert changed["moved"]["num_differing"] is None
    assert changed["n._values"]["num_differing"] == 3


def test_diff_not_finite_values_are_counted_apart(capsys, tmp_path):
    a = {"t": torch.tensor([math.nan, 1.0, 2.0, math.inf])}
    b = {"t": torch.tensor([math.nan, math.inf, 3.0, math.nan])}
    (change,) = differ(capsys, tmp_path, a, b)["changed"]
    assert (change["num_differing"], change["num_not_finite"], change["max_abs"]) == (3, 2, 1.0)


def test_diff_views_of_one_storage_at_other_places(capsys, tmp_path):
    base = torch.arange(10.0)
    found = differ(capsys, tmp_path, {"b": base, "v": base[1:4]}, {"b": base, "v": base[2:5]})
    assert [change["name"] for change in found["changed"]] == ["v"]


def test_diff_names_with_dots_are_not_confused(capsys, tmp_path):
    a = {"x.y": torch.zeros(1), "x": {"y": torch.ones(1)}}
    b = {"x.y": torch.zeros(1), "x": {"y": torch.full((1,), 3.0)}}
    (change,) = differ(capsys, tmp_path, a, b)["changed"]
    assert change["max_abs"] == 2.0


def test_diff_loads_in_bounded_batches(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(comparing, "BATCH_BYTES", 8000)
    a = {f"t{n}": torch.full((500,), float(n)) for n in range(20)}
    b = {name: value + 1 for name, value in a.items()}
    found = differ(capsys, tmp_path, a, b)
    assert [change["name"] for change in found["changed"]] == list(a)


def test_difference_works_block_by_block():
    a = torch.zeros(2**20 + 3)
    b = a.clone()
    b[-1], b[0] = 4.0, 3.0
    found = difference_of("t", a, b)
    assert (found.num_differing, found.max_abs) == (2, 4.0)


class Unsafe:
    def __init__(self, tensor):
        self.tensor = tensor

    def __reduce__(self):
        return Unsafe, (self.tensor,)


def test_diff_refuses_pickles_that_run_code(capsys, tmp_path):
    torch.save({"o": Unsafe(torch.ones(2))}, tmp_path / "a.pt")
    done = run_here(capsys, "diff", tmp_path / "a.pt", tmp_path / "a.pt")
    assert done.code == 4
    assert done.err.startswith("gdsckpt: error: ")
    assert done.err.count("\n") == 1


def test_diff_run_pickles_looks_into_objects(capsys, tmp_path):
    a, b = {"o": Unsafe(torch.ones(2))}, {"o": Unsafe(torch.zeros(2))}
    assert differ(capsys, tmp_path, a, a, "--run-pickles")["same"]
    assert [o["name"] for o in differ(capsys, tmp_path, a, b, "--run-pickles")["others"]] == ["o"]


def test_diff_run_pickles_enters_modules(capsys, tmp_path):
    torch.manual_seed(0)
    a, b = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    found = differ(capsys, tmp_path, {"m": a}, {"m": b}, "--run-pickles")
    assert [change["name"] for change in found["changed"]] == ["m.weight", "m.bias"]


def test_diff_state_that_is_one_tensor(capsys, tmp_path):
    (change,) = differ(capsys, tmp_path, torch.zeros(2), torch.ones(2))["changed"]
    assert change["num_differing"] == 2


def test_diff_missing_file_is_code_4(capsys, tmp_path):
    torch.save({}, tmp_path / "a.pt")
    done = run_here(capsys, "diff", tmp_path / "a.pt", tmp_path / "absent.pt")
    assert done.code == 4
    assert done.err.count("\n") == 1
