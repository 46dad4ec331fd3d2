"""Files that are no checkpoints, and archives that lie: one clear error, no partial result."""

import os
import stat
import struct
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

import crafting
import pytest
import torch
from crafting import Storage, tensor

import gdsckpt
from gdsckpt.errors import (
    CheckpointNotFoundError,
    ConfigError,
    FormatError,
    StorageError,
    UnverifiedWarning,
)
from gdsckpt.format import zipfmt

ROOT = Path(__file__).parent.parent.parent
STATE = {"w": torch.arange(10), "n": 3}
PNG = b"\x89PNG\r\n\x1a\n" + bytes(1000)


def zip_of_text(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("word/document.xml", "<w:document/>" * 100)
        archive.writestr("[Content_Types].xml", "<Types/>")


def no_checkpoints(tmp_path):
    zip_of_text(tmp_path / "docx")
    with zipfile.ZipFile(tmp_path / "no-records", "w"):
        pass
    contents = {
        "empty": b"",
        "one-byte": b"P",
        "text": b"import torch\n" * 500,
        "png": PNG,
        "random": os.urandom(100_000),
        "zeros": bytes(100_000),
        "elf": b"\x7fELF" + bytes(5000),
        "json": b'{"weights": [1, 2, 3]}',
        "pickle": b"\x80\x04K\x01.",
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    return [tmp_path / name for name in (*contents, "docx", "no-records")]


@pytest.mark.parametrize("n", range(11))
def test_what_is_no_checkpoint_is_refused_by_load_and_verify(tmp_path, n):
    path = no_checkpoints(tmp_path)[n]
    for call in (gdsckpt.load, gdsckpt.verify):
        with pytest.raises(FormatError) as caught:
            call(path)
        assert (caught.value.path, caught.value.offset) == (str(path), 0)
        assert "no checkpoint" in str(caught.value) or "no torch checkpoint" in str(caught.value)


def test_truncated_foreign_archives_are_damaged(tmp_path):
    torch.save(STATE, tmp_path / "whole.pt")
    raw = (tmp_path / "whole.pt").read_bytes()
    path = tmp_path / "cut.pt"
    for nbytes in (4, 30, 100, 1000, len(raw) - 30, len(raw) - 1):
        path.write_bytes(raw[:nbytes])
        with pytest.raises(FormatError, match="cut short"):
            gdsckpt.load(path)
        assert gdsckpt.verify(path).ok is False


@pytest.mark.parametrize("call", [gdsckpt.load, gdsckpt.verify])
def test_paths_without_a_file_raise_checkpoint_not_found(tmp_path, call):
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "directory").mkdir()
    for name in ("missing", "no-dir/state.pt", "file/state.pt", "dangling", "directory"):
        with pytest.raises(CheckpointNotFoundError) as caught:
            call(tmp_path / name)
        assert isinstance(caught.value, FileNotFoundError)
        assert caught.value.path == str(tmp_path / name)


def test_load_of_a_link_loop_raises(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    for call in (gdsckpt.load, gdsckpt.verify, lambda path: gdsckpt.save(STATE, path)):
        with pytest.raises(StorageError) as caught:
            call(tmp_path / "loop")
        assert caught.value.errno == 40  # ELOOP


@pytest.mark.parametrize("device", ["/dev/null", "/dev/zero", "/dev/full"])
def test_load_of_a_device_raises_and_does_not_read_for_ever(device):
    for call in (gdsckpt.load, gdsckpt.verify):
        with pytest.raises(FormatError) as caught:
            call(device)
        assert caught.value.path == device


def test_save_to_dev_null_writes_through(tmp_path):
    report = gdsckpt.save(STATE, "/dev/null")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
    assert (report.path, report.direct_io) == ("/dev/null", False)


def test_save_to_dev_full_raises():
    with pytest.raises(StorageError) as caught:
        gdsckpt.save(STATE, "/dev/full")
    assert (caught.value.op, caught.value.path, caught.value.errno) == ("write", "/dev/full", 28)
    assert stat.S_ISCHR(Path("/dev/full").stat().st_mode)


def test_save_to_where_no_file_can_be_raises(tmp_path):
    (tmp_path / "file").write_bytes(b"old")
    (tmp_path / "directory").mkdir()
    (tmp_path / "dangling").symlink_to("no-dir/state.pt")
    cases = [
        ("no-dir/state.pt", "open", 2),
        ("file/state.pt", "stat", 20),
        ("directory", "save", 21),
        ("dangling", "open", 2),
        ("n" * 300, "stat", 36),
    ]
    for name, op, errno in cases:
        path = tmp_path / name
        with pytest.raises(StorageError) as caught:
            gdsckpt.save(STATE, path)
        assert (caught.value.op, caught.value.errno) == (op, errno)
        assert caught.value.path in (str(path), str(tmp_path / "no-dir/state.pt"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["dangling", "directory", "file"]
    assert [*(tmp_path / "directory").iterdir()] == []


def test_save_to_the_longest_name_works(tmp_path):
    path = tmp_path / ("n" * 255)
    gdsckpt.save(STATE, path)
    assert [*tmp_path.iterdir()] == [path]
    assert gdsckpt.load(path)["n"] == 3


@pytest.mark.parametrize("where", ["real.pt", "../else/real.pt", "second"])
def test_save_follows_links_and_keeps_them(tmp_path, where):
    (tmp_path / "here").mkdir()
    (tmp_path / "else").mkdir()
    link = tmp_path / "here" / "link.pt"
    (tmp_path / "here" / "second").symlink_to("../else/real.pt")
    link.symlink_to(where)
    for n in range(2):  # dangling first, then to a file
        gdsckpt.save({"n": n}, link)
        assert link.is_symlink()
        assert not link.resolve().is_symlink()
        assert link.resolve().is_file()
        assert gdsckpt.load(link) == {"n": n}
    names = {p.name for p in (tmp_path / "here").iterdir() if not p.is_symlink()}
    assert names | {p.name for p in (tmp_path / "else").iterdir()} == {"real.pt"}


def test_save_keeps_the_mode_of_the_replaced_file_and_follows_the_umask_else(tmp_path):
    code = """
import os, gdsckpt, sys
os.umask(0o027)
gdsckpt.save({"n": 1}, "new.pt")
gdsckpt.save({"n": 1}, "old.pt")
gdsckpt.save_checkpoint({"n": 1}, "step", step=1)
"""
    (tmp_path / "old.pt").write_bytes(b"old")
    (tmp_path / "old.pt").chmod(0o604)
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, env=environ)
    modes = {p.name: p.stat().st_mode & 0o7777 for p in tmp_path.iterdir()}
    assert modes == {"new.pt": 0o640, "old.pt": 0o604, "step": 0o750}
    assert {p.stat().st_mode & 0o7777 for p in (tmp_path / "step").iterdir()} == {0o640}


def test_save_does_not_touch_other_links_to_the_old_file(tmp_path):
    gdsckpt.save({"n": 1}, tmp_path / "a.pt")
    os.link(tmp_path / "a.pt", tmp_path / "b.pt")
    gdsckpt.save({"n": 2}, tmp_path / "a.pt")
    assert gdsckpt.load(tmp_path / "a.pt") == {"n": 2}
    assert gdsckpt.load(tmp_path / "b.pt") == {"n": 1}


def test_save_of_what_cannot_be_pickled_leaves_nothing(tmp_path):
    gdsckpt.save({"n": 1}, tmp_path / "a.pt")
    with pytest.raises(ConfigError) as caught:
        gdsckpt.save({"n": lambda: 1}, tmp_path / "a.pt")
    assert caught.value.field == "obj"
    assert [*tmp_path.iterdir()] == [tmp_path / "a.pt"]
    assert gdsckpt.load(tmp_path / "a.pt") == {"n": 1}


def test_paths_with_a_nul_byte_raise_value_errors():
    for call in (gdsckpt.load, gdsckpt.verify, lambda path: gdsckpt.save(STATE, path)):
        with pytest.raises(ValueError, match="null|NUL"):
            call("a\0b")


# Archives that lie. torch's own miniz takes some of them; nothing of them may be believed.


def truthful(path):
    crafting.write_foreign(path, crafting.pickled({"t": tensor(Storage())}), bytes(16), b"x" * 5000)
    return path.read_bytes()


def entry_at(raw, name):
    """Give the offset of a record's central directory entry."""
    at = 0
    while (at := raw.index(zipfmt.CENTRAL_SIGNATURE, at)) >= 0:
        if raw[at + 46 :].startswith(name):
            return at
        at += 4
    raise AssertionError(name)


END = 22  # the end record of an archive without a comment
LIES = {
    "num-entries-more": lambda raw: crafting.patched(raw, len(raw) - END + 10, "H", 6),
    "num-entries-fewer": lambda raw: crafting.patched(raw, len(raw) - END + 10, "H", 3),
    "num-entries-max": lambda raw: crafting.patched(raw, len(raw) - END + 10, "H", 65535),
    "directory-nbytes": lambda raw: crafting.patched(raw, len(raw) - END + 12, "I", 2**32 - 2),
    "directory-nbytes-max": lambda raw: crafting.patched(raw, len(raw) - END + 12, "I", 2**32 - 1),
    "directory-offset": lambda raw: crafting.patched(raw, len(raw) - END + 16, "I", len(raw)),
    "directory-offset-max": lambda raw: crafting.patched(raw, len(raw) - END + 16, "I", 2**32 - 1),
    "directory-offset-zero": lambda raw: crafting.patched(raw, len(raw) - END + 16, "I", 0),
    "disk-number": lambda raw: crafting.patched(raw, len(raw) - END + 4, "H", 1),
    "sizes-max": lambda raw: crafting.patched(
        raw, entry_at(raw, b"archive/data/0") + 20, "Q", 2**64 - 2**33
    ),
    "size-unpacked-only": lambda raw: crafting.patched(
        raw, entry_at(raw, b"archive/data/0") + 24, "I", 2**31
    ),
    "header-offset": lambda raw: crafting.patched(
        raw, entry_at(raw, b"archive/data/0") + 42, "I", 2**31
    ),
    "header-offset-of-another": lambda raw: crafting.patched(
        raw, entry_at(raw, b"archive/data/0") + 42, "I", 0
    ),
    "header-elsewhere": lambda raw: crafting.patched(
        raw, entry_at(raw, b"archive/data/0") + 42, "I", 3
    ),
    "method-deflate": lambda raw: crafting.patched(
        raw, entry_at(raw, b"archive/data/0") + 10, "H", 8
    ),
    "encrypted": lambda raw: crafting.patched(raw, entry_at(raw, b"archive/data/0") + 8, "H", 1),
    "name-longer": lambda raw: crafting.patched(
        raw, entry_at(raw, b"archive/data/0") + 28, "H", 60000
    ),
    "name-no-utf8": lambda raw: crafting.patched(
        raw, entry_at(raw, b"archive/data/0") + 46, "H", 0xFFFF
    ),
    "name-twice": lambda raw: raw.replace(b"archive/data/1", b"archive/data/0"),
    "local-name-longer": lambda raw: crafting.patched(
        raw, raw.index(b"archive/data/0") - 4, "H", 60000
    ),
    "pickle-gone": lambda raw: raw.replace(b"archive/data.pkl", b"archive/data.pkk"),
    "crc": lambda raw: crafting.patched(raw, entry_at(raw, b"archive/data/0") + 16, "I", 77),
}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("weights_only", [True, False])
def test_archive_that_lies_is_refused(tmp_path, lie, weights_only):
    path = tmp_path / "lie.pt"
    path.write_bytes(LIES[lie](truthful(path)))
    with pytest.raises(FormatError) as caught:
        gdsckpt.load(path, weights_only=weights_only)
    assert caught.value.path == str(path)
    report, error = crafting.tried(gdsckpt.verify, path)
    assert isinstance(error, FormatError) or report.ok is not True


def zip64(path, **fields):
    """Write an archive whose end record leaves all to a zip64 end record with given fields."""
    raw = truthful(path)
    directory = raw.index(zipfmt.CENTRAL_SIGNATURE)
    told = {
        "num_entries": 5,
        "directory_nbytes": len(raw) - END - directory,
        "directory_offset": directory,
        "end64_offset": len(raw) - END,
        **fields,
    }
    end64 = zipfmt.END64.pack(
        zipfmt.END64_SIGNATURE, 44, 45, 45, 0, 0, told["num_entries"], told["num_entries"],
        told["directory_nbytes"], told["directory_offset"],
    )  # fmt: skip
    locator = zipfmt.END64_LOCATOR.pack(zipfmt.END64_LOCATOR_SIGNATURE, 0, told["end64_offset"], 1)
    end = zipfmt.END.pack(zipfmt.END_SIGNATURE, 0, 0, 65535, 65535, 2**32 - 1, 2**32 - 1, 0)
    path.write_bytes(raw[:-END] + end64 + locator + end)


def test_zip64_end_record_that_is_true_is_believed(tmp_path):
    zip64(tmp_path / "a.pt")
    assert torch.equal(gdsckpt.load(tmp_path / "a.pt")["t"], torch.zeros(4))


@pytest.mark.parametrize("value", [2**63 - 1, 2**63, 2**64 - 1, 2**40, 0])
@pytest.mark.parametrize(
    "field", ["num_entries", "directory_nbytes", "directory_offset", "end64_offset"]
)
def test_zip64_end_record_that_lies_is_refused(tmp_path, field, value):
    zip64(tmp_path / "a.pt", **{field: value})
    path = tmp_path / "a.pt"
    with pytest.raises(FormatError) as caught:
        gdsckpt.load(path)
    assert caught.value.path == str(path)
    report, error = crafting.tried(gdsckpt.verify, path)
    assert isinstance(error, FormatError) or report.ok is False


@pytest.mark.parametrize("nbytes", [2**63 - 1, 2**63, 2**64 - 1, 2**50])
@pytest.mark.parametrize("what", ["size", "header"])
@pytest.mark.parametrize("is_stored", [True, False])
def test_zip64_entry_that_lies_is_refused(tmp_path, nbytes, what, is_stored):
    path = tmp_path / "a.pt"
    raw = truthful(path)
    directory = raw.index(zipfmt.CENTRAL_SIGNATURE)
    body = raw[:directory]
    extra = struct.pack(
        "<2H3Q", 1, 24, *((nbytes, nbytes, 0) if what == "size" else (16, 16, nbytes))
    )
    if not is_stored:
        extra = struct.pack("<2H3Q", 1, 24, nbytes, 10, 0)
    name = b"archive/data/0"
    entry = zipfmt.CENTRAL_ENTRY.pack(
        zipfmt.CENTRAL_SIGNATURE, 45, 45, 0, 0 if is_stored else 8, 0, 0, 0, 2**32 - 1, 2**32 - 1,
        len(name), len(extra), 0, 0, 0, 0, 2**32 - 1,
    )  # fmt: skip
    pickle_at = entry_at(raw, b"archive/data.pkl")
    pickle_entry = raw[pickle_at : pickle_at + 46 + len(b"archive/data.pkl")]
    entries = pickle_entry + entry + name + extra
    end = zipfmt.end_records(2, len(body), len(entries), 0)
    path.write_bytes(body + entries + end)
    for call in (
        gdsckpt.load,
        lambda p: gdsckpt.load(p, keys="t"),
        lambda p: gdsckpt.load(p, into={"t": 1}),
    ):
        with pytest.raises(FormatError) as caught:
            call(path)
        assert caught.value.path == str(path)


def test_overlapping_records_are_refused(tmp_path):
    path = tmp_path / "a.pt"
    pickle_bytes = crafting.pickled({"t": tensor(Storage())})
    body = bytearray()
    entries = []
    for name, payload in (("archive/data.pkl", pickle_bytes), ("archive/data/0", bytes(16))):
        entries.append(zipfmt.Entry(name, len(payload), zlib.crc32(payload), len(body), True))
        body += zipfmt.local_header(name, len(payload), zlib.crc32(payload)) + payload
    # A second record whose header and payload lie in those of the first.
    entries.append(
        zipfmt.Entry("archive/data/1", 16, entries[1].crc32, entries[1].header_offset, True)
    )
    crafting.write_directory(path, bytes(body), entries)
    with pytest.raises(FormatError, match="overlaps") as caught:
        gdsckpt.load(path)
    assert (caught.value.path, caught.value.offset) == (str(path), entries[1].header_offset)
    assert gdsckpt.verify(path).ok is False


@pytest.mark.parametrize("key", ["²", "9" * 5000, "x", "", "-1", "0x1", "1/2"])
def test_storage_records_with_odd_names_are_harmless(tmp_path, key):
    path = tmp_path / "a.pt"
    pickle_bytes = crafting.pickled({"t": tensor(Storage())})
    records = [("archive/data.pkl", pickle_bytes), ("archive/data/0", bytes(16))]
    records += [(f"archive/data/{key}", bytes(8)), ("archive/version", b"3\n")]
    crafting.write_zip(path, [(name, raw, zlib.crc32(raw)) for name, raw in records])
    assert torch.equal(gdsckpt.load(path)["t"], torch.zeros(4))
    assert gdsckpt.verify(path).ok is None


@pytest.mark.parametrize("raw", [b"\xff\xfe", b"middle", b"", b"little\n", b"big"])
def test_odd_byte_order_raises_or_is_torchs(tmp_path, raw):
    path = tmp_path / "a.pt"
    pickle_bytes = crafting.pickled({"t": tensor(Storage())})
    records = [("archive/data.pkl", pickle_bytes), ("archive/byteorder", raw)]
    records += [("archive/data/0", bytes(16)), ("archive/version", b"3\n")]
    crafting.write_zip(path, [(name, raw, zlib.crc32(raw)) for name, raw in records])
    if raw == b"big":
        assert torch.equal(gdsckpt.load(path)["t"], torch.zeros(4))
        return
    with pytest.raises(FormatError) as caught:
        gdsckpt.load(path)
    assert caught.value.path == str(path)


def test_compressed_records_count_as_unchecked(tmp_path):
    path = tmp_path / "a.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", crafting.pickled({"n": 1}))
        archive.writestr("archive/version", b"3\n")
        archive.writestr("archive/extra", b"x" * 1000, zipfile.ZIP_DEFLATED)
    assert gdsckpt.load(path) == {"n": 1}
    report = gdsckpt.verify(path)
    assert report.ok is None
    assert "1 records carry no checksum" in report.reason


def test_file_without_checksums_warns_once(tmp_path):
    path = tmp_path / "a.pt"
    crafting.write_foreign(path, crafting.pickled({"t": tensor(Storage())}), bytes(16), crc=False)
    with pytest.warns(UnverifiedWarning) as caught:
        assert torch.equal(gdsckpt.load(path)["t"], torch.zeros(4))
    assert len(caught) == 1
    assert gdsckpt.verify(path).ok is None


@pytest.mark.parametrize(
    "table",
    [
        b"",
        b"{}",
        b"[" * 100_000,
        b'{"chunk_bytes":1e999,"covered_bytes":1,"chunk_crc32":[1],"tensors":{}}',
        b'{"chunk_bytes":0,"covered_bytes":1,"chunk_crc32":[1],"tensors":{}}',
        b'{"chunk_bytes":-65536,"covered_bytes":1,"chunk_crc32":[1],"tensors":{}}',
    ],
)
def test_chunk_table_with_any_content_is_refused(tmp_path, table, monkeypatch):
    path = tmp_path / "a.pt"
    from gdsckpt.format import table as table_format

    monkeypatch.setattr(table_format, "encode", lambda _: table)
    crafting.write_ours(path, crafting.pickled({"n": 1}))
    assert gdsckpt.verify(path).ok is False
    assert gdsckpt.load(path) == {"n": 1}


@pytest.mark.parametrize("chunk_bytes", [1, 4096, 2**31, 2**62, 65537])
def test_chunk_table_with_absurd_chunks_is_refused(tmp_path, chunk_bytes, monkeypatch):
    path = tmp_path / "a.pt"
    from gdsckpt.format import table as table_format

    true_encode = table_format.encode

    def encode(true):
        num_chunks = -(-true.covered_bytes // chunk_bytes)
        crcs = true.chunk_crc32[:1] * num_chunks
        return true_encode(
            table_format.ChunkTable(chunk_bytes, true.covered_bytes, crcs, true.tensors)
        )

    monkeypatch.setattr(table_format, "encode", encode)
    crafting.write_ours(path, crafting.pickled({"n": 1}))
    report = gdsckpt.verify(path)
    assert report.ok is False
    assert str(chunk_bytes) in report.reason


def test_verify_with_small_chunks_checks_large_foreign_records(tmp_path):
    path = tmp_path / "a.pt"
    torch.save({"w": torch.zeros(20 << 20, dtype=torch.uint8)}, path)
    report = gdsckpt.verify(path, config={"chunk_bytes": "64KiB"})
    assert report.ok is None
    assert report.damaged == ()
    gdsckpt.save({"w": torch.zeros(20 << 20, dtype=torch.uint8)}, path)
    assert gdsckpt.verify(path, config={"chunk_bytes": "64KiB"}).ok is True
    with path.open("r+b") as file:
        file.seek(10 << 20)
        file.write(b"x")
    report = gdsckpt.verify(path, config={"chunk_bytes": "64KiB"})
    assert report.ok is False
    assert report.damaged[0].tensors == ("w",)
