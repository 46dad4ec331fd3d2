import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdsckpt.checkpointer import report_log
from gdsckpt.errors import CheckpointNotFoundError, StorageError
from gdsckpt.format import manifest as manifests
from gdsckpt.format.manifest import Manifest, ShardEntry
from gdsckpt.planning import measured
from gdsckpt.planning.band import Band
from gdsckpt.report import SaveReport, UploadReport
from gdsckpt.staging import root as roots


def save_report(**changes):
    facts = {
        "path": "/nvme/run/step-00000001",
        "nbytes": 4_000_000,
        "payload_bytes": 3_999_000,
        "num_tensors": 3,
        "num_records": 9,
        "seconds": 2.0,
        "plan_s": 0.1,
        "write_s": 1.5,
        "sync_s": 0.3,
        "commit_s": 0.1,
        "engine": "pinned",
        "engine_reasons": ("asked for",),
        "direct_io": True,
    }
    return SaveReport(**{**facts, **changes})


def upload_report(**changes):
    facts = {
        "path": "/nvme/run/step-00000001",
        "url": "s3://bucket/run/step-00000001",
        "nbytes": 4_000_000,
        "sent_bytes": 3_000_000,
        "num_objects": 1,
        "num_parts": 3,
        "seconds": 6.0,
    }
    return UploadReport(**{**facts, **changes})


def line(kind, report, time="2026-11-29T10:00:00+00:00"):
    return json.dumps({"kind": kind, "time": time, "report": report.as_dict()}).encode() + b"\n"


def write_log(root, *lines):
    path = root / measured.LOG_PATH
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(lines))


def write_manifest(root, step, *sizes, **changes):
    directory = roots.step_directory(root, step)
    directory.mkdir(parents=True)
    facts = {
        "step": step,
        "attempt": "a1",
        "world_size": len(sizes),
        "created_by": "test",
        "wall_time": f"2026-11-29T1{step}:00:00Z",
        "engine": "pinned",
        "engine_reasons": (),
        "shards": tuple(
            ShardEntry(f"rank-{rank:05d}.a1.pt", nbytes, 0, "0" * 64)
            for rank, nbytes in enumerate(sizes)
        ),
        "sequence": step,
    }
    raw = manifests.encode(Manifest(**{**facts, **changes}))
    (directory / manifests.MANIFEST_NAME).write_bytes(raw)


def test_log_path_is_that_of_the_checkpointer(tmp_path):
    assert tmp_path / measured.LOG_PATH == roots.private_directory(tmp_path) / report_log.LOG_NAME


def test_read_takes_what_the_checkpointer_logs(tmp_path):
    roots.private_directory(tmp_path).mkdir()
    report_log.append(tmp_path, "save", save_report(snapshot="fence", stall_s=0.25))
    report_log.append(tmp_path, "upload", upload_report())
    found = measured.read(tmp_path)
    assert (found.num_saves, found.num_uploads, found.num_skipped) == (1, 1, 0)
    assert found.save_s == Band.exactly(2.0)
    assert found.stall_s == Band.exactly(0.25)
    assert found.save_bytes_per_s == Band.exactly(2_000_000.0)
    assert found.upload_bytes_per_s == Band.exactly(500_000.0)
    assert found.sent_share == Band.exactly(0.75)
    assert found.part_bytes == Band.exactly(1_000_000.0)
    assert found.checkpoint_bytes == Band.exactly(4_000_000.0)


def test_read_stall_of_synchronous_save_is_the_whole_call(tmp_path):
    write_log(tmp_path, line("save", save_report(seconds=3.0, stall_s=0.0)))
    assert measured.read(tmp_path).stall_s == Band.exactly(3.0)


def test_read_adds_up_the_shards_of_all_ranks(tmp_path):
    write_manifest(tmp_path, 1, 100, 200)
    write_manifest(tmp_path, 2, 100, 200)
    found = measured.read(tmp_path)
    assert found.checkpoint_bytes == Band.exactly(300.0)
    assert found.kept_bytes == 600
    assert found.num_ranks == 2
    assert found.interval_s == Band.exactly(3600.0)


