import dataclasses
import json
import os
import signal

import pytest

from gdsckpt.checkpointer import report_log
from gdsckpt.report import UploadReport

REPORT = UploadReport(
    path="/a", url="s3://b/k", nbytes=10, sent_bytes=10, num_objects=1, num_parts=1, seconds=2.0
)


@pytest.fixture
def log(tmp_path):
    (tmp_path / ".gdsckpt").mkdir()
    return tmp_path / ".gdsckpt" / "reports.jsonl"


def test_append_adds_one_line_per_report(tmp_path, log):
    report_log.append(tmp_path, "upload", REPORT)
    report_log.append(tmp_path, "upload", dataclasses.replace(REPORT, nbytes=11))
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["report"]["nbytes"] for line in lines] == [10, 11]
    assert lines[0]["kind"] == "upload"
    assert lines[0]["report"]["bytes_per_s"] == 5.0


def test_log_that_has_grown_too_large_keeps_its_newer_half(tmp_path, log, monkeypatch):
    monkeypatch.setattr(report_log, "LOG_MAX_BYTES", 1000)
    for nbytes in range(10, 40):
        report_log.append(tmp_path, "upload", dataclasses.replace(REPORT, sent_bytes=nbytes))
    sizes = [json.loads(line)["report"]["sent_bytes"] for line in log.read_text().splitlines()]
    assert sizes == list(range(sizes[0], 40))
    assert 10 < sizes[0] < 39


def test_half_a_line_that_a_crash_left_harms_no_other(tmp_path, log):
    report_log.append(tmp_path, "upload", REPORT)
    with log.open("a") as file:
        file.write('{"kind": "sa')
    report_log.append(tmp_path, "upload", REPORT)
    lines = log.read_text().splitlines()
    assert len(lines) == 3
    assert json.loads(lines[0])["report"] == json.loads(lines[2])["report"]


def test_append_where_there_is_no_room_for_it_is_silent(tmp_path):
    report_log.append(tmp_path / "gone", "upload", REPORT)
    assert not (tmp_path / "gone").exists()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_child_forked_while_a_thread_appends_can_append(tmp_path, log):
    with report_log._lock:  # as a thread of the parent would
        pid = os.fork()
        if pid == 0:
            try:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(60)  # ends a child that hangs
                report_log.append(tmp_path, "upload", REPORT)
            finally:
                os._exit(len(log.read_text().splitlines()))
        _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 1  # the line that it added
    report_log.append(tmp_path, "upload", REPORT)
    assert len(log.read_text().splitlines()) == 2
