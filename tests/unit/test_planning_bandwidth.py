import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdsckpt.errors import ConfigError
from gdsckpt.planning.band import Band
from gdsckpt.planning.bandwidth import (
    MODES,
    Pace,
    bytes_per_day,
    needed_bytes_per_s,
    nvme_needed_bytes,
    overlap_share,
    references,
    timeline,
    transfer_s,
)
from gdsckpt.planning.hardware import NODES, Figure, Node
from gdsckpt.planning.layouts import Layout, place
from gdsckpt.planning.sizing import Recipe, size

GB = 1e9
EXACT = Band.exactly


def figure(value):
    return Figure(EXACT(value), "by hand", "2026-11")


# A GPU copies 50 GB/s, a node writes 4 x 5 = 20 GB/s and sends 2 GB/s.
NODE = Node(
    name="by-hand",
    gpus=8,
    link="PCIe Gen5",
    gpu_to_host_bytes_per_s=figure(50 * GB),
    gpu_memory_bytes=figure(80 * GB),
    host_memory_bytes=figure(2000 * GB),
    drives=4,
    drive_write_bytes_per_s=figure(5 * GB),
    drive_bytes=figure(1000 * GB),
    drives_max_bytes_per_s=None,
    store_bytes_per_s=figure(2 * GB),
)
# 112 GB on 2 nodes of 8: 7 GB a rank, 56 GB a node.
PLACEMENT = place(size(8 * 10**9, Recipe()), Layout(data=16))


def test_transfer_of_published_texts_takes_what_they_say():
    assert round(transfer_s(3.2e12, 70e9).mid) == 46
    assert round(transfer_s(45e9, 1.1e9).mid) == 41
    assert overlap_share(90, 3600) == EXACT(0.025)
    assert bytes_per_day(15e12, 90) == EXACT(14.4e15)
    assert transfer_s(15e12, 5) == EXACT(3.0e12)


def test_references_agree_but_for_the_one_that_says_by_what_it_differs():
    differing = [reference for reference in references() if abs(reference.difference) > 0.01]
    (wrong,) = differing
    assert (wrong.computed, wrong.published, wrong.unit) == (3.0, 3.6, "TB/s")
    assert wrong.difference == pytest.approx(0.2)
    assert "20 %" in wrong.note
    assert len(references()) == 5


def test_timeline_host_save_stalls_for_the_copy_alone():
    found = timeline(PLACEMENT, NODE, Pace(interval_s=100))
    assert found.to_host.seconds == EXACT(7 / 50)
    assert found.to_nvme.seconds == EXACT(56 / 20)
    assert found.to_store.seconds == EXACT(28)
    assert found.stall_s == EXACT(0.14)
    assert found.durable_s == EXACT(0.14 + 2.8)
    assert found.uploaded_s.mid == pytest.approx(0.14 + 2.8 + 28)
    assert found.overlap_share.mid == pytest.approx(0.0014)
    assert found.drain_share == EXACT(0.28)
    assert found.needed_bytes_per_s == EXACT(112 * GB / 10)
    assert found.store_needed_bytes_per_s == EXACT(1.12 * GB)
    assert found.bytes_per_day.mid == pytest.approx(112 * GB * 864)
    assert found.nvme_needed_bytes == EXACT(56 * GB * 3)
    assert found.nvme_has_bytes == EXACT(4000 * GB)
    assert found.host_needed_bytes == EXACT(56 * GB)


def test_timeline_sync_save_stalls_for_the_drives():
    found = timeline(PLACEMENT, NODE, Pace(interval_s=100, mode="sync"))
    assert found.stall_s == found.durable_s == EXACT(2.8)
    assert found.host_needed_bytes == EXACT(0)


@pytest.mark.parametrize(("step_s", "stall_s"), [(None, 2.8), (2.0, 0.8), (3.0, 0.0)])
def test_timeline_fence_save_stalls_for_what_the_step_leaves(step_s, stall_s):
    found = timeline(PLACEMENT, NODE, Pace(interval_s=100, mode="fence", step_s=step_s))
    assert found.stall_s.mid == pytest.approx(stall_s)


def test_timeline_host_save_waits_when_drives_fall_behind():
    # The slot is free 2.94 s after the save before began; of these 1 - 0.14 s are trained.
    found = timeline(PLACEMENT, NODE, Pace(interval_s=1))
    assert found.alone_stall_s.mid == pytest.approx(0.14)
    assert found.stall_s.mid == pytest.approx(0.14 + 1.94)
    assert found.overlap_share.mid == pytest.approx(1 - 0.86 / 2.94)


def test_timeline_uploads_that_fall_behind_say_so():
    found = timeline(PLACEMENT, NODE, Pace(interval_s=10))
    assert found.drain_share.mid == pytest.approx(2.8)
    assert found.steps_in_flight == EXACT(3)
    assert found.nvme_needed_bytes == EXACT(56 * GB * 4)


