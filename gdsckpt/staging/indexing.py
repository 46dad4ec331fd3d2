"""Find the records of a file, and who wrote it; trust nothing that it says."""

from __future__ import annotations

import os
from array import array
from pathlib import Path

from gdsckpt import native
from gdsckpt.errors import ChecksumError, FormatError
from gdsckpt.format import footer, layout, zipfmt
from gdsckpt.format.footer import Footer
from gdsckpt.format.zipfmt import EndRecord, Entry
from gdsckpt.staging import files
from gdsckpt.staging.shard import TABLE_NAME, Origin, Shard, read_at

_LEGACY_MAGIC = bytes.fromhex("6cfc9c46f9206aa85019")
"""torch's magic number as a pickled long: how files of the time before zip archives begin."""

_TAR_MAGIC_OFFSET = 257


def require_legacy(shard: Shard) -> None:
    """Refuse files that are neither zip archives nor legacy torch files.

    Raises:
        FormatError: Says what the file looks like.
    """
    head = read_at(shard.fd, shard.path, 0, min(shard.nbytes, 512))
    is_legacy = _LEGACY_MAGIC in head[:64] or head[_TAR_MAGIC_OFFSET:].startswith(b"ustar")
    if is_legacy or shard.path.endswith(".safetensors"):
        return
    if not shard.nbytes:
        why = "it is empty"
    elif head.startswith(b"PK"):
        why = "it begins as a zip archive but has no central directory, so it was cut short"
    else:
        why = "it is neither a zip archive nor a legacy torch file"
    raise FormatError(
        f"{shard.path} is no checkpoint: {why}. Pass a file that torch.save or gdsckpt.save wrote.",
        path=shard.path,
        offset=0,
    )


def index_file(file: files.OpenFile) -> Shard:
    """Index an open file.

    A file with some but not all of our marks (first record, table record, closing comment) is
    damaged, never foreign.

    Raises:
        FormatError: The marks or the structures contradict each other.
        ChecksumError: The tail of one of our own files is damaged.
    """
    nbytes = os.fstat(file.fd).st_size
    end_bytes = _read_end(file, nbytes)
    begins_as_ours = _begins_as_ours(file, nbytes)
    ends_as_ours = footer.has_magic(end_bytes)
    if begins_as_ours and ends_as_ours:
        return _index_ours(file, nbytes, end_bytes)
    if begins_as_ours or ends_as_ours:
        raise _half_marked(file.path, nbytes, begins_as_ours=begins_as_ours)
    end = zipfmt.find_end(end_bytes, nbytes, file.path)
    if end is None:
        return Shard(file.path, file.fd, nbytes, Origin.NO_ZIP, "", (), array("Q"), file, None)
    entries = _read_directory(file, end)
    if any(entry.name.endswith(_TABLE_SUFFIX) for entry in entries):
        raise _half_marked(file.path, nbytes, begins_as_ours=False)
    return _shard(file, nbytes, entries, end, None)


def has_our_marks(file: files.OpenFile) -> bool:
    """Tell whether an open file begins or ends as one of ours: if so, it is ours or damaged."""
    nbytes = os.fstat(file.fd).st_size
    return _begins_as_ours(file, nbytes) or footer.has_magic(_read_end(file, nbytes))


def record_headers(file: files.OpenFile) -> list[int]:
    """Give the file offset of each local header of a zip archive; none where it is none.

    Raises:
        FormatError: Its directory is damaged.
    """
    nbytes = os.fstat(file.fd).st_size
    end = zipfmt.find_end(_read_end(file, nbytes), nbytes, file.path)
    return [] if end is None else [entry.header_offset for entry in _read_directory(file, end)]


def _read_end(file: files.OpenFile, nbytes: int) -> bytes:
    end_nbytes = min(nbytes, zipfmt.END_SEARCH_BYTES)
    return read_at(file.fd, file.path, nbytes - end_nbytes, end_nbytes)


_TABLE_SUFFIX = f"/{TABLE_NAME}"
_OUR_BEGINNING = zipfmt.local_header(layout.FORMAT_RECORD, 0, 0)[zipfmt.LOCAL_HEADER.size :]


def _begins_as_ours(file: files.OpenFile, nbytes: int) -> bool:
    """Tell whether the first record has our name, whatever its other fields say."""
    at = zipfmt.LOCAL_HEADER.size
    if nbytes < at + len(_OUR_BEGINNING):
        return False
    return read_at(file.fd, file.path, at, len(_OUR_BEGINNING)) == _OUR_BEGINNING


