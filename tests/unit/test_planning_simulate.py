import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gdsckpt import planning
from gdsckpt.errors import ConfigError
from gdsckpt.planning import simulate_kernel as kernel
from gdsckpt.planning.cadence import SaveCosts, Schedule, goodput
from gdsckpt.planning.failures import FailureRates
from gdsckpt.planning.simulate import SimulationSettings, simulate

DAY_S = 86400.0
NEVER = FailureRates(process_per_s=0, node_per_s=0)


def shares(found):
    return (
        found.goodput_mean,
        found.stall_share,
        found.wait_share,
        found.lost_share,
        found.restart_share,
    )


def test_simulate_one_tier_agrees_with_the_closed_form():
    rates = FailureRates(process_per_s=1 / 20_000, node_per_s=0)
    costs = SaveCosts(stall_s=60, commit_s=60, restart_s=300)
    schedule = Schedule(interval_s=1500)
    found = simulate(rates, costs, schedule)  # 10,000 runs of 30 days
    expected = goodput(rates, costs, schedule).useful_share  # exact but for the end of the run
    assert found.goodput_mean == pytest.approx(expected, abs=4 * found.goodput_error + 3e-5)
    assert found.goodput_error < 1e-4


@pytest.mark.parametrize("upload_every", [1, 4])
def test_simulate_two_tiers_agree_with_the_closed_form(upload_every):
    rates = FailureRates(process_per_s=1 / 30_000, node_per_s=1 / 40_000)
    costs = SaveCosts(
        stall_s=5,
        commit_s=60,
        upload_s=300,
        restart_s=300,
        restore_local_s=20,
        restore_remote_s=200,
    )
    schedule = Schedule(interval_s=600, upload_every=upload_every)
    found = simulate(rates, costs, schedule, settings=SimulationSettings(num_runs=2000))
    closed = goodput(rates, costs, schedule)
    assert found.goodput_mean == pytest.approx(closed.useful_share, abs=0.001)
    assert found.restart_share == pytest.approx(closed.restart_share, abs=0.001)
    assert found.lost_share == pytest.approx(closed.lost_share, abs=0.002)


def test_simulate_node_losses_cost_more_than_process_failures():
    costs = SaveCosts(stall_s=5, commit_s=60, upload_s=900)
    some = SimulationSettings(num_runs=200)
    schedule = Schedule(interval_s=600, upload_every=3)
    process = FailureRates(process_per_s=1e-4, node_per_s=0)
    node = FailureRates(process_per_s=0, node_per_s=1e-4)
    local = simulate(process, costs, schedule, settings=some)
    remote = simulate(node, costs, schedule, settings=some)
    assert remote.lost_share > 2 * local.lost_share


def test_simulate_without_failures_counts_by_hand():
    costs = SaveCosts(stall_s=10, commit_s=10, upload_s=100)
    one_day = SimulationSettings(run_s=DAY_S, num_runs=1)
    found = simulate(NEVER, costs, Schedule(interval_s=600, upload_every=4), settings=one_day)
    # Save n begins at 590 + 600 n; the last at 86,390. Every fourth is uploaded, 36 of them, the
    # last of which is committed at the end and not uploaded any more.
    assert found.num_saves == 144
    assert found.num_uploads == 35
    assert found.goodput_mean * DAY_S == pytest.approx(144 * 590)
    assert found.stall_share * DAY_S == pytest.approx(1440)
    assert found.num_skipped == found.lost_share == found.restart_share == 0


def test_simulate_uploads_too_slow_saves_wait_for_them():
    costs = SaveCosts(stall_s=5, commit_s=20, upload_s=300)
    schedule = Schedule(interval_s=100, max_in_flight=1)
    found = simulate(NEVER, costs, schedule, settings=SimulationSettings(num_runs=1))
    # One upload at a time: a save may begin when the one before is uploaded, 20 + 300 s after its
    # own beginning.
    assert found.wait_share == pytest.approx(220 / 320, abs=0.001)
    assert found.goodput_mean == pytest.approx(95 / 320, abs=0.001)


def test_simulate_room_for_two_uploads_go_on_without_a_pause():
    costs = SaveCosts(stall_s=5, commit_s=20, upload_s=300)
    schedule = Schedule(interval_s=100, max_in_flight=2)
    found = simulate(NEVER, costs, schedule, settings=SimulationSettings(num_runs=1))
    assert found.goodput_mean == pytest.approx(95 / 300, abs=0.001)


@pytest.mark.parametrize(("max_in_flight", "uploaded_every_s"), [(1, 400), (2, 310)])
def test_simulate_skipping_leaves_uploads_out_and_never_waits(max_in_flight, uploaded_every_s):
    costs = SaveCosts(stall_s=5, commit_s=20, upload_s=310)
    schedule = Schedule(interval_s=100, back_pressure="skip", max_in_flight=max_in_flight)
    found = simulate(NEVER, costs, schedule, settings=SimulationSettings(run_s=DAY_S, num_runs=1))
    assert found.wait_share == 0
    assert found.num_uploads == pytest.approx(DAY_S / uploaded_every_s, abs=2)
    assert found.num_uploads + found.num_skipped == pytest.approx(DAY_S / 100, abs=4)


