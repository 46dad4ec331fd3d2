import dataclasses
import json

import pytest

from gdsckpt.report import Damage, SaveReport, VerifyReport

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


@pytest.mark.parametrize("report", [SAVE, DAMAGE, VERIFY])
def test_report_as_dict_is_what_json_gives_back(report):
    plain = report.as_dict()
    assert json.loads(json.dumps(plain)) == plain
    assert {field.name for field in dataclasses.fields(report)} <= set(plain)


@pytest.mark.parametrize("report", [SAVE, DAMAGE, VERIFY])
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
