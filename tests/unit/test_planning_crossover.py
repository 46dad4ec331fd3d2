import json

import pytest

from gdsckpt.errors import ConfigError
from gdsckpt.planning.architecture import Architecture, FileSystem, LocalDrives, Workload
from gdsckpt.planning.band import Band
from gdsckpt.planning.capacity import Stage
from gdsckpt.planning.crossover import (
    compare,
    cost_over_frequency,
    crossover,
    rule_cases,
    standard_architectures,
)
from gdsckpt.planning.prices import load_prices

PRICES = load_prices()
HOURLY = Workload(checkpoint_bytes=1e12, interval_s=3600, num_gpus=512, num_objects=512)
STANDARD = standard_architectures(stall_s=Band(1, 3, 10))
THERE = Architecture(
    name="there",
    file_system=FileSystem(storage="fsx-lustre-1000", provisioned_bytes=1200 * 2**30),
)
EXPRESS = Architecture(name="express", stages=(Stage(storage="s3-express", keep_s=3600.0),))


def test_crossover_by_hand():
    # The file system is 720 USD. Express takes 1,000 GiB x 0.0032 of each of 720 f saves, and
    # keeps f of them for the hour that is charged: 110 f, less what the first hour fills.
    work = Workload(checkpoint_bytes=1000 * 2**30, interval_s=3600)
    found = crossover(work, THERE, EXPRESS, PRICES, counts_idle=False)
    assert found.per_hour == pytest.approx((720 / (2304 + 110),), rel=0.01)
    assert found.cheaper_below == "express"
    assert found.cheaper_above == "there"
    assert not found.rule_holds
    # The price of the file system is 0.55 to 0.66.
    assert found.per_hour_band.low == pytest.approx(660 / 2414, rel=0.01)
    assert found.per_hour_band.high == pytest.approx(792 / 2414, rel=0.01)
    assert found.is_certain


def test_crossover_rule_of_thumb_holds_for_a_large_file_system():
    # Twelve times that file system: 8,640 / 2,414 = 3.6 an hour.
    large = Architecture(
        name="large",
        file_system=FileSystem(storage="fsx-lustre-1000", provisioned_bytes=14_400 * 2**30),
    )
    work = Workload(checkpoint_bytes=1000 * 2**30, interval_s=3600)
    found = crossover(work, large, EXPRESS, PRICES, counts_idle=False)
    assert found.per_hour == pytest.approx((3.58,), rel=0.01)
    assert found.rule_holds
    assert "rule of thumb of 4 an hour holds" in found.statement


def test_crossover_of_one_that_is_always_cheaper_says_so():
    drives = Architecture(name="drives", drives=LocalDrives())
    two = Architecture(name="two copies", drives=LocalDrives(num_copies=2))
    found = crossover(HOURLY, two, drives, PRICES)
    assert found.per_hour == ()
    assert found.per_hour_band is None
    assert found.cheaper_below == found.cheaper_above == "drives"
    assert "no crossover" in found.statement


def test_crossover_idle_gpus_move_it():
    counted = crossover(HOURLY, STANDARD[0], STANDARD[1], PRICES)
    storage = crossover(HOURLY, STANDARD[0], STANDARD[1], PRICES, counts_idle=False)
    assert storage.per_hour[0] < 1 < counted.per_hour[0]
    assert counted.per_hour_band.low <= counted.per_hour[0] <= counted.per_hour_band.high


def test_crossover_with_itself_is_refused():
    with pytest.raises(ConfigError) as caught:
        crossover(HOURLY, THERE, THERE, PRICES)
    assert caught.value.field == "architecture"


def test_rule_cases_show_each_assumption_once():
    cases = rule_cases(HOURLY, STANDARD[0], STANDARD[1], PRICES)
    assert len({assumed for assumed, _ in cases}) == 4
    assert [found.counts_idle for _, found in cases] == [True, False, True, False]
    json.dumps([found.as_dict() for _, found in cases])


def test_rule_cases_without_a_file_system_are_refused():
    with pytest.raises(ConfigError) as caught:
        rule_cases(HOURLY, EXPRESS, STANDARD[0], PRICES)
    assert caught.value.field == "architecture"


def test_compare_puts_the_cheapest_first():
    costs = compare(HOURLY, STANDARD, PRICES)
    totals = [each.total_usd.mid for each in costs]
    assert totals == sorted(totals)
    assert {each.architecture for each in costs} == {each.name for each in STANDARD}


def test_cost_over_frequency_never_falls():
    for architecture in STANDARD:
        points = cost_over_frequency(HOURLY, architecture, PRICES)
        totals = [total.mid for _, total in points]
        assert all(a <= b * (1 + 1e-9) for a, b in zip(totals, totals[1:], strict=False))
        assert points[0][0] < 0.06
        assert points[-1][0] == pytest.approx(120)
