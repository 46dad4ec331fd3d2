import io
import zipfile

import pytest

from gdsckpt.errors import FormatError
from gdsckpt.format import zipfmt

GiB = 1 << 30


def small_archive():
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        archive.writestr("a/one", b"first")
        archive.writestr("a/two", b"second")
    return sink.getvalue()


def index(raw):
    end = zipfmt.find_end(raw[-zipfmt.END_SEARCH_BYTES :], len(raw), "f")
    directory = raw[end.directory_offset : end.directory_offset + end.directory_nbytes]
    return end, zipfmt.parse_directory(directory, end, "f")


def test_parse_directory_of_an_archive_of_zipfile():
    raw = small_archive()
    _, entries = index(raw)
    assert [(e.name, e.nbytes, e.is_stored) for e in entries] == [
        ("a/one", 5, True),
        ("a/two", 6, True),
    ]
    offset = zipfmt.payload_offset(raw[entries[1].header_offset :], entries[1], "f")
    assert raw[offset : offset + 6] == b"second"


def test_find_end_skips_a_signature_inside_the_comment():
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        archive.writestr("a", b"x")
        archive.comment = b"PK\x05\x06" + bytes(30)
    end, entries = index(sink.getvalue())
    assert end.comment == b"PK\x05\x06" + bytes(30)
    assert len(entries) == 1


def test_find_end_of_other_bytes_is_none():
    assert zipfmt.find_end(b"no zip at all" * 10, 130, "f") is None
    assert zipfmt.find_end(b"", 0, "f") is None


def test_directory_of_sizes_and_offsets_beyond_4_gib_is_read_back_by_zipfile():
    records = [("a/x", 5 * GiB, 0, 1), ("a/y", 3, 5 * GiB + 200, 2), ("a/z", 4 * GiB, 6 * GiB, 3)]
    raw = b"".join(zipfmt.central_entry(n, size, crc, at) for n, size, at, crc in records)
    start = 11 * GiB
    tail = raw + zipfmt.end_records(3, start, len(raw), 0)
    end = zipfmt.find_end(tail, start + len(tail), "f")
    assert (end.num_entries, end.directory_offset, end.directory_nbytes) == (3, start, len(raw))
    entries = zipfmt.parse_directory(raw, end, "f")
    assert [(e.name, e.nbytes, e.header_offset, e.crc32) for e in entries] == records

    class Shifted(io.BytesIO):
        """The tail at its offset in a file that is a hole otherwise."""

        def seek(self, at, whence=0):
            return super().seek(at - start if whence == 0 else at, whence) + start

        def tell(self):
            return super().tell() + start

    with zipfile.ZipFile(Shifted(tail)) as archive:
        found = [(i.filename, i.file_size, i.header_offset, i.CRC) for i in archive.infolist()]
    assert found == records


def test_local_header_of_4_gib_has_one_zip64_field_and_the_promised_size():
    header = zipfmt.local_header("a/x", 4 * GiB, 7)
    assert len(header) == zipfmt.local_header_nbytes("a/x", 4 * GiB) == 30 + 3 + 20
    entry = zipfmt.Entry("a/x", 4 * GiB, 7, 100, is_stored=True)
    assert zipfmt.payload_offset(header, entry, "f") == 100 + len(header)


def patched(raw, at, value):
    return raw[:at] + value + raw[at + len(value) :]


@pytest.mark.parametrize(
    ("from_end", "value"),
    [
        (-22 + 8, b"\xff\x7f\xff\x7f"),  # number of entries
        (-22 + 12, b"\xff\xff\xff\x7f"),  # size of the directory
        (-22 + 16, b"\xff\xff\xff\x7f"),  # offset of the directory
        (-22 + 4, b"\x01\x00"),  # number of this disk
    ],
    ids=["entries", "directory size", "directory offset", "disk"],
)
def test_find_end_absurd_numbers_are_a_format_error(from_end, value):
    raw = small_archive()
    with pytest.raises(FormatError) as caught:
        index(patched(raw, len(raw) + from_end, value))
    assert caught.value.path == "f"


@pytest.mark.parametrize(
    ("offset", "value"),
    [
        (0, b"XX"),  # signature
        (20, b"\xfe\xff\xff\xff\xfe\xff\xff\xff"),  # sizes
        (28, b"\xff\xff"),  # length of the name
        (42, b"\xfe\xff\xff\xff"),  # header offset
        (46, b"\xff\xfe"),  # name that is not UTF-8
    ],
    ids=["signature", "sizes", "name length", "header offset", "name"],
)
def test_parse_directory_absurd_entry_is_a_format_error(offset, value):
    raw = small_archive()
    end, _ = index(raw)
    with pytest.raises(FormatError) as caught:
        index(patched(raw, end.directory_offset + offset, value))
    assert caught.value.offset == end.directory_offset


def test_parse_directory_name_twice_is_a_format_error():
    raw = b"".join(zipfmt.central_entry("a/x", 1, 0, at) for at in (0, 100))
    tail = raw + zipfmt.end_records(2, 1000, len(raw), 0)
    end = zipfmt.find_end(tail, 1000 + len(tail), "f")
    with pytest.raises(FormatError) as caught:
        zipfmt.parse_directory(raw, end, "f")
    assert "twice" in str(caught.value)


def test_payload_offset_without_header_is_a_format_error():
    entry = zipfmt.Entry("a/x", 1, 0, 77, is_stored=True)
    for header in (b"", b"PK\x03\x04", bytes(30)):
        with pytest.raises(FormatError) as caught:
            zipfmt.payload_offset(header, entry, "f")
        assert caught.value.offset == 77


def test_compressed_entry_is_not_stored():
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", b"x" * 1000)
    _, entries = index(sink.getvalue())
    assert entries[0].is_stored is False
