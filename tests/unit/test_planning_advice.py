import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdsckpt.planning import advice, building, scenario
from gdsckpt.planning.band import Band
from gdsckpt.planning.scenario import Scenario

GIB = 2**30


def advise(name="h100-70b", **sections):
    found = scenario.ready_made(name).with_values(sections, is_flags=True)
    return {each.topic: each for each in advice.advice_on(found, building.facts_of(found))}


@pytest.mark.parametrize("name", scenario.READY_MADE)
def test_ready_made_scenarios_have_no_warnings(name):
    assert [each for each in advise(name).values() if each.level == advice.WARNING] == []


def test_interval_shorter_than_the_drain_is_a_warning_with_a_way_out():
    # 980 GB to the store at 1 GB/s take 980 s; at 5 minutes every 4th save can go there.
    found = advise(
        saves={"interval": "5min"},
        hardware={"store_rate": "1GB/s", "node_store_rate": "1GB/s"},
    )["drain"]
    assert found.level == advice.WARNING
    assert "16 min 20 s" in found.text
    assert "--upload-every 4" in found.text


def test_drain_that_may_be_too_long_is_a_note():
    found = advise(saves={"interval": "5min"}, hardware={"store_rate": "3GB/s..8GB/s..20GB/s"})
    assert found["drain"].level == advice.NOTE
    assert found["drain"].text.startswith("in the worst case ")


def test_overlap_over_the_line_names_the_interval_and_the_rate_needed():
    # One rank writes 3.828 GB; a node 30.6 GB, at 1 GB/s 30.6 s of 60 s.
    found = advise(
        saves={"interval": "1min", "mode": "sync"}, hardware={"drives": "1", "drive_rate": "1GB/s"}
    )["overlap"]
    assert found.level == advice.WARNING
    assert "30.6 s" in found.text
    assert "51.0 %" in found.text
    assert "at most every 5 min 6 s" in found.text
    assert "163 GB/s" in found.text  # 980 GB within 6 s
    assert "--mode host" in found.text


def test_overlap_under_a_line_of_ones_own():
    sections = {"saves": {"interval": "1h", "mode": "sync"}, "hardware": {"drives": "1"}}
    assert "overlap" not in advise(**sections)
    sections["saves"]["allowed_overlap"] = "0.01%"
    assert "overlap" in advise(**sections)


def test_parts_over_ten_thousand_give_the_part_to_take():
    found = advise("small", model={"parameters": "10B"}, cost={"part": "5MiB"})["parts"]
    assert found.level == advice.WARNING
    assert "26,703 parts" in found.text  # ceil(140e9 / 5 MiB)
    assert "--part 15MiB" in found.text  # ceil(140e9 / 9500 / 1 MiB)


def test_requests_over_the_rate_of_a_prefix_give_the_prefixes_to_use():
    # 100 GB/s in parts of 5 MiB are 19,073 requests a second; 3,500 to a prefix.
    found = advise(
        hardware={"store_rate": "100GB/s", "node_store_rate": "10GB/s"}, cost={"part": "5MiB"}
    )["prefixes"]
    assert found.level == advice.WARNING
    assert "19,073 parts" in found.text
    assert "--prefixes 6" in found.text


def test_requests_spread_over_enough_prefixes_are_no_matter():
    sections = {"hardware": {"store_rate": "100GB/s"}, "cost": {"part": "5MiB", "prefixes": 6}}
    assert "prefixes" not in advise(**sections)


def test_retention_of_everything_is_a_warning():
    base = scenario.Scenario().with_values(
        {"model": {"parameters": "70B"}, "saves": {"interval": "10min"}}, is_flags=True
    )
    found = {each.topic: each for each in advice.advice_on(base, building.facts_of(base))}
    assert found["retention"].level == advice.WARNING
    assert "4,320 checkpoints" in found["retention"].text  # 30 d x 144 a day
    assert "4.23 PB" in found["retention"].text  # x 980 GB
    assert "--keep-every 144" in found["retention"].text


def test_nvme_that_cannot_hold_the_steps_is_a_warning():
    # A node writes 30.6 GB a step; 2 kept and one being written are 91.9 GB.
    found = advise(hardware={"drives": 1, "drive_capacity": "80GB"})["nvme"]
    assert found.level == advice.WARNING
    assert "91.9 GB" in found.text
    assert "add drives" in found.text
    found = advise(hardware={"drives": 1, "drive_capacity": "200GB"}, saves={"keep_local": 9})
    assert "--keep-local 4" in found["nvme"].text


def test_rendezvous_is_needed_by_several_nodes_alone():
    assert "POSIX" in advise()["rendezvous"].text
    assert "rendezvous" not in advise("small")


def test_snapshot_that_fills_host_memory_is_a_warning():
    found = advise("small", model={"parameters": "7B"})["memory"]
    assert found.level == advice.WARNING
    assert "98 GB of the 128 GB" in found.text
    assert "memory" not in advise("small", model={"parameters": "7B"}, saves={"mode": "fence"})


def test_spot_without_the_time_to_upload_is_a_warning():
    assert "preemption" in advise(failures={"spot_mtbf_node": "100h", "spot_notice": "5s"})
    assert "preemption" not in advise(failures={"spot_mtbf_node": "100h", "spot_notice": "10min"})


def test_interval_far_from_the_best_is_a_note():
    found = advise(failures={"mtbf_job": "3h"}, saves={"interval": "2h"})["interval"]
    assert found.level == advice.NOTE
    assert "goodput" in found.text


def test_warnings_come_before_notes():
    levels = [
        each.level for each in advise(hardware={"drives": 1, "drive_capacity": "80GB"}).values()
    ]
    assert levels == sorted(levels, key=lambda level: level != advice.WARNING)
    assert {advice.WARNING, advice.NOTE} == set(levels)


@pytest.mark.parametrize(
    ("nbytes", "part_bytes", "num_parts"),
    [(0, 5 << 20, 1), (1, 5 << 20, 1), (10 * GIB, GIB, 10), (10 * GIB + 1, GIB, 11)],
)
def test_parts_of(nbytes, part_bytes, num_parts):
    assert advice.parts_of(nbytes, part_bytes) == num_parts


@given(st.floats(1, 4e13))
def test_part_bytes_for_stays_under_the_limit(nbytes):
    assert advice.parts_of(nbytes, advice.part_bytes_for(nbytes)) <= advice.PARTS_MAX


def test_kept_uploads_are_the_newest_and_every_kth_older():
    def kept(**cost):
        found = scenario.ready_made("small").with_values({"cost": cost}, is_flags=True)
        return advice.kept_uploads(found)

    # 7 days of saves every 10 minutes are 1008.
    assert kept(keep_uploads=10_000) == 1008
    assert kept(keep_uploads=8, keep_every=100) == 18


def test_kept_uploads_alone_keeps_the_newest_only():
    found = Scenario().with_values({"cost": {"keep_uploads": 8}}, is_flags=True)
    assert advice.kept_uploads(found) == 8


def test_graded():
    assert advice.graded(Band(1, 2, 3), 3) is None
    assert advice.graded(Band(1, 2, 3), 2.5) == advice.NOTE
    assert advice.graded(Band(1, 2, 3), 1.5) == advice.WARNING
