import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdsckpt.errors import ConfigError
from gdsckpt.planning.band import Band
from gdsckpt.planning.sizing import DTYPE_BYTES, OPTIMIZERS, PARAMETERS_MAX, Recipe, size

GB = 10**9


def per_parameter(**values):
    return Recipe(**values).bytes_per_parameter


@pytest.mark.parametrize(
    ("recipe", "nbytes"),
    [
        (Recipe(), 14),  # 2 weights, 4 master, 4 + 4 moments
        (Recipe(weights_dtype="fp16"), 14),
        (Recipe(weights_dtype="fp32"), 12),  # no master copy
        (Recipe(has_master_copy=False), 10),
        (Recipe(has_master_copy=False, moments_dtype="bf16"), 6),
        (Recipe(weights_dtype="fp8"), 13),
        (Recipe(optimizer="none"), 2),
        (Recipe(optimizer="sgd"), 6),
        (Recipe(optimizer="momentum"), 10),
    ],
)
def test_recipe_of_exact_parts_gives_their_sum(recipe, nbytes):
    assert recipe.bytes_per_parameter == Band.exactly(nbytes)


def test_recipe_names_its_parts_weights_first():
    parts = [(part.name, part.role, part.bytes_per_parameter.mid) for part in Recipe().parts]
    assert parts == [
        ("weights", "weights", 2),
        ("master copy", "optimizer", 4),
        ("first moment", "optimizer", 4),
        ("second moment", "optimizer", 4),
    ]


def test_recipe_adafactor_keeps_almost_nothing():
    # A square matrix of 1024 has 2048 sums for 1024 * 1024 elements, 4 bytes each.
    adafactor = per_parameter(optimizer="adafactor", matrix_width=1024)
    assert adafactor.high == 6 + 4 * 2048 / 1024**2
    assert 6 < adafactor.low < adafactor.high


def test_recipe_muon_keeps_one_momentum_and_two_for_the_dense_share():
    muon = per_parameter(optimizer="muon", dense_share=Band.exactly(0.25))
    assert muon == Band.exactly(6 + 0.75 * 4 + 0.25 * 8)


def test_recipe_adamw8bit_keeps_two_bytes_and_scales():
    quantized = per_parameter(optimizer="adamw8bit", dense_share=Band.exactly(0))
    assert quantized.mid == 6 + 2 * (1 + 4 / 256)
    assert quantized.low > 8


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"weights_dtype": "float5"}, "weights_dtype"),
        ({"moments_dtype": ""}, "moments_dtype"),
        ({"optimizer": "adam"}, "optimizer"),
        ({"matrix_width": 0}, "matrix_width"),
        ({"dense_share": Band(0, 0.5, 1.5)}, "dense_share"),
        ({"optimizer": "none", "has_master_copy": True}, "has_master_copy"),
        ({"weights_dtype": "float32", "has_master_copy": True}, "has_master_copy"),
    ],
)
def test_recipe_bad_value_is_refused_by_name(values, field):
    with pytest.raises(ConfigError) as info:
        Recipe(**values)
    assert info.value.field == field


def test_size_of_70_billion_is_980_gb():
    assert size(70 * 10**9, Recipe()).nbytes == Band.exactly(980 * GB)


def test_size_of_frozen_parameters_counts_their_weights_alone():
    lora = size(1000, Recipe(), num_trainable=10, other_bytes=7)
    assert lora.nbytes == Band.exactly(1000 * 2 + 10 * 12 + 7)
    assert lora.role_nbytes("optimizer") == Band.exactly(120)
    assert lora.role_nbytes("other") == Band.exactly(7)


@pytest.mark.parametrize(
    ("number", "values", "field"),
    [
        (0, {}, "num_parameters"),
        (-1, {}, "num_parameters"),
        (PARAMETERS_MAX + 1, {}, "num_parameters"),
        (True, {}, "num_parameters"),
        (7.5, {}, "num_parameters"),
        (7, {"num_trainable": 8}, "num_trainable"),
        (7, {"other_bytes": -1}, "other_bytes"),
    ],
)
def test_size_bad_value_is_refused_by_name(number, values, field):
    with pytest.raises(ConfigError) as info:
        size(number, Recipe(), **values)
    assert info.value.field == field


RECIPES = st.builds(
    Recipe,
    weights_dtype=st.sampled_from(list(DTYPE_BYTES)),
    optimizer=st.sampled_from(OPTIMIZERS),
    moments_dtype=st.sampled_from(list(DTYPE_BYTES)),
    matrix_width=st.integers(1, 10**5),
)


@given(RECIPES, st.integers(1, PARAMETERS_MAX), st.integers(1, PARAMETERS_MAX))
def test_size_never_falls_when_parameters_rise(recipe, first, second):
    small, large = (size(number, recipe).nbytes for number in sorted((first, second)))
    assert 0 < small.low <= large.low
    assert small.mid <= large.mid
    assert small.high <= large.high


@given(RECIPES)
def test_size_as_dict_is_json(recipe):
    found = size(1000, recipe)
    read = json.loads(json.dumps(found.as_dict()))
    assert read["nbytes"] == found.nbytes.as_dict()
    assert read["parts"][0]["name"] == "weights"
