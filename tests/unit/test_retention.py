import dataclasses
import errno
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdsckpt.errors import ConfigError, StorageError
from gdsckpt.format.manifest import Manifest
from gdsckpt.retention import NewStep, Policy, decide, prunable_for, steps_to_prune, to_free
from gdsckpt.staging.root import StepEntry


def entry(step, metric=None, *, nbytes=100, state="complete", sequence=0):
    manifest = Manifest(
        step=step,
        attempt="0" * 16,
        world_size=1,
        created_by="test",
        wall_time="",
        engine="pinned",
        engine_reasons=(),
        shards=(),
        sequence=sequence,
        metric=metric,
    )
    path = Path(f"step-{step:08d}")
    return StepEntry(step=step, path=path, manifest=manifest, state=state, reason="", nbytes=nbytes)


def entries(*steps):
    return [entry(step) for step in steps]


def new(step, nbytes=100, metric=None):
    return NewStep(step=step, metric=metric, nbytes=nbytes, path="root")


@pytest.mark.parametrize(
    ("policy", "pruned"),
    [
        (Policy(), [10, 20, 30]),
        (Policy(keep_local=1), [10, 20, 30, 40, 50]),
        (Policy(keep_local=9), []),
        (Policy(keep_local=1, keep_every=20), [10, 30, 50]),
        (Policy(keep_local=1, keep_best=2), [10, 20, 40]),
        (Policy(keep_local=1, keep_best=2, best="max"), [20, 30, 40, 50]),
        (Policy(keep_local=1, keep_best=9), [20]),  # step 20 has no metric
    ],
)
def test_steps_to_prune_by_each_rule(policy, pruned):
    metrics = {10: 4.0, 20: None, 30: 1.0, 40: 3.0, 50: 2.0, 60: 5.0}
    found = [entry(step, metric) for step, metric in metrics.items()]
    assert steps_to_prune(found, policy) == pruned


def test_steps_to_prune_of_equal_metrics_keeps_the_later():
    found = [entry(1, 0.5), entry(2, 0.5), entry(3, 0.5), entry(4)]
    assert steps_to_prune(found, Policy(keep_local=1, keep_best=1)) == [1, 2]


def test_steps_to_prune_never_takes_nan_for_the_best():
    found = [entry(1, math.nan), entry(2, 0.5), entry(3)]
    for best in ("min", "max"):
        assert steps_to_prune(found, Policy(keep_local=1, keep_best=1, best=best)) == [1]


def test_steps_to_prune_counts_complete_steps_only():
    found = [entry(1), entry(2), entry(3, state="damaged"), entry(4, state="torn")]
    assert steps_to_prune(found, Policy(keep_local=1)) == [1]


def test_steps_to_prune_keeps_what_tells_that_a_step_is_superseded():
    found = [
        entry(10, sequence=1),
        entry(20, sequence=4),
        entry(30, sequence=3, state="superseded"),
        entry(40, sequence=5),
    ]
    assert steps_to_prune(found, Policy(keep_local=1)) == [10]
    assert [each.step for each in prunable_for(new(50), found, Policy(keep_local=1))] == [10]


def test_decide_says_why():
    metrics = {10: 0.1, 15: None, 20: None, 30: None, 40: None, 50: None}
    policy = Policy(keep_local=2, keep_every=20, keep_best=1)
    assert [(each.step, each.is_kept, each.why) for each in decide(metrics, policy, {15})] == [
        (10, True, "one of the 1 with the best metric (0.1)"),
        (15, True, "in use"),
        (20, True, "a multiple of 20"),
        (
            30,
            False,
            "not one of the 2 newest, nor of the 1 with the best metric, nor a multiple of 20",
        ),
        (40, True, "one of the 2 newest"),
        (50, True, "the newest"),
    ]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("keep_local", 0),
        ("keep_local", True),
        ("keep_local", 1.5),
        ("keep_every", 0),
        ("keep_best", -1),
        ("best", "smallest"),
    ],
)
def test_policy_out_of_bounds_is_refused(field, value):
    with pytest.raises(ConfigError) as caught:
        Policy(**{field: value})
    assert caught.value.field == field


policies = st.builds(
    Policy,
    keep_local=st.integers(1, 6),
    keep_every=st.none() | st.integers(1, 30),
    keep_best=st.integers(0, 4),
    best=st.sampled_from(["min", "max"]),
)
roots = st.dictionaries(
    st.integers(0, 200), st.none() | st.floats(allow_infinity=True), max_size=20
)


