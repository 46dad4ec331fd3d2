import datetime
import json
import shutil

import pytest

from gdsckpt.errors import ConfigError, StorageError
from gdsckpt.planning import measured, watch
from gdsckpt.planning.advice import WARNING
from gdsckpt.planning.scenario import Scenario
from gdsckpt.report import SaveReport, UploadReport

NOON = datetime.datetime(2026, 11, 29, 12, 0, tzinfo=datetime.UTC)


def log(root, *, num_saves, every_s, upload_s=1.0, stall_s=0.1, nbytes=10**6):
    lines = []
    for number in range(num_saves):
        time = (NOON - datetime.timedelta(seconds=(num_saves - 1 - number) * every_s)).isoformat()
        save = SaveReport(
            path=str(root),
            nbytes=nbytes,
            payload_bytes=nbytes,
            num_tensors=1,
            num_records=1,
            seconds=1.0,
            plan_s=0.0,
            write_s=1.0,
            sync_s=0.0,
            commit_s=0.0,
            engine="pinned",
            engine_reasons=(),
            direct_io=True,
            snapshot="host",
            stall_s=stall_s,
        )
        upload = UploadReport(
            path=str(root),
            url="s3://bucket/run",
            nbytes=nbytes,
            sent_bytes=nbytes,
            num_objects=1,
            num_parts=1,
            seconds=upload_s,
        )
        for kind, report in (("save", save), ("upload", upload)):
            lines.append(json.dumps({"kind": kind, "time": time, "report": report.as_dict()}))
    path = root / measured.LOG_PATH
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def look(root, *, later_s=1.0, **flags):
    return watch.look(root, Scenario(), flags, now_s=NOON.timestamp() + later_s)


def warnings(verdict):
    return {each.topic for each in verdict.advice if each.level == WARNING}


def test_look_at_a_run_that_fits(tmp_path):
    log(tmp_path, num_saves=10, every_s=600)
    verdict = look(tmp_path)
    assert verdict.fits is True
    assert "1 MB every 10 min" in verdict.summary
    assert "10 saves, 10 uploads" in verdict.summary
    assert json.loads(json.dumps(verdict.as_dict()))["fits"] is True


def test_look_before_the_first_save_is_undecided(tmp_path):
    assert look(tmp_path).fits is None


def test_look_at_uploads_that_fall_behind(tmp_path):
    log(tmp_path, num_saves=10, every_s=60, upload_s=90)
    verdict = look(tmp_path)
    assert verdict.fits is False
    assert "drain" in warnings(verdict)


def test_look_at_stalls_over_the_line(tmp_path):
    log(tmp_path, num_saves=10, every_s=60, stall_s=9)
    assert "overlap" in warnings(look(tmp_path))
    assert "overlap" not in warnings(look(tmp_path, saves={"allowed_overlap": "20%"}))


def test_look_at_a_run_that_went_silent(tmp_path):
    log(tmp_path, num_saves=10, every_s=60)
    assert "silence" not in warnings(look(tmp_path, later_s=170))
    assert "silence" in warnings(look(tmp_path, later_s=600))


def test_look_with_an_interval_that_is_planned_now(tmp_path):
    log(tmp_path, num_saves=10, every_s=600, upload_s=90)
    assert look(tmp_path).fits is True
    assert "drain" in warnings(look(tmp_path, saves={"interval": "1min"}))


def test_look_says_when_the_drive_is_full(tmp_path):
    free = shutil.disk_usage(tmp_path).free
    log(tmp_path, num_saves=2, every_s=600, nbytes=2 * free)
    assert "space" in warnings(look(tmp_path))


def test_look_forgets_what_is_long_ago(tmp_path):
    log(tmp_path, num_saves=40, every_s=60, upload_s=90)
    bad = (tmp_path / measured.LOG_PATH).read_text()
    log(tmp_path, num_saves=watch.NEWEST, every_s=600)
    path = tmp_path / measured.LOG_PATH
    path.write_text(bad + path.read_text())
    verdict = look(tmp_path)
    assert verdict.fits is True
    assert verdict.measured.num_saves == watch.NEWEST


def test_look_at_a_missing_root(tmp_path):
    with pytest.raises(StorageError):
        look(tmp_path / "missing")


def test_look_with_bad_flags(tmp_path):
    log(tmp_path, num_saves=2, every_s=600)
    with pytest.raises(ConfigError):
        look(tmp_path, saves={"interval": "soon"})


def test_look_interval_that_was_not_measured_is_called_assumed(tmp_path):
    log(tmp_path, num_saves=1, every_s=60)
    verdict = watch.look(tmp_path, Scenario(), {}, now_s=NOON.timestamp())
    assert "every 1 h (assumed)" in verdict.summary
