"""Files that nobody should write: archives with any pickle, any directory, any lie."""

import io
import pickle
import struct
import zlib
from pathlib import Path

import torch

from gdsckpt.config import Config
from gdsckpt.errors import GdsckptError
from gdsckpt.format import zipfmt
from gdsckpt.staging import content, writer


class Storage:
    """What a pickle says of a storage: a persistent id of torch."""

    def __init__(self, key="0", numel=4, storage_type=torch.FloatStorage, location="cpu"):
        self.id = ("storage", storage_type, key, location, numel)


class Call:
    """A call that unpickling makes."""

    def __init__(self, function, *arguments):
        self._reduced = (function, arguments)

    def __reduce__(self):
        return self._reduced


def tensor(storage, offset=0, size=(4,), stride=(1,)):
    """Give what pickles as a plain tensor on a storage, with any numbers."""
    return Call(torch._utils._rebuild_tensor_v2, storage, offset, size, stride, False, {})


def pickled(obj):
    """Pickle with the persistent ids of :class:`Storage`."""

    class Pickler(pickle.Pickler):
        def persistent_id(self, part):
            return part.id if isinstance(part, Storage) else None

    buffer = io.BytesIO()
    Pickler(buffer, protocol=2).dump(obj)
    return buffer.getvalue()


def write_ours(path, pickle_bytes, *payloads, tensors=()):
    """Write a file with all marks and checksums of gdsckpt around any pickle."""
    buffers = []
    for payload in payloads:
        raw = bytearray(payload)
        buffers.append(content.Buffer(content.address_of(raw), len(raw), raw))
    shard = content.ShardContent(buffers, pickle_bytes, tuple(tensors))
    writer.write_file(Path(path), shard, Config(direct_io="off", fsync=False))


def write_foreign(path, pickle_bytes, *payloads, crc=True):
    """Write a file as ``torch.save`` does, around any pickle."""
    records = [("archive/data.pkl", pickle_bytes), ("archive/byteorder", b"little")]
    records += [(f"archive/data/{n}", payload) for n, payload in enumerate(payloads)]
    records.append(("archive/version", b"3\n"))
    write_zip(
        path, [(name, payload, zlib.crc32(payload) if crc else 0) for name, payload in records]
    )


def write_zip(path, records, **lies):
    """Write an archive of (name, payload, CRC-32) and a directory with lies about it."""
    raw = bytearray()
    entries = []
    for name, payload, crc in records:
        entries.append(zipfmt.Entry(name, len(payload), crc, len(raw), is_stored=True))
        raw += zipfmt.local_header(name, len(payload), crc) + payload
    write_directory(path, bytes(raw), entries, **lies)


def write_directory(path, body, entries, **lies):
    """Write a body, and after it a central directory of entries, with lies in the end record."""
    directory = zipfmt.central_directory(entries)
    told = {
        "num_entries": len(entries),
        "directory_offset": len(body),
        "directory_nbytes": len(directory),
        **lies,
    }
    end = zipfmt.end_records(
        told["num_entries"], told["directory_offset"], told["directory_nbytes"], 0
    )
    Path(path).write_bytes(body + directory + end)


def write_sparse(path, nbytes, small):
    """Write a foreign file with a tensor ``huge`` of ``nbytes`` zeros, and small ones of floats.

    It takes no room on file systems that know holes.
    """
    state = {"huge": tensor(Storage("0", nbytes // 4), size=(nbytes // 4,))}
    for n, (name, payload) in enumerate(small.items(), 1):
        numel = len(payload) // 4
        state[name] = tensor(Storage(str(n), numel), size=(numel,))
    records = [("archive/data.pkl", pickled(state)), ("archive/version", b"3\n")]
    records += [(f"archive/data/{n}", payload) for n, payload in enumerate(small.values(), 1)]
    with Path(path).open("wb") as file:
        entries = []
        for name, payload in records:
            entries.append(zipfmt.Entry(name, len(payload), zlib.crc32(payload), file.tell(), True))
            file.write(zipfmt.local_header(name, len(payload), zlib.crc32(payload)) + payload)
        entries.append(zipfmt.Entry("archive/data/0", nbytes, 0, file.tell(), True))
        file.write(zipfmt.local_header("archive/data/0", nbytes, 0))
        file.seek(nbytes, 1)
        directory_offset = file.tell()
        directory = zipfmt.central_directory(entries)
        file.write(directory)
        file.write(zipfmt.end_records(len(entries), directory_offset, len(directory), 0))


def tried(call, *arguments, **keywords):
    """Call, and give (result, error of the library): one of them is None."""
    try:
        return call(*arguments, **keywords), None
    except GdsckptError as error:
        return None, error


def patched(raw, offset, fmt, value):
    """Give ``raw`` with one little-endian field replaced."""
    packed = struct.pack(f"<{fmt}", value)
    return raw[:offset] + packed + raw[offset + len(packed) :]
