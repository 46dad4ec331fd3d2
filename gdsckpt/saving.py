"""Save a state: pickle, plan, move, make durable."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from gdsckpt import tracing
from gdsckpt._version import __version__
from gdsckpt.config import Config
from gdsckpt.engine.base import Progress
from gdsckpt.errors import ConfigError
from gdsckpt.remote import storing
from gdsckpt.report import SaveReport
from gdsckpt.staging import directory as checkpoint_directory
from gdsckpt.staging import files, stream, writer
from gdsckpt.staging.content import ShardContent
from gdsckpt.staging.directory import SaveIdentity
from gdsckpt.staging.writer import WrittenShard
from gdsckpt.store import is_url
from gdsckpt.tensors import collector
from gdsckpt.tensors.memory import StateMemory
from gdsckpt.tensors.naming import tensor_entries
from gdsckpt.tensors.pickling import pickle_state


def save(
    obj: object,
    f: str | os.PathLike[str] | BinaryIO,
    *,
    config: Config | Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> SaveReport:
    """Save an object so that stock ``torch.load`` opens it and every byte has a checksum.

    A path holds the old file or the whole new one at any instant, and when the function returns the
    new one is durable. A file object gets the same bytes, in order; making them durable is then the
    caller's.

    Args:
        obj: Anything that ``torch.save`` takes; arrays on GPUs (CuPy, Numba, DLPack) are saved as
            torch tensors. Must not change until the function returns.
        f: Path, a binary file object open for writing, seekable or not, or an URL (``s3://``,
            ``file://``, ``memory://``): then a file in the temporary directory is written and
            uploaded, and becomes the object at exactly that key.
        config: Settings; also read from ``GDSCKPT_*``.
        progress: Called with (bytes done, bytes in all) now and then.

    Returns:
        What was written, how, and how long it took.

    Raises:
        StorageError: The save failed; a file at ``f`` is what it was before. Only where ``path`` of
            the error is the directory, its sync failed after the rename: the new file is there and
            whole, but a power failure may bring back the old one.
        StoreError: The object store refused or could not be reached: what was at the URL is there
            still, unless a note says otherwise.
        ConfigError: ``obj`` cannot be pickled, or a setting is wrong.
    """
    settings = Config.resolve(config, os.environ)
    started = time.perf_counter()
    content = content_of(obj)
    planned = time.perf_counter()
    upload_s = 0.0
    if is_url(f):
        written, upload_s = storing.write_object(str(f), content, settings, progress=progress)
    elif isinstance(f, (str, os.PathLike)):
        written = writer.write_file(_target(f), content, settings, progress=progress)
    else:
        stream.require_binary(f, "write")
        name = str(getattr(f, "name", "")) or f"<{type(f).__name__}>"
        written = writer.write_stream(f, content, settings, name)
    return _report(written, content, _Times(started, planned, upload_s))


def save_checkpoint(
    obj: object,
    directory: str | os.PathLike[str],
    *,
    step: int,
    config: Config | Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> SaveReport:
    """Save an object as a checkpoint directory: one shard, and a manifest that commits it.

    An older checkpoint in the directory stays loadable until the new one is durable.

    Args:
        obj: As for :func:`save`.
        directory: Made if absent; its parent must exist. Or an URL: then its key is the beginning
            of the keys of the objects.
        step: Training step, at least 0.
        config: Settings; also read from ``GDSCKPT_*``.
        progress: Called with (bytes done, bytes in all) now and then.

    Raises:
        StorageError: The save failed; a checkpoint in ``directory`` is what it was.
        StoreError: The object store refused or could not be reached; likewise.
        ConfigError: ``step`` or a setting is wrong.
    """
    if type(step) is not int or step < 0:
        raise ConfigError(f"step must be a whole number of at least 0, got {step!r}.", field="step")
    settings = Config.resolve(config, os.environ)
    started = time.perf_counter()
    content = content_of(obj)
    planned = time.perf_counter()
    identity = SaveIdentity(step, f"gdsckpt {__version__}")
    upload_s = 0.0
    if is_url(directory):
        written, upload_s = storing.write_checkpoint(
            str(directory), content, identity, settings, progress=progress
        )
    else:
        _, written = checkpoint_directory.write_directory(
            Path(files.local_path(directory)), content, identity, settings, progress=progress
        )
    return _report(written, content, _Times(started, planned, upload_s))


def _target(f: str | os.PathLike[str]) -> Path:
    """Check the path of a file to be written.

    Raises:
        ConfigError: It names a directory (ends with a slash), or has a name that is kept for
            temporary files.
    """
    text = files.local_path(f)
    if text.endswith("/") or Path(text).name.startswith(files.TEMPORARY_PREFIX):
        raise ConfigError(
            f"{text} cannot be the name of a checkpoint file: names that end with a slash are "
            f"directories, and {files.TEMPORARY_PREFIX}* are temporary files. Choose another name.",
            field="f",
        )
    return Path(text)


def content_of(obj: object) -> ShardContent:
    """Pickle an object and find the memory of its storages.

    Raises:
        ConfigError: It cannot be pickled.
    """
    with tracing.stage("plan"), collector.paused():
        return _content_of(obj)  # what it does not return is gone before the collector looks again


def _content_of(obj: object) -> ShardContent:
    pickled = pickle_state(obj)
    tensors = tensor_entries(obj, pickled.key_of, pickled.facts)
    memory = StateMemory(pickled.storages)
    return ShardContent(
        storages=memory.buffers,
        pickle=pickled.pickle,
        tensors=tensors,
        streams=memory.streams,
        require_unchanged=lambda _fd, _layout: memory.require_unchanged(tensors),
    )


class _Times(NamedTuple):
    """When the call began and its plan was ready, and the seconds of its upload."""

    started: float
    planned: float
    upload_s: float


def _report(written: WrittenShard, content: ShardContent, times: _Times) -> SaveReport:
    return SaveReport(
        path=written.path,
        nbytes=written.nbytes,
        payload_bytes=content.payload_bytes,
        num_tensors=len(content.tensors),
        num_records=written.num_records,
        seconds=time.perf_counter() - times.started,
        plan_s=times.planned - times.started,
        write_s=written.write_s,
        sync_s=written.sync_s,
        commit_s=written.commit_s,
        engine=written.engine,
        engine_reasons=written.engine_reasons,
        direct_io=written.direct_io,
        crc32=written.crc32,
        upload_s=times.upload_s,
    )
