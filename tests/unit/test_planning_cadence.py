import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdsckpt.errors import ConfigError
from gdsckpt.planning.band import Band
from gdsckpt.planning.cadence import (
    SaveCosts,
    Schedule,
    best_interval_band,
    best_schedule,
    daly_interval_s,
    exact_interval_s,
    goodput,
    goodput_band,
    young_interval_s,
)
from gdsckpt.planning.failures import Cases, FailureRates

FEW = FailureRates(process_per_s=1e-5, node_per_s=5e-6)
COSTS = SaveCosts(
    stall_s=5,
    commit_s=40,
    upload_s=200,
    restart_s=300,
    restore_local_s=20,
    restore_remote_s=120,
)


@st.composite
def costs_strategy(draw):
    seconds = st.floats(0, 5000)
    stall = draw(seconds)
    return SaveCosts(
        stall_s=stall,
        commit_s=stall + draw(seconds),
        upload_s=draw(seconds),
        restart_s=draw(seconds),
        restore_local_s=draw(seconds),
        restore_remote_s=draw(seconds),
        preemption_notice_s=draw(seconds),
        preemption_wait_s=draw(seconds),
    )


rates_strategy = st.builds(
    FailureRates,
    process_per_s=st.floats(0, 1e-2),
    node_per_s=st.floats(0, 1e-2),
    preemption_per_s=st.floats(0, 1e-2),
)
schedules_strategy = st.builds(
    Schedule,
    interval_s=st.floats(1, 1e6),
    upload_every=st.integers(1, 50),
    back_pressure=st.sampled_from(["wait", "skip"]),
)


def test_young_by_hand():
    assert young_interval_s(50, 10_000) == 1000  # sqrt(2 x 50 x 10,000)


def test_daly_by_hand():
    # 1000 x (1 + sqrt(0.0025) / 3 + 0.0025 / 9) - 50
    assert daly_interval_s(50, 10_000) == pytest.approx(966.944, abs=0.001)


def test_daly_save_longer_than_twice_the_mtbf_is_the_mtbf():
    assert daly_interval_s(201, 100) == 100


@pytest.mark.parametrize(("stall_s", "mtbf_s"), [(50, 1e4), (1, 1e6), (300, 3000), (5000, 3000)])
def test_exact_interval_is_a_minimum_of_the_run_time(stall_s, mtbf_s):
    def run_time(work_s):
        return math.expm1((work_s + stall_s) / mtbf_s) / work_s

    best = exact_interval_s(stall_s, mtbf_s)
    assert run_time(best) <= min(run_time(best * 0.99), run_time(best * 1.01))


def test_intervals_converge_for_short_saves():
    exact = exact_interval_s(1, 1e6)
    assert daly_interval_s(1, 1e6) == pytest.approx(exact, rel=1e-6)
    assert young_interval_s(1, 1e6) == pytest.approx(exact, rel=1e-3)


def test_goodput_one_tier_is_dalys_run_time():
    rates = FailureRates(process_per_s=1 / 8000, node_per_s=0)
    costs = SaveCosts(stall_s=60, commit_s=60, restart_s=400)
    found = goodput(rates, costs, Schedule(interval_s=1060))
    # Daly 2006, equation 13, per second of work: M exp(R/M) (exp((t + d)/M) - 1) / t
    run_time = 8000 * math.exp(400 / 8000) * math.expm1(1060 / 8000) / 1000
    assert found.useful_share == pytest.approx(1 / run_time, rel=1e-12)


def test_goodput_without_failures_loses_only_the_stall():
    found = goodput(FailureRates(process_per_s=0, node_per_s=0), COSTS, Schedule(interval_s=500))
    assert found.useful_share == pytest.approx(495 / 500)
    assert found.stall_share == pytest.approx(5 / 500)
    assert found.lost_share == found.restart_share == found.wait_share == 0


def test_goodput_uploads_too_slow_saves_wait():
    none = FailureRates(process_per_s=0, node_per_s=0)
    found = goodput(none, COSTS, Schedule(interval_s=50))
    assert not found.keeps_up
    assert found.useful_share == pytest.approx(45 / 200)
    assert found.wait_share == pytest.approx(150 / 200)


def test_goodput_skipping_does_not_wait():
    none = FailureRates(process_per_s=0, node_per_s=0)
    found = goodput(none, COSTS, Schedule(interval_s=50, back_pressure="skip"))
    assert not found.keeps_up
    assert found.wait_share == 0


def test_goodput_node_loss_loses_more_than_a_process_failure():
    found = goodput(FEW, COSTS, Schedule(interval_s=500, upload_every=2))
    assert found.lost_per_process_failure_s == pytest.approx(495 / 2 + 35)
    assert found.lost_per_node_loss_s == pytest.approx((500 + 235) * 0.99)


