import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdsckpt.errors import ConfigError
from gdsckpt.planning.band import Band
from gdsckpt.planning.layouts import RANKS_MAX, SHARDINGS, WRITERS, Layout, place
from gdsckpt.planning.sizing import Recipe, size

# 2 bytes of weights and 12 of the optimizer per parameter.
SIZE = size(1_000_000, Recipe())


def written(layout, **values):
    groups = place(SIZE, layout, **values).groups
    return [
        (group.num_ranks, group.weights_bytes.mid, group.optimizer_bytes.mid) for group in groups
    ]


def test_place_fsdp_writes_equal_shares():
    assert written(Layout(data=8)) == [(8, 250_000, 1_500_000)]


def test_place_zero1_one_writer_writes_the_weights_and_all_write_the_optimizer():
    layout = Layout(data=4, sharding="zero1", writers="first")
    assert written(layout) == [(1, 2_000_000, 3_000_000), (3, 0, 3_000_000)]


def test_place_zero1_spread_writes_equal_shares():
    assert written(Layout(data=4, sharding="zero1")) == [(4, 500_000, 3_000_000)]


def test_place_replicas_without_sharding_leave_it_to_the_first():
    layout = Layout(data=4, tensor=2, pipeline=5, sharding="none", writers="first")
    assert written(layout) == [(10, 200_000, 1_200_000), (30, 0, 0)]


def test_place_hsdp_first_copy_writes():
    layout = Layout(data=16, sharding="hsdp", shard_ranks=4, writers="first")
    assert written(layout) == [(4, 500_000, 3_000_000), (12, 0, 0)]


def test_place_experts_are_written_by_the_ranks_that_hold_them():
    # 80 % in experts, on 4 of 8 ranks each; weights unsharded, one writer of each copy.
    layout = Layout(data=8, expert=4, sharding="zero1", writers="first")
    assert written(layout, expert_share=0.8) == [
        (1, pytest.approx(400_000 + 400_000), pytest.approx(1_500_000)),
        (3, pytest.approx(400_000), pytest.approx(1_500_000)),
        (4, 0, pytest.approx(1_500_000)),
    ]


def test_place_context_ranks_hold_the_same_state_as_data_ranks():
    assert written(Layout(data=2, context=4)) == written(Layout(data=8))


def test_place_node_of_the_first_ranks_is_the_fullest():
    layout = Layout(data=4, tensor=2, sharding="none", writers="first", gpus_per_node=4)
    placement = place(SIZE, layout)
    # Ranks 0 and 1 are replica 0 and write 7 MB each; 2 and 3 are replica 1 and write nothing.
    assert placement.node_bytes.mid == 14_000_000
    assert placement.num_writing_nodes == 1
    assert placement.num_writing_ranks == 2
    assert layout.num_nodes == 2


def test_place_pipeline_stages_write_in_nodes_of_their_own():
    layout = Layout(data=4, pipeline=2, sharding="none", writers="first", gpus_per_node=4)
    placement = place(SIZE, layout)
    assert placement.num_writing_nodes == 2
    # 1.05 times the average: a stage has the embeddings too.
    assert placement.rank_bytes.mid == pytest.approx(7_000_000 * 1.05)
    assert placement.rank_bytes.high > placement.rank_bytes.mid


def test_place_imbalance_given_is_used():
    layout = Layout(data=2, imbalance=Band.exactly(1.5))
    assert place(SIZE, layout).rank_bytes == Band.exactly(1.5 * 7_000_000)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"data": 0}, "data"),
        ({"tensor": -1}, "tensor"),
        ({"pipeline": 1.5}, "pipeline"),
        ({"gpus_per_node": True}, "gpus_per_node"),
        ({"data": RANKS_MAX, "tensor": 2}, "data"),
        ({"sharding": "zero4"}, "sharding"),
        ({"writers": "all"}, "writers"),
        ({"data": 8, "expert": 3}, "expert"),
        ({"data": 8, "shard_ranks": 4}, "shard_ranks"),
        ({"data": 8, "sharding": "hsdp"}, "shard_ranks"),
        ({"data": 8, "sharding": "hsdp", "shard_ranks": 3}, "shard_ranks"),
        ({"imbalance": Band(0.5, 1, 2)}, "imbalance"),
    ],
)
def test_layout_bad_or_contradicting_value_is_refused_by_name(values, field):
    with pytest.raises(ConfigError) as info:
        Layout(**values)
    assert info.value.field == field


@pytest.mark.parametrize(
    ("layout", "expert_share", "field"),
    [(Layout(data=2), 1.5, "expert_share"), (Layout(data=2, expert=2), 0.0, "expert")],
)
def test_place_share_of_experts_that_contradicts_is_refused(layout, expert_share, field):
    with pytest.raises(ConfigError) as info:
        place(SIZE, layout, expert_share=expert_share)
    assert info.value.field == field


@st.composite
def layouts(draw):
    expert = draw(st.integers(1, 4))
    shard_ranks = draw(st.integers(1, 4))
    sharding = draw(st.sampled_from(SHARDINGS))
    return Layout(
        data=expert * shard_ranks * draw(st.integers(1, 4)),
        tensor=draw(st.integers(1, 8)),
        pipeline=draw(st.integers(1, 5)),
        context=draw(st.integers(1, 2)),
        expert=expert,
        sharding=sharding,
        shard_ranks=shard_ranks if sharding == "hsdp" else None,
        gpus_per_node=draw(st.integers(1, 8)),
        writers=draw(st.sampled_from(WRITERS)),
    )


@given(layouts(), st.floats(0.01, 1))
def test_place_writes_every_byte_once_whatever_the_layout(layout, expert_share):
    placement = place(SIZE, layout, expert_share=expert_share)
    assert placement.nbytes.mid == pytest.approx(14_000_000)
    assert sum(group.num_ranks for group in placement.groups) == layout.num_ranks
    amounts = [group.nbytes.mid for group in placement.groups]
    assert amounts == sorted(amounts, reverse=True)
    assert 0 < placement.num_writing_ranks <= layout.num_ranks
    assert 0 < placement.num_writing_nodes <= layout.num_nodes
    assert placement.node_bytes.mid >= placement.rank_bytes.mid
    assert placement.node_bytes.mid * layout.num_nodes >= 14_000_000 * 0.999
    read = json.loads(json.dumps(placement.as_dict()))
    assert read["num_writing_ranks"] == placement.num_writing_ranks
