import dataclasses
import json

import pytest

from gdsckpt.report import Damage, FetchReport, SaveReport, UploadReport, VerifyReport

SAVE = SaveReport(
    path="/nvme/a.pt",
    nbytes=4_000_000_000,
    payload_bytes=3_999_000_000,
    num_tensors=290,
    num_records=300,
    seconds=2.0,
    plan_s=0.1,
    write_s=1.5,
    sync_s=0.3,
    commit_s=0.1,
    engine="pinned",
    engine_reasons=("no CUDA device",),
    direct_io=True,
    crc32=7,
)
DAMAGE = Damage(
    path="/nvme/a.pt", offset=65536, nbytes=4096, tensors=("a", "b", "c", "d"), what="chunk 3"
)
VERIFY = VerifyReport(
    path="/nvme/a.pt",
    ok=False,
    reason="1 of 4 chunks differs",
    nbytes=100,
    checked_bytes=100,
    num_chunks=4,
    damaged=(DAMAGE,),
)


UPLOAD = UploadReport(
    path="a.pt",
    url="s3://bucket/a.pt",
    nbytes=4_000_000_000,
    sent_bytes=3_000_000_000,
    num_objects=2,
    num_parts=24,
    seconds=2.0,
)
FETCH = FetchReport(
    url="s3://bucket/a.pt",
    path="b.pt",
    nbytes=4_000_000_000,
    num_objects=1,
    is_verified=True,
    seconds=2.0,
    direct_io=True,
    crc32=7,
)


@pytest.mark.parametrize("report", [SAVE, DAMAGE, VERIFY, UPLOAD, FETCH])
def test_report_as_dict_is_what_json_gives_back(report):
    plain = report.as_dict()
    assert json.loads(json.dumps(plain)) == plain
    assert {field.name for field in dataclasses.fields(report)} <= set(plain)


@pytest.mark.parametrize("report", [SAVE, DAMAGE, VERIFY, UPLOAD, FETCH])
def test_report_is_frozen(report):
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.path = "/elsewhere"


def test_save_report_rate_is_file_bytes_per_second():
    assert SAVE.bytes_per_s == 2_000_000_000.0
    assert SAVE.as_dict()["bytes_per_s"] == 2_000_000_000.0


def test_save_report_rate_without_time_is_zero():
    assert dataclasses.replace(SAVE, seconds=0.0).bytes_per_s == 0.0


def test_save_report_as_dict_has_values():
    plain = SAVE.as_dict()
    assert plain["engine_reasons"] == ["no CUDA device"]
    assert plain["crc32"] == 7
    assert plain["direct_io"] is True


def test_save_report_text_is_one_line():
    assert str(SAVE) == (
        "saved /nvme/a.pt: 4 GB, 290 tensors in 2 s (2 GB/s), engine pinned, direct I/O"
    )
    assert str(dataclasses.replace(SAVE, direct_io=False)).endswith(", buffered I/O")


def test_damage_text_names_at_most_three_tensors():
    place = "chunk 3, 4096 bytes at offset 65536"
    assert str(DAMAGE) == f"{place}, in a, b, c and 1 more"
    assert str(dataclasses.replace(DAMAGE, tensors=("a", "b"))) == f"{place}, in a, b"
    assert str(dataclasses.replace(DAMAGE, tensors=())) == place


def test_verify_report_text_of_damage_names_the_first_place():
    line = "/nvme/a.pt: damaged: 1 of 4 chunks differs"
    assert str(VERIFY) == f"{line}; 1 place: {DAMAGE}"
    two = dataclasses.replace(VERIFY, damaged=(DAMAGE, DAMAGE))
    assert str(two) == f"{line}; 2 places, the first: {DAMAGE}"
    assert str(dataclasses.replace(VERIFY, damaged=())) == line


def test_verify_report_text_of_a_whole_file_counts_chunks():
    whole = dataclasses.replace(VERIFY, ok=True, reason="", damaged=())
    assert str(whole) == "/nvme/a.pt: ok, 100 B in 4 chunks checked"


def test_verify_report_text_of_an_unverifiable_file_says_why():
    unknown = dataclasses.replace(VERIFY, ok=None, reason="it carries no checksums", damaged=())
    assert str(unknown) == "/nvme/a.pt: not verifiable: it carries no checksums"


def test_verify_report_of_a_directory_holds_its_shards():
    directory = dataclasses.replace(VERIFY, path="/nvme", shards=(VERIFY,))
    assert directory.as_dict()["shards"] == [VERIFY.as_dict()]


def test_upload_report_says_what_was_sent():
    assert UPLOAD.bytes_per_s == 1_500_000_000.0
    assert str(UPLOAD) == (
        "uploaded a.pt to s3://bucket/a.pt: 3 GB in 2 s (1.50 GB/s), 1 GB were there already"
    )
    whole = dataclasses.replace(UPLOAD, sent_bytes=UPLOAD.nbytes)
    assert str(whole) == "uploaded a.pt to s3://bucket/a.pt: 4 GB in 2 s (2 GB/s)"


def test_upload_report_of_what_was_there_already():
    there = dataclasses.replace(UPLOAD, sent_bytes=0)
    assert str(there) == "s3://bucket/a.pt: there already, 4 GB, nothing was sent"
    empty = dataclasses.replace(UPLOAD, sent_bytes=0, nbytes=0, seconds=0.0)
    assert str(empty).startswith("uploaded a.pt")
    assert empty.bytes_per_s == 0.0


def test_fetch_report_says_whether_it_was_verified():
    assert str(FETCH) == "fetched s3://bucket/a.pt to b.pt: 4 GB in 2 s (2 GB/s), verified"
    unverified = dataclasses.replace(FETCH, is_verified=False)
    assert str(unverified).endswith("not verifiable: it carries no checksums")
