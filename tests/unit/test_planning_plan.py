import dataclasses
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gdsckpt.errors import ConfigError, StorageError
from gdsckpt.planning import building, cadence, costing, scenario
from gdsckpt.planning.band import Band
from gdsckpt.planning.measured import Measured
from gdsckpt.planning.plan import make_plan, plain
from gdsckpt.planning.scenario import Scenario


def plan_of(name="h100-70b", **sections):
    return make_plan(scenario.ready_made(name).with_values(sections, is_flags=True))


def run_of(**changes):
    facts = {"root": "/run", "num_saves": 9, "num_uploads": 9, "num_manifests": 9, "num_skipped": 0}
    return Measured(**{**facts, **changes})


@pytest.mark.parametrize("name", scenario.READY_MADE)
def test_plan_of_ready_made_is_json(name):
    document = plan_of(name).as_dict()
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert document["plan_version"] == 1
    assert document["scenario"]["name"] == name


def test_plan_1t_is_eighteen_terabytes():
    plan = plan_of("1t-mlperf")
    assert plan.facts.placement.nbytes.mid == pytest.approx(18e12)
    assert plan.facts.placement.layout.num_ranks == 1024


def test_plan_70b_is_980_gigabytes_by_fourteen_bytes_a_parameter():
    plan = plan_of("h100-70b")
    assert plan.facts.size.nbytes == Band.exactly(980e9)


def test_plan_that_keeps_a_few_uploads_pays_for_a_few():
    sections = {"model": {"parameters": "70B"}, "layout": {"gpus": "256"}}

    def peak(**cost):
        plan = make_plan(Scenario().with_values({**sections, "cost": cost}, is_flags=True))
        bills = {each.architecture: each for each in plan.costing.costs}
        return bills[costing.STANDARD].peak_bytes["s3-standard"]

    assert peak() == pytest.approx(720 * 980e9)
    assert peak(keep_uploads="24") == pytest.approx(24 * 980e9)
    assert peak(keep_uploads="24", keep_every="48") == pytest.approx((24 + 696 / 48) * 980e9)


def test_plan_keep_every_without_keep_uploads_is_refused():
    with pytest.raises(ConfigError, match="--keep-uploads") as raised:
        make_plan(
            Scenario().with_values(
                {"model": {"parameters": "7B"}, "cost": {"keep_every": "4"}}, is_flags=True
            )
        )
    assert raised.value.field == "keep_every"


def test_plan_drives_that_fall_behind_are_counted_once():
    # A node writes 30.6 GB at 3 GB/s, so a save each 5 s comes each 10.3 s, after 4.9 s trained.
    slow = {"saves": {"interval": "5s"}, "hardware": {"drives": "1", "drive_rate": "3GB/s"}}
    facts = plan_of(**slow).facts
    copy_s = facts.timeline.to_host.seconds.mid
    durable_s = copy_s + 30.625e9 / 3e9
    trained = cadence.goodput(facts.rates.best, facts.costs.likely, facts.schedule)
    assert facts.costs.likely.stall_s == pytest.approx(copy_s)
    assert facts.timeline.overlap_share.mid == pytest.approx(1 - (5 - copy_s) / durable_s)
    assert trained.stall_share < 0.01
    assert trained.wait_share > 0.5


def test_plan_best_interval_does_not_depend_on_waits_at_this_one():
    def best(interval):
        slow = {"hardware": {"drives": "1", "drive_rate": "3GB/s"}, "saves": {"interval": interval}}
        facts = plan_of(**slow).facts
        return cadence.best_interval_band(facts.rates, facts.costs).mid

    assert best("5s") == pytest.approx(best("30min"))


@pytest.mark.parametrize("field", ["bucket", "archive"])
@pytest.mark.parametrize("name", ["ebs-gp3", "fsx-lustre-125"])
def test_plan_bucket_that_is_no_bucket_is_refused(field, name):
    cost = {field: name, "keep_uploads": "4", "keep_every": "9"}
    with pytest.raises(ConfigError, match=f"--{field} is '{name}'") as raised:
        plan_of(cost=cost)
    assert raised.value.field == field


def test_plan_archive_that_is_the_bucket_is_not_charged_as_a_move():
    ia = {"bucket": "s3-standard-ia", "archive": "s3-standard-ia"}

    def bill(**cost):
        plan = plan_of(cost={**ia, **cost})
        found = [
            each
            for each in plan.costing.costs
            if each.architecture.endswith("VMe, then s3-standard-ia")
        ]
        return {line.name: line for line in found[0].lines}, found[0].storage_usd.mid

    lines, usd = bill(keep_uploads="24", keep_every="1")
    assert not any("lifecycle" in name for name in lines)
    # 30 days are charged for each of the 1440 in any case, the run is no longer than that; what
    # stays is charged for its stay beside: half of the 30 days.
    assert usd < 1.51 * bill(keep_uploads="24", keep_every="1000000")[1]


