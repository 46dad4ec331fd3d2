"""Run all clients beside each other on one server: rounds, order, checks of what came."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench import measure, remote_checks, remote_measure
from bench.remote_clients.base import Job, Method
from bench.remote_clients.registry import METHODS
from bench.remote_measure import RemoteSample, RunFailed
from bench.remote_servers import BUCKET, SOURCE_KEY, Server

MiB = 1 << 20


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run.

    Attributes:
        directory: Where files are written and read.
        file_system: What it is on: in ``tmpfs``, pages of mapped files count as shared memory.
        source: The file that is sent, which is also the object that is fetched.
        nbytes: Its size.
        rounds: How often each client runs.
        part_bytes: Size of parts, for those that can be told.
        streams: Concurrency, likewise.
        clients: Words of which one must be in a method's name; empty for all.
        keys: Environment with the credentials.
    """

    directory: Path
    file_system: str
    source: Path
    nbytes: int
    rounds: int
    part_bytes: int
    streams: int
    clients: tuple[str, ...]
    keys: Mapping[str, str]


@dataclass(slots=True)
class Outcome:
    """What came of one table.

    Attributes:
        samples: By method, in the order of the rounds.
        missing: By method, why it has none.
    """

    samples: dict[str, list[RemoteSample]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


def methods_for(what: str, server: Server, clients: Sequence[str]) -> list[Method]:
    """Give the methods that make sense on this server."""

    def makes_sense(method: Method) -> bool:
        if method.is_floor and server.keeps_bytes:
            return False  # it wants signatures
        if method.target == "floor:upload_sendfile" and server.name == "tls":
            return False
        return not clients or any(word in method.name for word in clients)

    return [method for method in METHODS if method.what == what and makes_sense(method)]


def run_table(what: str, server: Server, plan: Plan) -> Outcome:
    """Measure all clients in all rounds, each time in another order.

    A client that is missing or fails is left out, with the reason; the others go on.

    Args:
        what: ``upload``, ``download`` or ``memory``.
        server: Who they talk to.
        plan: How often and how much.
    """
    outcome = Outcome()
    methods: list[Method] = []
    for method in methods_for(what, server, plan.clients):
        reason = _missing(method.package)
        if reason:
            _drop(method, reason, outcome)
        else:
            methods.append(method)
    for turn in range(plan.rounds):
        for method in measure.rotated(methods, turn):
            if method.name in outcome.missing:
                continue
            try:
                job = _job(method, server, plan, turn)
                sample = _run(method, job, server, plan, is_first=turn == 0)
            except (RunFailed, OSError, AttributeError, ImportError) as error:
                _drop(method, str(error), outcome)
                continue
            outcome.samples.setdefault(method.name, []).append(sample)
            _tell(f"round {turn + 1}/{plan.rounds}", method, sample, plan)
    return outcome


def _drop(method: Method, reason: str, outcome: Outcome) -> None:
    print(f"  left out  {method.name}: {reason}", flush=True)
    outcome.missing[method.name] = reason
    outcome.samples.pop(method.name, None)


def _tell(when: str, method: Method, sample: RemoteSample, plan: Plan) -> None:
    cpu = sample.cpu_s / (plan.nbytes / 1e9)
    numbers = f"{cpu:6.2f} CPU s/GB  {sample.seconds + sample.sync_s:7.3f} s"
    private = f"{sample.private_bytes / 1e6:6.0f} MB private"
    print(f"  {when}  {method.name:<36} {numbers}  {private}", flush=True)


def _missing(package: str) -> str:
    """Say why a distribution cannot be used; empty when it is there."""
    if not package:
        return ""
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return f"the package {package} is not installed"
    return ""


def _job(method: Method, server: Server, plan: Plan, turn: int) -> Job:
    name = "".join(c if c.isalnum() else "-" for c in method.name)
    is_download = method.what == "download"
    return Job(
        target=method.target,
        what=method.what,
        endpoint=server.endpoint,
        bucket=BUCKET,
        # A key of its own: ours sends nothing where the same bytes are already there.
        key=f"{name}-{turn}.pt" if method.what == "upload" else SOURCE_KEY,
        path=str(plan.directory / "fetched" if is_download else plan.source),
        nbytes=plan.nbytes,
        part_bytes=plan.part_bytes,
        streams=plan.streams,
        ca_file=server.ca_file,
    )


def _run(method: Method, job: Job, server: Server, plan: Plan, *, is_first: bool) -> RemoteSample:
    is_download = job.what == "download"
    if is_download:
        measure.remove(Path(job.path))
    if measure.resident_share(plan.source) < 1:
        measure.warm(plan.source)
    measure.settle_memory(plan.nbytes + 512 * MiB)
    sample = remote_measure.measure(
        method, job, plan.keys, is_shmem_private=plan.file_system != "tmpfs"
    )
    if is_download:
        remote_checks.check_download(job, plan.source, in_full=is_first)
        measure.remove(Path(job.path))
    if job.what == "upload":
        remote_checks.check_upload(job, server, plan.keys, in_full=is_first)
    return sample
