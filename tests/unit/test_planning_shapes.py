import json

import pytest

from gdsckpt.errors import ConfigError
from gdsckpt.planning.shapes import read_config, shape_of

LLAMA_70B = {
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
}
MIXTRAL = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "num_local_experts": 8,
}


def test_shape_of_llama_70b_has_its_published_parameters():
    shape = shape_of(LLAMA_70B)
    assert shape.num_parameters == 70_553_706_496  # model card
    assert shape.expert_share == 0
    assert shape.dense_share == pytest.approx(2 * 128256 * 8192 / 70_553_706_496, rel=1e-3)


def test_shape_of_mixtral_has_its_published_parameters_mostly_in_experts():
    shape = shape_of(MIXTRAL)
    assert shape.num_parameters == 46_702_792_704  # model card
    assert shape.expert_parameters == 32 * 8 * 3 * 4096 * 14336
    assert shape.expert_share == pytest.approx(0.966, abs=0.001)


def test_shape_of_tied_embeddings_counts_them_once():
    tied = shape_of({**LLAMA_70B, "tie_word_embeddings": True})
    assert tied.num_parameters == 70_553_706_496 - 128256 * 8192


def test_shape_of_gpt2_has_no_gate_and_ties_its_embeddings():
    # 124.4M less positions (786,432) and biases, of which a shape knows nothing.
    shape = shape_of({"n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257})
    assert shape.num_parameters == pytest.approx(124.4e6 - 0.79e6, rel=0.002)


def test_shape_of_model_with_dense_first_layers_and_shared_experts():
    shape = shape_of(
        {
            **MIXTRAL,
            "num_hidden_layers": 4,
            "moe_intermediate_size": 100,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
        }
    )
    expert = 3 * 4096 * 100
    assert shape.expert_parameters == 3 * 8 * expert
    attention = 2 * 4096 * 4096 + 2 * 4096 * 1024
    rest = 2 * 32000 * 4096 + 4 * attention + 9 * 4096 + 3 * 4096 * 14336
    assert shape.num_parameters == rest + 3 * (9 * expert + 8 * 4096)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"hidden_size": None}, "lacks hidden_size"),
        ({"vocab_size": 0}, "vocab_size is 0"),
        ({"num_hidden_layers": 1.5}, "num_hidden_layers is 1.5"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"vocab_size": 10**12}, "vocab_size is 1000000000000"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings is 'no'"),
    ],
)
def test_shape_of_bad_configuration_is_refused(changed, said):
    with pytest.raises(ConfigError) as info:
        shape_of({**LLAMA_70B, **changed})
    assert info.value.field == "model_config"
    assert said in str(info.value)


def test_read_config_reads_a_file_also_of_a_model_with_a_text_part(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"text_config": LLAMA_70B, "vision_config": {}}))
    assert read_config(path) == shape_of(LLAMA_70B)


@pytest.mark.parametrize("text", ["", "[1]", "{", "[" * 100_000])
def test_read_config_of_no_json_object_is_refused(tmp_path, text):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match="JSON"):
        read_config(path)


def test_read_config_of_no_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read") as info:
        read_config(tmp_path / "config.json")
    assert info.value.field == "model_config"