def test_timeline_each_third_save_uploaded_has_three_intervals():
    found = timeline(PLACEMENT, NODE, Pace(interval_s=10, uploads_every=3))
    assert found.drain_share.mid == pytest.approx(2.8 / 3)
    assert found.steps_in_flight == EXACT(1)
    assert found.nvme_needed_bytes == EXACT(56 * GB * (2 + 1 + 1))


def test_timeline_store_limit_is_shared_by_the_nodes():
    limited = Pace(interval_s=100, store_bytes_per_s=EXACT(1 * GB))
    found = timeline(PLACEMENT, NODE, limited)
    assert found.to_store.seconds == EXACT(112)
    assert "whole job" in found.to_store.why


def test_nvme_needed_holds_steps_in_flight():
    pace = Pace(interval_s=1, steps_kept=1)
    assert nvme_needed_bytes(10, pace, EXACT(5)) == EXACT(60)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"interval_s": 0}, "interval_s"),
        ({"interval_s": -1}, "interval_s"),
        ({"interval_s": float("nan")}, "interval_s"),
        ({"interval_s": 10, "mode": "async"}, "mode"),
        ({"interval_s": 10, "step_s": 0}, "step_s"),
        ({"interval_s": 10, "step_s": 11}, "step_s"),
        ({"interval_s": 10, "store_bytes_per_s": Band(0, 1, 2)}, "store_bytes_per_s"),
        ({"interval_s": 10, "steps_kept": 0}, "steps_kept"),
        ({"interval_s": 10, "uploads_every": 1.5}, "uploads_every"),
        ({"interval_s": 10, "snapshot_slots": True}, "snapshot_slots"),
    ],
)
def test_pace_bad_value_is_refused_by_name(values, field):
    with pytest.raises(ConfigError) as info:
        Pace(**values)
    assert info.value.field == field


@pytest.mark.parametrize(
    ("formula", "values", "field"),
    [
        (transfer_s, (-1, 1), "nbytes"),
        (transfer_s, (1, 0), "bytes_per_s"),
        (overlap_share, (-1, 1), "stall_s"),
        (overlap_share, (1, 0), "interval_s"),
        (needed_bytes_per_s, (1, 1, 0), "overlap_max"),
        (bytes_per_day, (1, 0), "interval_s"),
        (bytes_per_day, (-1, 1), "nbytes"),
    ],
)
def test_formula_bad_value_is_refused_by_name(formula, values, field):
    with pytest.raises(ConfigError) as info:
        formula(*values)
    assert info.value.field == field


@pytest.mark.parametrize(
    ("node", "layout", "field"),
    [
        (dataclasses.replace(NODE, drives=0), Layout(data=16), "drives"),
        (NODE, Layout(data=16, gpus_per_node=16), "gpus_per_node"),
    ],
)
def test_timeline_on_a_node_that_does_not_fit_is_refused(node, layout, field):
    with pytest.raises(ConfigError) as info:
        timeline(place(size(1000, Recipe()), layout), node, Pace(interval_s=1))
    assert info.value.field == field


@given(
    st.integers(10**6, 10**13),
    st.integers(10**6, 10**13),
    st.floats(1, 1e5),
    st.sampled_from(list(NODES)),
    st.sampled_from(MODES),
)
def test_timeline_has_no_negative_times_and_never_falls_with_the_size(
    first, second, interval_s, name, mode
):
    node = NODES[name]
    pace = Pace(interval_s=interval_s, mode=mode)
    layout = Layout(data=4, pipeline=2, gpus_per_node=node.gpus)
    small, large = (
        timeline(place(size(number, Recipe(optimizer="muon")), layout), node, pace)
        for number in sorted((first, second))
    )
    for field in dataclasses.fields(small):
        if field.name in ("to_host", "to_nvme", "to_store"):
            before = getattr(small, field.name).seconds
            after = getattr(large, field.name).seconds
        else:
            before, after = getattr(small, field.name), getattr(large, field.name)
        assert 0 <= before.low <= after.low
        assert before.mid <= after.mid
        assert before.high <= after.high


@given(st.floats(1, 1e6), st.floats(1, 1e6))
def test_timeline_saving_more_often_never_needs_less(first, second):
    often, seldom = (
        timeline(PLACEMENT, NODE, Pace(interval_s=interval_s))
        for interval_s in sorted((first, second))
    )
    assert often.overlap_share.mid >= seldom.overlap_share.mid
    assert often.drain_share.mid >= seldom.drain_share.mid
    assert often.needed_bytes_per_s.mid >= seldom.needed_bytes_per_s.mid
    assert often.nvme_needed_bytes.mid >= seldom.nvme_needed_bytes.mid
    assert often.bytes_per_day.mid >= seldom.bytes_per_day.mid


def test_timeline_as_dict_is_json_with_the_seconds_of_each_stage():
    found = json.loads(json.dumps(timeline(PLACEMENT, NODE, Pace(interval_s=100)).as_dict()))
    assert found["to_host"]["seconds"]["mid"] == 0.14
    assert found["stall_s"] == {"low": 0.14, "mid": 0.14, "high": 0.14}
