import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdsckpt.errors import ConfigError
from gdsckpt.planning.architecture import Architecture, FileSystem, LocalDrives, Workload
from gdsckpt.planning.band import Band
from gdsckpt.planning.capacity import Stage
from gdsckpt.planning.cost import cost, gpu_idle
from gdsckpt.planning.crossover import standard_architectures
from gdsckpt.planning.prices import load_prices

PRICES = load_prices()
GIB, TIB, DAY_S = 2**30, 2**40, 86400.0
EVERY_DAY = Workload(checkpoint_bytes=1000 * GIB, interval_s=DAY_S, run_s=30 * DAY_S)

ARCHITECTURES = (
    *standard_architectures(stall_s=Band(1, 3, 10)),
    Architecture(
        name="file system that is there",
        file_system=FileSystem(storage="fsx-lustre-500", provisioned_bytes=50e12),
    ),
    Architecture(
        name="archive",
        stages=(
            Stage(storage="s3-express", keep_s=DAY_S),
            Stage(storage="s3-standard", keep_newest=5),
            Stage(storage="s3-standard-ia", keep_s=10 * DAY_S, keep_every=3),
            Stage(storage="s3-glacier-deep"),
        ),
        upload_every=2,
    ),
)


def bill(workload, *stages, **parts):
    return cost(workload, Architecture(name="a", stages=stages, **parts), PRICES)


def line(found, name):
    (match,) = (each for each in found.lines if each.name == name)
    return match.usd.mid


def test_express_for_a_day_then_standard_by_hand():
    found = bill(
        EVERY_DAY,
        Stage(storage="s3-express", keep_s=DAY_S),
        Stage(storage="s3-standard"),
    )
    # 30 checkpoints of 1,000 GB at 0.0032 to write; 29 of them leave, at 0.0006 to read.
    assert line(found, "s3-express upload") == pytest.approx(96.0)
    assert line(found, "s3-express retrieval for copies") == pytest.approx(17.4)
    # 29.5 checkpoint-days at 0.11 for 30 days, and the hour that the last are charged at least;
    # 29 x 29 / 2 at 0.023.
    days = 29.5 + (1 / 24) ** 2 / 2
    assert line(found, "s3-express capacity") == pytest.approx(days * 1000 / 30 * 0.11)
    assert line(found, "s3-standard capacity") == pytest.approx(420.5 * 1000 / 30 * 0.023)


def test_put_requests_count_parts_begin_end_and_manifest():
    one = dataclasses.replace(EVERY_DAY, checkpoint_bytes=GIB)
    assert one.write_requests_per_checkpoint == 8 + 2 + 1  # 8 parts of 128 MiB
    ranks = dataclasses.replace(EVERY_DAY, checkpoint_bytes=64 * GIB, num_objects=64)
    assert ranks.write_requests_per_checkpoint == 64 * 10 + 1
    small = dataclasses.replace(EVERY_DAY, checkpoint_bytes=1000)
    assert small.write_requests_per_checkpoint == 2
    found = bill(ranks, Stage(storage="s3-standard"))
    assert line(found, "s3-standard PUT requests") == pytest.approx(641 * 30 * 0.005 / 1000)


def test_put_requests_parts_grow_beyond_ten_thousand():
    huge = dataclasses.replace(EVERY_DAY, checkpoint_bytes=10 * TIB)
    assert huge.parts_per_object == 10_000


def test_lifecycle_moves_objects_not_parts():
    many = dataclasses.replace(EVERY_DAY, num_objects=100)
    found = bill(
        many,
        Stage(storage="s3-standard", keep_s=DAY_S),
        Stage(storage="s3-glacier-instant"),
    )
    assert line(found, "lifecycle to s3-glacier-instant") == pytest.approx(29 * 100 * 0.02 / 1000)


def test_archive_charges_its_minimum_duration():
    found = bill(
        EVERY_DAY, Stage(storage="s3-standard", keep_s=DAY_S), Stage(storage="s3-glacier-deep")
    )
    # 29 checkpoints, each for 180 days though the run ends before.
    assert line(found, "s3-glacier-deep capacity") == pytest.approx(29 * 6 * 1000 * 0.00099)


def test_restores_are_read_from_the_first_stage():
    read = dataclasses.replace(
        EVERY_DAY, num_restores=2, num_objects=10, egress_share=0.5, nat_share=1.0
    )
    found = bill(read, Stage(storage="s3-standard-ia"))
    assert line(found, "s3-standard-ia retrieval for restores") == pytest.approx(20.0)
    assert line(found, "s3-standard-ia GET requests") == pytest.approx(2 * 10 * 800 * 0.001 / 1000)
    assert line(found, "egress") == pytest.approx(0.5 * 2000 * 0.07)
    assert line(found, "NAT gateway") == pytest.approx((30_000 + 2000) * 0.045)


def test_cross_zone_is_paid_for_both_sides():
    crossing = dataclasses.replace(EVERY_DAY, cross_zone_share=0.25)
    found = bill(crossing, drives=LocalDrives(num_copies=2))
    assert line(found, "cross-zone") == pytest.approx(0.25 * 30_000 * 0.02)