def test_goodput_preemption_with_enough_notice_loses_no_work():
    spot = FailureRates(process_per_s=0, node_per_s=0, preemption_per_s=1e-4)
    warned = SaveCosts(stall_s=5, commit_s=30, upload_s=60, preemption_notice_s=120)
    found = goodput(spot, warned, Schedule(interval_s=500))
    assert warned.survives_preemption
    assert found.lost_share == 0
    assert found.restart_share > 0


@given(rates_strategy, costs_strategy(), schedules_strategy)
def test_goodput_shares_are_shares(rates, costs, schedule):
    found = goodput(rates, costs, schedule)
    shares = (
        found.useful_share,
        found.stall_share,
        found.wait_share,
        found.lost_share,
        found.restart_share,
    )
    assert all(-1e-12 <= share <= 1 + 1e-12 for share in shares)
    assert sum(shares) == pytest.approx(1)
    assert found.lost_per_process_failure_s >= 0
    assert found.lost_per_node_loss_s >= 0


@given(rates_strategy, costs_strategy(), schedules_strategy, st.floats(1, 10))
def test_goodput_never_rises_with_failures(rates, costs, schedule, factor):
    more = FailureRates(
        process_per_s=rates.process_per_s * factor,
        node_per_s=rates.node_per_s * factor,
        preemption_per_s=rates.preemption_per_s * factor,
    )
    before = goodput(rates, costs, schedule).useful_share
    assert goodput(more, costs, schedule).useful_share <= before * (1 + 1e-9)


def test_best_schedule_one_tier_is_the_exact_optimum():
    rates = FailureRates(process_per_s=1 / 20_000, node_per_s=0)
    costs = SaveCosts(stall_s=30, commit_s=30)
    found = best_schedule(rates, costs, upload_every=1)
    assert found.interval_s - 30 == pytest.approx(exact_interval_s(30, 20_000), rel=1e-3)


def test_best_schedule_is_not_beaten_nearby():
    found = best_schedule(FEW, COSTS)
    best = goodput(FEW, COSTS, found).useful_share
    for factor in (0.8, 0.95, 1.05, 1.25):
        other = Schedule(interval_s=found.interval_s * factor, upload_every=found.upload_every)
        assert goodput(FEW, COSTS, other).useful_share <= best


def test_best_schedule_leaves_time_for_uploads():
    slow = SaveCosts(stall_s=1, commit_s=10, upload_s=7200)
    found = best_schedule(FEW, slow)
    assert found.upload_interval_s >= 7200 * (1 - 1e-9)


def test_best_schedule_without_failures_is_refused():
    with pytest.raises(ConfigError) as caught:
        best_schedule(FailureRates(process_per_s=0, node_per_s=0), COSTS)
    assert caught.value.field == "mtbf"


def test_goodput_band_is_ordered():
    rates = Cases(best=FEW, likely=FEW, worst=FailureRates(process_per_s=1e-4, node_per_s=1e-4))
    costs = SaveCosts.cases(
        stall_s=Band(1, 5, 20), commit_s=Band(10, 40, 90), preemption_notice_s=Band(0, 60, 120)
    )
    assert costs.best.preemption_notice_s == 120
    assert costs.worst.preemption_notice_s == 0
    found = goodput_band(rates, costs, Schedule(interval_s=600))
    assert 0 < found.low < found.mid < found.high < 1
    assert best_interval_band(rates, costs).low < best_interval_band(rates, costs).high


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"stall_s": -1, "commit_s": 1}, "stall_s"),
        ({"stall_s": 5, "commit_s": 4}, "commit_s"),
        ({"stall_s": 1, "commit_s": 1, "upload_s": math.nan}, "upload_s"),
    ],
)
def test_save_costs_out_of_bounds_name_their_field(values, field):
    with pytest.raises(ConfigError) as caught:
        SaveCosts(**values)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("interval_s", 0),
        ("interval_s", 1e12),
        ("upload_every", 0),
        ("max_in_flight", 0),
        ("back_pressure", "hope"),
    ],
)
def test_schedule_out_of_bounds_names_its_field(field, value):
    with pytest.raises(ConfigError) as caught:
        Schedule(**{"interval_s": 60, field: value})
    assert caught.value.field == field


@pytest.mark.parametrize("interval", [young_interval_s, daly_interval_s, exact_interval_s])
def test_interval_of_a_negative_stall_is_refused(interval):
    with pytest.raises(ConfigError) as caught:
        interval(-1, 100)
    assert caught.value.field == "stall_s"
