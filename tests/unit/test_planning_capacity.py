import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdsckpt.errors import ConfigError
from gdsckpt.planning.capacity import Flow, Stage, capacity_over_time, flows

HOUR_S, DAY_S = 3600.0, 86400.0


def test_flows_newest_are_kept_and_the_rest_moves_on():
    first, second = flows(
        (
            Stage(storage="fast", keep_newest=4),
            Stage(storage="slow", keep_every=5),
        ),
        interval_s=HOUR_S,
        run_s=10 * DAY_S,
    )
    assert first.peak == 4
    assert first.num_in == 240
    assert first.num_out == 236
    assert second.first_s == 4 * HOUR_S
    assert second.num_in == pytest.approx(236 / 5)
    assert second.peak == pytest.approx(236 / 5)  # none is deleted before the end
    assert second.num_out == 0


def test_kept_s_steady_by_hand():
    (flow,) = flows((Stage(storage="s", keep_s=DAY_S),), interval_s=DAY_S, run_s=30 * DAY_S)
    # One comes a day and stays a day, but the first day fills it: 29.5 checkpoint-days.
    assert flow.kept_s() == pytest.approx(29.5 * DAY_S)


def test_kept_s_minimum_duration_is_charged_for_all():
    (flow,) = flows((Stage(storage="s", keep_s=DAY_S),), interval_s=DAY_S, run_s=30 * DAY_S)
    assert flow.kept_s(90 * DAY_S) == pytest.approx(30 * 90 * DAY_S)


def test_kept_s_minimum_within_the_stay_counts_at_the_end_only():
    (flow,) = flows((Stage(storage="s"),), interval_s=DAY_S, run_s=30 * DAY_S)
    assert flow.kept_s() == pytest.approx(30**2 / 2 * DAY_S)
    # The last ten, which stay 0 to 10 days, are charged for 10: 50 checkpoint-days more.
    assert flow.kept_s(10 * DAY_S) == pytest.approx((450 + 50) * DAY_S)


def test_flow_that_begins_after_the_run_is_empty():
    flow = Flow(stage=Stage(storage="s"), first_s=20.0, per_s=1.0, stay_s=5.0, run_s=10.0)
    assert flow.num_in == flow.num_out == flow.peak == flow.kept_s(3.0) == 0


def test_capacity_over_time_rises_to_what_is_kept():
    points = capacity_over_time(
        (Stage(storage="fast", keep_newest=3), Stage(storage="slow")),
        2e12,
        interval_s=HOUR_S,
        run_s=10 * HOUR_S,
        num_points=11,
    )
    assert points[0] == (0.0, {"fast": 0.0, "slow": 0.0})
    assert points[-1][0] == 10 * HOUR_S
    assert points[-1][1] == {"fast": pytest.approx(6e12), "slow": pytest.approx(14e12)}


@given(
    first_s=st.floats(0, 1e6),
    per_s=st.floats(1e-6, 1),
    stay_s=st.floats(0, 1e6),
    run_s=st.floats(1, 1e6),
    minimum_s=st.floats(0, 1e6),
)
def test_kept_s_lies_between_its_bounds(first_s, per_s, stay_s, run_s, minimum_s):
    flow = Flow(stage=Stage(storage="s"), first_s=first_s, per_s=per_s, stay_s=stay_s, run_s=run_s)
    kept = flow.kept_s(minimum_s)
    assert kept >= flow.kept_s() * (1 - 1e-9) >= 0
    assert kept >= flow.num_in * minimum_s * (1 - 1e-9)
    assert kept <= flow.num_in * max(stay_s, minimum_s) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"keep_newest": 2, "keep_s": 5.0}, "keep_newest"),
        ({"keep_newest": 0}, "keep_newest"),
        ({"keep_s": -1.0}, "keep_s"),
        ({"keep_every": 0}, "keep_every"),
    ],
)
def test_stage_out_of_bounds_names_its_field(values, field):
    with pytest.raises(ConfigError) as caught:
        Stage(storage="s", **values)
    assert caught.value.field == field
