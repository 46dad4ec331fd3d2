import pytest

from gdsckpt.format import layout, zipfmt

FIXED = [(layout.FORMAT_RECORD, 10), (layout.BYTEORDER_RECORD, 6), (layout.VERSION_RECORD, 2)]
MiB = 1 << 20


@pytest.mark.parametrize(
    ("nbytes", "alignment"),
    [
        (0, 64),
        (512 * 1024 - 1, 64),
        (512 * 1024, 4096),
        (8 * MiB - 1, 4096),
        (8 * MiB, 65536),
    ],
)
def test_alignment_of_steps_at_the_documented_sizes(nbytes, alignment):
    assert layout.alignment_of(nbytes) == alignment


def test_plan_shard_first_header_stands_at_zero_without_gaps():
    plan = layout.plan_shard([5], FIXED, 100)
    first, second, third = plan.records[:3]
    assert first.header_offset == 0
    assert second.header_offset == first.end_offset
    assert third.header_offset == second.end_offset


def test_plan_shard_puts_large_payloads_first_and_the_pickle_last():
    sizes = [10, 9 * MiB, 20, MiB]
    plan = layout.plan_shard(sizes, FIXED, 100)
    names = [record.name.removeprefix("archive/") for record in plan.records[3:]]
    assert names == ["data/1", "data/3", "data/0", "data/2", "data.pkl"]
    assert plan.covered_bytes == plan.records[-1].end_offset


def test_plan_shard_payloads_are_aligned_headers_adjoin_and_nothing_overlaps():
    sizes = [0, 1, 63, 64, 65, 511 * 1024, 512 * 1024, 8 * MiB, 8 * MiB + 1, 5 * (1 << 30), 3]
    plan = layout.plan_shard(sizes, FIXED, 12345)
    end_offset = 0
    for record in plan.records:
        header_nbytes = zipfmt.local_header_nbytes(record.name, record.nbytes)
        assert record.header_offset >= end_offset
        assert record.header_offset + header_nbytes == record.payload_offset
        end_offset = record.end_offset
    for record in plan.records[3:]:
        alignment = 64 if record.name == layout.PICKLE_RECORD else 0
        assert record.payload_offset % (alignment or layout.alignment_of(record.nbytes)) == 0


def test_plan_shard_places_storages_one_after_the_other_as_place_does():
    sizes = [n * 37 % 300 for n in range(1, 1200)] + [9 * MiB, 4 * (1 << 30), 600 * 1024, 0]
    plan = layout.plan_shard(sizes, FIXED, 100)
    placed = list(plan.fixed)
    for n in layout.payload_order(sizes):
        alignment = layout.alignment_of(sizes[n])
        name = f"archive/data/{n}"
        placed.append(layout.place(name, sizes[n], placed[-1].end_offset, alignment))
    assert plan.records == (*placed, plan.pickle)
    assert plan.num_records == len(plan.records)


def test_layout_picks_values_offsets_and_ends_of_storages():
    plan = layout.plan_shard([10, 9 * MiB, 20], FIXED, 100)
    assert plan.of_storages([1, 2, 3, "data/1", "data/0", "data/2", 4]) == [
        "data/1",
        "data/0",
        "data/2",
    ]
    by_name = {record.name: record for record in plan.records}
    records = [by_name[f"archive/data/{n}"] for n in range(3)]
    assert layout.payload_offsets(plan) == {n: records[n].payload_offset for n in range(3)}
    assert layout.payloads_end(plan, {0, 1}) == records[0].end_offset
    assert layout.payloads_end(plan, {1}) == records[1].end_offset
    assert layout.payloads_end(plan, set()) == 0


def test_plan_shard_equal_large_shapes_give_equal_offsets_whatever_the_rest():
    one = layout.plan_shard([MiB, 7, 9 * MiB], FIXED, 100)
    other = layout.plan_shard([MiB, 9999, 9 * MiB, 5, 5], FIXED, 100_000)
    assert [r.payload_offset for r in one.records[3:5]] == [
        r.payload_offset for r in other.records[3:5]
    ]


@pytest.mark.parametrize("kib", [64, 100, 256, 500, 512, 1024, 4096, 8192, 16384])
def test_plan_shard_overhead_is_at_most_one_percent_from_64_kib_on(kib):
    sizes = [kib * 1024] * 500
    plan = layout.plan_shard(sizes, FIXED, 500 * 110)
    directory_nbytes = sum(46 + len(record.name) for record in plan.records)
    table_nbytes = 500 * 60
    assert plan.covered_bytes + directory_nbytes + table_nbytes <= 1.01 * sum(sizes)