def test_plan_nvl72_is_trays_of_four():
    layout = plan_of("gb200-nvl72-hourly").facts.placement.layout
    assert (layout.gpus_per_node, layout.num_ranks, layout.num_nodes) == (4, 576, 144)


def test_plan_without_a_size_says_what_to_give():
    with pytest.raises(ConfigError, match="--parameters 70B") as raised:
        make_plan(Scenario())
    assert raised.value.field == "parameters"


def test_plan_gpus_that_the_layout_does_not_divide_are_refused():
    with pytest.raises(ConfigError, match="no multiple of --tensor x --pipeline") as raised:
        plan_of(layout={"gpus": 100, "tensor": 8})
    assert raised.value.field == "gpus"


def test_plan_without_gpus_takes_a_node_and_says_so():
    plan = make_plan(Scenario().with_values({"model": {"parameters": "8B"}}, is_flags=True))
    assert plan.facts.placement.layout.num_ranks == 8
    assert any("the job has 8 GPUs" in each for each in plan.facts.assumptions)


def test_known_bytes_are_split_as_the_recipe_is():
    found = Scenario().with_values({"model": {"checkpoint": "912GB"}}, is_flags=True)
    size = building.checkpoint_size(found)
    assert size.nbytes.mid == pytest.approx(912e9)
    assert size.parts[0].nbytes.mid == pytest.approx(912e9 * 2 / 14)
    assert size.num_parameters == pytest.approx(912e9 / 14, rel=1e-9)


def test_adopt_puts_measurements_in_the_place_of_assumptions():
    found = run_of(
        checkpoint_bytes=Band.exactly(4e9),
        num_ranks=4,
        interval_s=Band(250, 300, 400),
        mode="fence",
        part_bytes=Band.exactly(64 << 20),
    )
    inputs = building.adopt(scenario.ready_made("h100-70b"), found)
    assert inputs.model.parameters is None
    assert inputs.model.checkpoint_bytes == Band.exactly(4e9)
    assert (inputs.layout.gpus, inputs.saves.interval_s, inputs.saves.mode) == (4, 300, "fence")
    assert inputs.cost.part_bytes == 64 << 20


def test_adopt_leaves_what_was_not_measured():
    base = scenario.ready_made("h100-70b")
    assert building.adopt(base, run_of()) == base


def test_flags_win_over_measurements():
    inputs = building.adopt(scenario.ready_made("h100-70b"), run_of(interval_s=Band(1, 2, 3)))
    assert inputs.with_values({"saves": {"interval": "1h"}}, is_flags=True).saves.interval_s == 3600


def test_measured_stall_and_save_replace_the_computed_scaled_to_the_rank():
    found = run_of(
        checkpoint_bytes=Band.exactly(8e9),
        num_ranks=8,
        mode="host",
        rank_bytes=Band.exactly(1e9),
        stall_s=Band.exactly(0.5),
        save_s=Band.exactly(4),
        save_bytes_per_s=Band.exactly(0.25e9),
        upload_bytes_per_s=Band.exactly(2e9),
    )
    inputs = building.adopt(scenario.ready_made("h100-70b"), found)
    facts = building.facts_of(inputs, found)
    assert facts.timeline.stall_s.mid == pytest.approx(0.5)
    assert facts.timeline.durable_s.mid == pytest.approx(4)
    assert facts.timeline.to_nvme.bytes_per_s.mid == pytest.approx(2e9)  # 8 ranks of a node
    assert facts.timeline.to_store.seconds.mid == pytest.approx(4)  # 8 GB at 2 GB/s
    twice = inputs.with_values({"model": {"checkpoint": "16GB"}}, is_flags=True)
    assert building.facts_of(twice, found).timeline.stall_s.mid == pytest.approx(1.0)


def test_measured_stall_of_another_mode_does_not_count():
    found = run_of(mode="sync", rank_bytes=Band.exactly(1e9), stall_s=Band.exactly(50))
    inputs = scenario.ready_made("h100-70b")
    assert building.facts_of(inputs, found).timeline.stall_s.high < 1


def test_measured_rates_yield_to_those_of_the_user():
    found = run_of(num_ranks=8, save_bytes_per_s=Band.exactly(1e8))
    inputs = scenario.ready_made("h100-70b").with_values(
        {"hardware": {"drive_rate": "5GB/s", "drives": 2}}, is_flags=True
    )
    assert building.facts_of(inputs, found).node.nvme_write_bytes_per_s == Band.exactly(10e9)


def test_costing_names_the_four_architectures_and_their_crossovers():
    found = plan_of().costing
    names = {each.architecture for each in found.costs}
    assert names == {costing.FILE_SYSTEM, costing.EXPRESS, costing.STANDARD, costing.DRIVES}
    assert [each.total_usd.mid for each in found.costs] == sorted(
        each.total_usd.mid for each in found.costs
    )
    assert {each.second for each in found.crossovers} == names - {costing.FILE_SYSTEM}