def test_read_interval_comes_from_the_log_where_it_tells(tmp_path):
    write_manifest(tmp_path, 1, 100)
    write_manifest(tmp_path, 2, 100)
    times = [f"2026-11-29T10:{minute:02d}:00+00:00" for minute in (0, 10, 20)]
    write_log(tmp_path, *(line("save", save_report(), time) for time in times))
    assert measured.read(tmp_path).interval_s == Band.exactly(600.0)


def test_read_takes_one_checkpoint_directory(tmp_path):
    write_manifest(tmp_path, 1, 100)
    found = measured.read(roots.step_directory(tmp_path, 1))
    assert found.checkpoint_bytes == Band.exactly(100.0)


BAD_LINES = [
    b'{"kind": "save", "time": "2026-11-29T10:00:00+00:00", "report": {"nby\n',
    b'{"kind": "coffee", "time": "2026-11-29T10:00:00+00:00", "report": {}}\n',
    b"[1, 2]\n",
    b"null\n",
    b"\xff\xfe\n",
    b"[" * 100_000 + b"\n",
    line("save", save_report(), "yesterday"),
    line("save", save_report(seconds=-1.0)),
    line("save", save_report(seconds=float("nan"))),
    line("save", save_report(nbytes=True)),
    line("upload", save_report()),
    b'{"kind": "save", "time": 5, "report": null}\n',
]


@pytest.mark.parametrize("bad", BAD_LINES, ids=range(len(BAD_LINES)))
def test_parse_log_bad_line_is_counted_and_the_others_kept(bad):
    good = line("save", save_report())
    saves, uploads, num_skipped = measured.parse_log(good + bad + b"\n" + good)
    assert (len(saves), len(uploads), num_skipped) == (2, 0, 1)


def test_read_torn_last_line_is_left_out(tmp_path):
    whole = line("save", save_report())
    write_log(tmp_path, whole, whole[:40])
    found = measured.read(tmp_path)
    assert (found.num_saves, found.num_skipped) == (1, 1)


def test_read_of_a_huge_log_takes_its_end(tmp_path, monkeypatch):
    whole = line("save", save_report())
    monkeypatch.setattr(measured, "LOG_MAX_BYTES", 3 * len(whole) + 10)
    write_log(tmp_path, *[whole] * 9)
    found = measured.read(tmp_path)
    assert (found.num_saves, found.num_skipped) == (3, 0)


def test_read_damaged_manifest_is_counted(tmp_path):
    write_manifest(tmp_path, 1, 100)
    write_manifest(tmp_path, 2, 100)
    path = roots.step_directory(tmp_path, 2) / manifests.MANIFEST_NAME
    path.write_bytes(path.read_bytes().replace(b"pinned", b"cufile"))
    found = measured.read(tmp_path)
    assert (found.num_manifests, found.num_skipped) == (1, 1)


def test_read_nothing_there_says_what_to_give(tmp_path):
    with pytest.raises(CheckpointNotFoundError) as raised:
        measured.read(tmp_path)
    assert raised.value.path == str(tmp_path)


def test_read_missing_directory_names_it(tmp_path):
    with pytest.raises(StorageError) as raised:
        measured.read(tmp_path / "missing")
    assert raised.value.path == str(tmp_path / "missing")


def test_upload_that_sent_nothing_tells_no_rate(tmp_path):
    write_log(tmp_path, line("upload", upload_report(sent_bytes=0, num_parts=0)))
    found = measured.read(tmp_path)
    assert found.upload_bytes_per_s is None
    assert found.sent_share == Band.exactly(0.0)


@given(st.lists(st.floats(min_value=0, max_value=1e18), min_size=1, max_size=50))
def test_band_of_lies_within_its_values(values):
    band = measured.band_of(values)
    assert min(values) <= band.low <= band.mid <= band.high <= max(values)


def test_band_of_takes_quantiles():
    assert measured.band_of(range(11)) == Band(1.0, 5.0, 9.0)
    assert measured.band_of([]) is None