@given(roots, policies, st.sets(st.integers(0, 200)))
def test_steps_to_prune_keeps_what_any_rule_keeps_and_nothing_else(metrics, policy, protected):
    pruned = steps_to_prune([entry(*pair) for pair in metrics.items()], policy, protected)
    steps = sorted(metrics)
    assert pruned == sorted(set(pruned))
    assert set(pruned) <= set(steps)
    kept = set(steps) - set(pruned)
    assert set(steps[-policy.keep_local :]) <= kept
    assert protected & set(steps) <= kept
    if policy.keep_every:
        assert {step for step in steps if step % policy.keep_every == 0} <= kept
    known = {s: m for s, m in metrics.items() if m is not None and not math.isnan(m)}
    best = sorted(known.values(), reverse=policy.best == "max")[: policy.keep_best]
    for wanted in set(best):
        assert sum(known.get(s) == wanted for s in kept) >= best.count(wanted)
    # Each rule keeps only so many.
    most = policy.keep_local + policy.keep_best + len(protected & set(steps))
    if policy.keep_every:
        most += sum(step % policy.keep_every == 0 for step in steps)
    assert len(kept) <= most


@given(roots, policies)
def test_steps_to_prune_of_what_is_kept_is_nothing(metrics, policy):
    found = [entry(*pair) for pair in metrics.items()]
    pruned = set(steps_to_prune(found, policy))
    assert steps_to_prune([each for each in found if each.step not in pruned], policy) == []


def test_prunable_for_gives_what_the_new_step_pushes_out():
    found = entries(10, 20, 30)
    assert [each.step for each in prunable_for(new(40), found, Policy(keep_local=3))] == [10]
    assert prunable_for(new(40), found, Policy(keep_local=3), protected={10}) == []


def test_prunable_for_never_gives_the_newest_complete_one():
    found = entries(10, 20)
    # Once step 30 is there, the policy keeps it alone; until then step 20 is all there is.
    assert [each.step for each in prunable_for(new(30), found, Policy(keep_local=1))] == [10]


def test_prunable_for_a_step_that_goes_back_counts_those_before_it_only():
    found = entries(10, 20, 30, 40)
    # Steps 30 and 40 are superseded by step 25 once it is there; until then 40 is the newest.
    assert [each.step for each in prunable_for(new(25), found, Policy(keep_local=2))] == [10]
    assert prunable_for(new(25), found, Policy(keep_local=3)) == []


def test_prunable_for_the_same_step_again_keeps_it_until_the_commit():
    found = entries(10, 20)
    assert [each.step for each in prunable_for(new(20), found, Policy(keep_local=1))] == [10]


@given(roots, st.integers(0, 200), policies)
def test_prunable_for_is_within_what_is_pruned_afterwards(metrics, step, policy):
    found = [entry(*pair) for pair in sorted(metrics.items())]
    chosen = prunable_for(new(step), found, policy)
    assert all(each.step != max(metrics) for each in chosen)
    # What is superseded by then is not listed any more.
    after = [each for each in found if each.step < step] + [entry(step)]
    assert {each.step for each in chosen} <= set(steps_to_prune(after, policy))


def test_to_free_prunes_no_more_than_needed():
    found = entries(10, 20, 30, 40)
    policy = Policy(keep_local=1)
    assert to_free(new(50), 100, found, policy) == []
    assert to_free(new(50), 99, found, policy) == found[:1]
    assert to_free(new(50, nbytes=350), 100, found, policy) == found[:3]
    assert to_free(new(50, nbytes=350), None, found, policy) == []


def test_to_free_raises_before_anything_is_pruned():
    with pytest.raises(StorageError) as caught:
        to_free(new(50, nbytes=401), 100, entries(10, 20, 30, 40), Policy(keep_local=1))
    error = caught.value
    assert (error.errno, error.op, error.nbytes) == (errno.ENOSPC, "save", 401)
    assert "100 bytes are free" in str(error)
    assert "400 would be after pruning" in str(error)


def test_to_free_counts_the_bytes_of_each_entry():
    small = dataclasses.replace(entry(10), nbytes=1)
    assert to_free(new(40), 50, [small, *entries(20, 30)], Policy(keep_local=1)) == [
        small,
        entry(20),
    ]