def test_smallest_lustre_costs_174_a_month():
    tiny = Workload(checkpoint_bytes=1e9, interval_s=DAY_S)
    found = bill(tiny, file_system=FileSystem(storage="fsx-lustre-125"))
    assert line(found, "fsx-lustre-125 capacity") == pytest.approx(174.0)  # 1,200 GB x 0.145


def test_file_system_is_bought_for_the_allowed_standstill():
    hourly = Workload(checkpoint_bytes=3.6e12, interval_s=3600, num_gpus=100)
    found = bill(hourly, file_system=FileSystem(storage="fsx-lustre-1000", overlap_share=0.1))
    # 3.6 TB in 360 s are 10 GB/s, so 10 TiB of it; the training stands still for 72 of 720 h.
    assert found.peak_bytes["fsx-lustre-1000"] == pytest.approx(max(10 * TIB, 7.2e12))
    assert found.idle.standstill_s.mid == pytest.approx(72 * 3600)


def test_file_system_is_bought_faster_where_idle_gpus_cost_more():
    hourly = Workload(checkpoint_bytes=3.6e12, interval_s=3600, num_gpus=1000)
    fits = FileSystem(storage="fsx-lustre-1000", overlap_share=0.1)
    found = bill(hourly, file_system=dataclasses.replace(fits, weighs_idle=True))
    # What grows with the capacity and what falls with it are the same where the sum is lowest.
    assert found.storage_usd.mid == pytest.approx(found.idle.usd.mid)
    assert found.total_usd.mid < bill(hourly, file_system=fits).total_usd.mid
    few = dataclasses.replace(hourly, num_gpus=1)
    assert bill(few, file_system=dataclasses.replace(fits, weighs_idle=True)) == bill(
        few, file_system=fits
    )


def test_gpu_idle_multiplies_by_the_gpus_once():
    hourly = Workload(checkpoint_bytes=1e12, interval_s=3600, num_gpus=512)
    idle = gpu_idle(hourly, Band.exactly(720 * 10.0), PRICES)
    assert idle.gpu_hours.mid == pytest.approx(1024)  # 2 h x 512
    assert idle.usd.mid == pytest.approx(3072)  # at 3 USD
    assert "the number of GPUs is in the GPU-hours" in idle.statement


def test_standstill_is_never_longer_than_the_run():
    busy = Workload(checkpoint_bytes=1e12, interval_s=10, run_s=1000)
    found = cost(busy, Architecture(name="a", stall_s=Band.exactly(50)), PRICES)
    assert found.idle.standstill_s == Band.exactly(1000)


def test_cost_adds_up_and_names_what_drives_it():
    found = cost(EVERY_DAY, ARCHITECTURES[1], PRICES)
    total = Band.total(each.usd for each in found.lines)
    assert found.total_usd.mid == pytest.approx(total.mid)
    assert found.total_usd.mid == pytest.approx(found.storage_usd.mid + found.idle.usd.mid)
    assert found.main_driver.startswith(found.lines[0].name)
    assert found.lines[0].usd.mid == max(each.usd.mid for each in found.lines)
    json.dumps(found.as_dict())


def test_storage_without_a_price_is_refused():
    with pytest.raises(ConfigError) as caught:
        bill(EVERY_DAY, file_system=FileSystem(storage="weka", provisioned_bytes=1e12))
    assert caught.value.field.startswith("storage.weka.")


workloads = st.builds(
    Workload,
    checkpoint_bytes=st.floats(1, 1e14),
    interval_s=st.floats(10, 1e6),
    run_s=st.floats(3600, 1e7),
    num_gpus=st.integers(1, 10_000),
    num_objects=st.integers(1, 5000),
    part_bytes=st.floats(5 * 2**20, 2**30),
    num_restores=st.floats(0, 100),
    cross_zone_share=st.floats(0, 1),
    nat_share=st.floats(0, 1),
    egress_share=st.floats(0, 1),
)


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda each: each.name)
@given(workload=workloads, factor=st.floats(1, 20))
def test_cost_never_falls_when_size_rises(architecture, workload, factor):
    larger = dataclasses.replace(workload, checkpoint_bytes=workload.checkpoint_bytes * factor)
    before, after = (cost(each, architecture, PRICES) for each in (workload, larger))
    for end in ("low", "mid", "high"):
        low, high = (getattr(each.total_usd, end) for each in (before, after))
        assert 0 <= low <= high * (1 + 1e-9)


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda each: each.name)
@given(workload=workloads, factor=st.floats(1, 20))
def test_cost_never_falls_when_frequency_rises(architecture, workload, factor):
    oftener = dataclasses.replace(workload, interval_s=workload.interval_s / factor)
    before, after = (cost(each, architecture, PRICES) for each in (workload, oftener))
    for end in ("low", "mid", "high"):
        low, high = (getattr(each.total_usd, end) for each in (before, after))
        assert 0 <= low <= high * (1 + 1e-9)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("checkpoint_bytes", 0),
        ("checkpoint_bytes", -5),
        ("interval_s", 0),
        ("run_s", float("nan")),
        ("num_gpus", 0),
        ("num_objects", -1),
        ("part_bytes", 2**20),
        ("egress_share", 1.5),
    ],
)
def test_workload_out_of_bounds_names_its_field(field, value):
    with pytest.raises(ConfigError) as caught:
        dataclasses.replace(EVERY_DAY, **{field: value})
    assert caught.value.field == field