def test_simulate_preemption_with_notice_loses_no_work():
    spot = FailureRates(process_per_s=0, node_per_s=0, preemption_per_s=1e-4)
    costs = SaveCosts(
        stall_s=5, commit_s=30, upload_s=60, preemption_notice_s=120, preemption_wait_s=600
    )
    some = SimulationSettings(num_runs=50)
    found = simulate(spot, costs, Schedule(interval_s=600), settings=some)
    assert found.lost_share == 0
    # Each takes 690 s, within which the next may come.
    closed = goodput(spot, costs, Schedule(interval_s=600))
    assert found.restart_share == pytest.approx(closed.restart_share, rel=0.05)


def test_simulate_equal_seeds_give_equal_results():
    rates = FailureRates(process_per_s=1e-4, node_per_s=1e-5)
    costs = SaveCosts(stall_s=5, commit_s=60, upload_s=300, restart_s=60)
    schedule = Schedule(interval_s=600)
    first, second, other = (
        simulate(rates, costs, schedule, settings=SimulationSettings(num_runs=20, seed=seed))
        for seed in (7, 7, 8)
    )
    assert first == second
    assert other.goodput_mean != first.goodput_mean


def test_kernel_runs_do_not_depend_on_how_they_are_cut():
    given_values = np.zeros(kernel.NUM_GIVEN)
    given_values[kernel.RUN] = DAY_S
    given_values[kernel.INTERVAL] = 500
    given_values[kernel.EVERY] = given_values[kernel.CAPACITY] = 1
    given_values[kernel.SAVE_STALL] = given_values[kernel.SAVE_COMMIT] = 7
    given_values[kernel.RATE_PROCESS] = 1e-4
    whole, parts = np.zeros((2, 9, kernel.NUM_RESULTS))
    kernel.simulate_runs(given_values, 3, 0, whole)
    kernel.simulate_runs(given_values, 3, 0, parts[:4])
    kernel.simulate_runs(given_values, 3, 4, parts[4:])
    assert np.array_equal(whole, parts)
    assert len(np.unique(whole[:, kernel.USEFUL])) == 9


@settings(deadline=None, max_examples=60)
@given(
    rates=st.builds(
        FailureRates,
        process_per_s=st.floats(0, 1e-2),
        node_per_s=st.floats(0, 1e-2),
        preemption_per_s=st.floats(0, 1e-2),
    ),
    costs=st.builds(
        lambda stall, commit, upload, rest: SaveCosts(
            stall_s=stall,
            commit_s=stall + commit,
            upload_s=upload,
            restart_s=rest,
            preemption_notice_s=rest,
        ),
        *(st.floats(0, 900) for _ in range(4)),
    ),
    schedule=st.builds(
        Schedule,
        interval_s=st.floats(901, 5000),
        upload_every=st.integers(1, 5),
        back_pressure=st.sampled_from(["wait", "skip"]),
        max_in_flight=st.integers(1, 4),
    ),
)
def test_simulate_times_are_never_negative_and_add_up(rates, costs, schedule):
    few = SimulationSettings(run_s=5 * DAY_S, num_runs=5)
    found = simulate(rates, costs, schedule, settings=few)
    assert all(share >= -1e-9 for share in shares(found))
    assert sum(shares(found)) == pytest.approx(1)
    assert found.num_uploads + found.num_skipped <= found.num_saves


def test_simulate_stall_as_long_as_the_interval_is_refused():
    with pytest.raises(ConfigError) as caught:
        simulate(NEVER, SaveCosts(stall_s=60, commit_s=60), Schedule(interval_s=60))
    assert caught.value.field == "interval_s"


def test_simulate_too_many_saves_is_refused():
    with pytest.raises(ConfigError) as caught:
        simulate(NEVER, SaveCosts(stall_s=0, commit_s=0), Schedule(interval_s=0.01))
    assert caught.value.field == "num_runs"


@pytest.mark.parametrize("field", ["run_s", "num_runs", "seed"])
def test_settings_out_of_bounds_name_their_field(field):
    with pytest.raises(ConfigError) as caught:
        SimulationSettings(**{field: -1})
    assert caught.value.field == field


def test_simulate_without_numba_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.delitem(sys.modules, "gdsckpt.planning.simulate_kernel")
    monkeypatch.delattr(planning, "simulate_kernel")
    with pytest.raises(ConfigError, match=r"gdsckpt\[plan\]") as caught:
        simulate(NEVER, SaveCosts(stall_s=1, commit_s=1), Schedule(interval_s=60))
    assert caught.value.field == "simulate"