def test_costing_counts_the_gpus_once():
    found = plan_of(cost={"gpu_hour": "$2"}).costing
    (bill,) = [each for each in found.costs if each.architecture == costing.FILE_SYSTEM]
    hours = bill.idle.standstill_s.mid / 3600
    assert bill.idle.gpu_hours.mid == pytest.approx(hours * 256)
    assert bill.idle.usd.mid == pytest.approx(hours * 256 * 2)


def test_costing_without_a_price_of_the_gpu_says_so():
    found = plan_of("h100-70b", hardware={"node": "a100-8"}).costing
    assert not found.has_gpu_price
    assert all(each.idle.usd == Band.exactly(0) for each in found.costs)
    assert any(each.idle.gpu_hours.mid > 0 for each in found.costs)


def test_costing_of_a_bucket_on_premises_is_named_and_priced():
    found = plan_of(cost={"bucket": "minio-nvme", "archive": "ceph-hdd"}).costing
    (bill,) = [each for each in found.costs if each.architecture == "NVMe, then minio-nvme"]
    names = {line.name for line in bill.lines}
    assert {"minio-nvme capacity", "ceph-hdd capacity"} <= names
    assert not any("s3" in name for name in names)


def test_costing_unknown_storage_is_refused():
    with pytest.raises(ConfigError, match="fsx-lustre-1001"):
        plan_of(cost={"file_system": "fsx-lustre-1001"})


def test_costing_missing_price_file_is_named(tmp_path):
    with pytest.raises(StorageError) as raised:
        plan_of(cost={"prices": str(tmp_path / "prices.toml")})
    assert raised.value.path == str(tmp_path / "prices.toml")


def test_simulation_is_left_out_with_a_reason():
    found = plan_of().cadence
    assert found.simulation is None
    assert found.not_simulated


@pytest.mark.parametrize("name", scenario.READY_MADE)
def test_curve_contains_the_interval_and_the_best(name):
    found = plan_of(name)
    at = [point.interval_s for point in found.cadence.curve]
    assert at == sorted(at)
    assert at[0] < found.scenario.saves.interval_s < at[-1]
    assert at[0] < found.cadence.best_interval_s.mid < at[-1]


def numbers_in(value):
    if isinstance(value, dict):
        for each in value.values():
            yield from numbers_in(each)
    elif isinstance(value, list):
        for each in value:
            yield from numbers_in(each)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


SIZES = st.sampled_from(["10MB", "1GB", "500GB", "18TB"])
INTERVALS = st.sampled_from(["1s", "30s", "10min", "1h", "1d", "60d"])
MODES = st.sampled_from(["sync", "host", "fence"])


@settings(max_examples=12, deadline=None)
@given(SIZES, INTERVALS, MODES, st.sampled_from([1, 8, 64]))
def test_plan_has_no_negative_and_no_infinite_number(size, interval, mode, gpus):
    inputs = Scenario().with_values(
        {
            "model": {"checkpoint": size},
            "saves": {"interval": interval, "mode": mode},
            "layout": {"gpus": gpus},
        },
        is_flags=True,
    )
    found = list(numbers_in(make_plan(inputs).as_dict()))
    assert all(math.isfinite(each) and each >= 0 for each in found)


def totals(inputs):
    found = costing.bills_of(inputs, building.facts_of(inputs))
    return {each.architecture: each.total_usd for each in found}


@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from(["sync", "host"]),
    st.lists(st.integers(1, 10**5), min_size=2, max_size=2, unique=True),
)
def test_cost_never_falls_when_the_size_rises(mode, gigabytes):
    small, large = (
        totals(
            Scenario().with_values(
                {"model": {"checkpoint": f"{each}GB"}, "saves": {"mode": mode}}, is_flags=True
            )
        )
        for each in sorted(gigabytes)
    )
    for name, band in small.items():
        for end in ("low", "mid", "high"):
            assert getattr(band, end) <= getattr(large[name], end) * (1 + 1e-9)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(60, 10**6), min_size=2, max_size=2, unique=True))
def test_cost_never_falls_when_saves_come_more_often(seconds):
    rare, often = (
        totals(
            Scenario().with_values(
                {"model": {"checkpoint": "500GB"}, "saves": {"interval": f"{each}s"}},
                is_flags=True,
            )
        )
        for each in sorted(seconds, reverse=True)
    )
    for name, band in rare.items():
        assert band.mid <= often[name].mid * (1 + 1e-9)


def test_plain_gives_what_json_has():
    @dataclasses.dataclass
    class Some:
        band: Band
        names: tuple[str, ...]

    assert plain({"a": Some(Band(1, 2, 3), ("x",))}) == {
        "a": {"band": {"low": 1, "mid": 2, "high": 3}, "names": ["x"]}
    }