def _half_marked(path: str, nbytes: int, *, begins_as_ours: bool) -> FormatError:
    why = (
        "it begins as a file of gdsckpt but does not end as one, so it was cut short or overwritten"
        if begins_as_ours
        else "it has some marks of gdsckpt but not all"
    )
    return FormatError(
        f"{path} is damaged: {why}. Use another copy.",
        path=path,
        offset=nbytes if begins_as_ours else 0,
    )


def _index_ours(file: files.OpenFile, nbytes: int, end_bytes: bytes) -> Shard:
    closing = footer.decode(end_bytes, file.path, nbytes)
    crc_end = footer.tail_crc_end(nbytes)
    if closing.table_offset >= crc_end:
        raise _half_marked(file.path, nbytes, begins_as_ours=True)
    tail = read_at(file.fd, file.path, closing.table_offset, crc_end - closing.table_offset)
    if native.crc32(tail) != closing.tail_crc32:
        raise ChecksumError(
            f"{file.path} is damaged between {closing.table_offset} and {crc_end}: its chunk table "
            "or central directory does not match its checksum. Use another copy.",
            path=file.path,
            offset=closing.table_offset,
            shard=Path(file.path).name,
            fqn=None,
            record=layout.TABLE_RECORD,
            expected=closing.tail_crc32,
            actual=native.crc32(tail),
        )
    end = zipfmt.find_end(end_bytes, nbytes, file.path)
    if end is None:
        raise _half_marked(file.path, nbytes, begins_as_ours=True)
    at = end.directory_offset - closing.table_offset
    if at < 0:
        raise _half_marked(file.path, nbytes, begins_as_ours=True)
    directory = tail[at : at + end.directory_nbytes]
    entries = zipfmt.parse_directory(directory, end, file.path)
    return _shard(file, nbytes, entries, end, closing)


def _read_directory(file: files.OpenFile, end: EndRecord) -> list[Entry]:
    directory = read_at(file.fd, file.path, end.directory_offset, end.directory_nbytes)
    return zipfmt.parse_directory(directory, end, file.path)


def _shard(
    file: files.OpenFile,
    nbytes: int,
    entries: list[Entry],
    end: EndRecord,
    closing: Footer | None,
) -> Shard:
    origin = Origin.FOREIGN_ZIP if closing is None else Origin.GDSCKPT
    if origin is Origin.GDSCKPT:  # our headers' size follows from the name, so none is read
        offsets = array(
            "Q",
            (
                entry.header_offset + zipfmt.local_header_nbytes(entry.name, entry.nbytes)
                for entry in entries
            ),
        )
    else:
        offsets = array("Q", (_foreign_payload_offset(file, entry) for entry in entries))
    _refuse_overlaps(file.path, entries, offsets, end.directory_offset)
    archive = entries[0].name.partition("/")[0] if entries else ""
    return Shard(
        file.path, file.fd, nbytes, origin, archive, tuple(entries), offsets, file, closing
    )


def _foreign_payload_offset(file: files.OpenFile, entry: Entry) -> int:
    header = read_at(file.fd, file.path, entry.header_offset, zipfmt.LOCAL_HEADER.size)
    return zipfmt.payload_offset(header, entry, file.path)


def _refuse_overlaps(
    path: str, entries: list[Entry], offsets: array[int], directory_offset: int
) -> None:
    """Refuse records that share bytes: a crafted file could pass one tensor off as another."""
    order = sorted(range(len(entries)), key=lambda n: entries[n].header_offset)
    end_offset = 0
    for n in order:
        entry = entries[n]
        if entry.header_offset < end_offset:
            raise FormatError(
                f"{path} is damaged: record {entry.name!r} at {entry.header_offset} overlaps the "
                "one before. Use another copy.",
                path=path,
                offset=entry.header_offset,
            )
        end_offset = offsets[n] + (entry.nbytes if entry.is_stored else 0)
        if end_offset > directory_offset:
            raise FormatError(
                f"{path} is damaged: record {entry.name!r} ({entry.nbytes} bytes at {offsets[n]}) "
                "does not fit into the file. Use another copy.",
                path=path,
                offset=entry.header_offset,
            )
