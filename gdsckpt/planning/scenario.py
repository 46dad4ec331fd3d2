"""A scenario: all inputs of a plan, from a ready-made one, a file of the user, and flags."""

from __future__ import annotations

import dataclasses
import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from gdsckpt.errors import ConfigError, storage_error_from
from gdsckpt.planning import bandwidth, inputs, layouts, sizing
from gdsckpt.planning.band import Band
from gdsckpt.planning.inputs import BOOL, BYTES, COUNT, DURATION, RATE, SHARE, TEXT, USD, given

FILE_MAX_BYTES = 1 << 20
"""A larger file is no scenario and is not read."""

READY_MADE = ("gb200-nvl72-hourly", "h100-70b", "1t-mlperf", "small")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInputs:
    """What is saved."""

    parameters: int | None = given(
        COUNT, "parameters that are trained, such as 70B", group="size", maximum=10**16
    )
    checkpoint_bytes: Band | None = given(
        BYTES, "size of a checkpoint where it is known, such as 912GB", group="size", is_band=True
    )
    weights: str = given(
        TEXT,
        "type of the weights",
        "bfloat16",
        choices=(*sizing.DTYPE_BYTES, *sizing.DTYPE_ALIASES),
    )
    optimizer: str = given(TEXT, "optimizer", "adamw", choices=sizing.OPTIMIZERS)
    moments: str = given(
        TEXT,
        "type of what the optimizer keeps",
        "float32",
        choices=(*sizing.DTYPE_BYTES, *sizing.DTYPE_ALIASES),
    )
    master: bool | None = given(
        BOOL, "whether a float32 copy of the weights is saved; not given: as is usual"
    )
    experts_share: float = given(SHARE, "share of the parameters that are in experts", 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutInputs:
    """How the model lies on the GPUs."""

    gpus: int | None = given(COUNT, "GPUs of the job", group="gpus", maximum=10**7)
    data: int | None = given(COUNT, "data-parallel ranks", group="gpus", maximum=10**7)
    tensor: int = given(COUNT, "tensor-parallel ranks", 1, maximum=10**6)
    pipeline: int = given(COUNT, "pipeline stages", 1, maximum=10**6)
    context: int = given(COUNT, "context-parallel ranks", 1, maximum=10**6)
    expert: int = given(COUNT, "expert-parallel ranks", 1, maximum=10**6)
    sharding: str = given(TEXT, "what data-parallel ranks share", "fsdp", choices=layouts.SHARDINGS)
    shard_ranks: int | None = given(
        COUNT, "with hsdp, ranks that hold one copy together", maximum=10**7
    )
    writers: str = given(
        TEXT,
        "who writes what several ranks hold alike: all their share, or the first",
        "spread",
        choices=layouts.WRITERS,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareInputs:
    """What the nodes are; a value given here replaces that of the named node."""

    node: str = given(TEXT, "kind of node, such as gb200-nvl72-tray", "h100-8")
    gpus_per_node: int | None = given(COUNT, "GPUs of a node", maximum=1024)
    host_rate_bytes_per_s: Band | None = given(
        RATE, "from one GPU to host memory, all at once, such as 50GB/s", is_band=True
    )
    drives: int | None = given(COUNT, "local NVMe drives of a node", maximum=256)
    drive_rate_bytes_per_s: Band | None = given(
        RATE, "what one drive writes, such as 6GB/s", is_band=True
    )
    drive_capacity_bytes: Band | None = given(
        BYTES, "capacity of one drive, such as 7.68TB", is_band=True
    )
    node_store_rate_bytes_per_s: Band | None = given(
        RATE, "what a node sends to the store, such as 10GB/s", is_band=True
    )
    store_rate_bytes_per_s: Band | None = given(
        RATE, "what the store takes of the whole job; not given: no limit", is_band=True
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveInputs:
    """When saves are made, and how long they last."""

    interval_s: float = given(
        DURATION, "from one save to the next, such as 1h", 3600.0, maximum=365 * 86400.0
    )
    mode: str = given(TEXT, "what training waits for", "host", choices=bandwidth.MODES)
    step_time_s: float | None = given(
        DURATION, "time of a training step before the optimizer's, for fence", maximum=86400.0
    )
    allowed_overlap_share: float = given(
        SHARE,
        "share of the interval that training may wait for a save",
        bandwidth.OVERLAP_SHARE_MAX,
        minimum=1e-6,
    )
    keep_local: int = given(COUNT, "committed steps that stay on NVMe", 2, maximum=10_000)
    upload_every: int = given(COUNT, "of how many saves one is uploaded", 1, maximum=10**6)
    in_flight: int = given(COUNT, "saves that wait for their upload at most", 2, maximum=64)
    back_pressure: str = given(
        TEXT, "what happens when uploads fall behind", "wait", choices=("wait", "skip")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureInputs:
    """What fails, and how long it takes to go on."""

    mtbf_gpu_s: Band | None = given(
        DURATION,
        "mean time between interruptions caused by one GPU, such as 50000h",
        group="mtbf",
        minimum=1.0,
        is_band=True,
    )
    mtbf_node_s: Band | None = given(
        DURATION, "the same of one node", group="mtbf", minimum=1.0, is_band=True
    )
    mtbf_job_s: Band | None = given(
        DURATION, "the same of the whole job", group="mtbf", minimum=1.0, is_band=True
    )
    node_loss_share: Band = given(
        SHARE,
        "share of the interruptions after which a node is replaced",
        Band(0.3, 0.6, 0.8),
        is_band=True,
    )
    spot_mtbf_node_s: Band | None = given(
        DURATION,
        "mean time until a spot node is taken back; not given: none",
        minimum=1.0,
        is_band=True,
    )
    spot_notice_s: Band = given(
        DURATION,
        "warning before a spot node is taken back",
        Band.exactly(120.0),
        minimum=0,
        is_band=True,
    )
    spot_wait_s: Band = given(
        DURATION, "until there is another in its place", Band(60.0, 600.0, 7200.0), is_band=True
    )
    restart_s: Band = given(
        DURATION,
        "from a failure until a process can load",
        Band(120.0, 300.0, 900.0),
        is_band=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CostInputs:
    """What is paid for, and for how long."""

    run_s: float = given(
        DURATION, "length of the run", 30 * 86400.0, minimum=1.0, maximum=10 * 365 * 86400.0
    )
    gpu_hour_usd: Band | None = given(
        USD, "price of one hour of ONE GPU; not given: that of the price file", is_band=True
    )
    prices: str | None = given(TEXT, "file of prices; not given: those of the package")
    keep_uploads: int | None = given(
        COUNT, "checkpoints that stay in the bucket; not given: all", maximum=10**9
    )
    keep_every: int | None = given(
        COUNT,
        "of how many older uploads than those one stays for good; not given: none stays",
        maximum=10**6,
    )
    restores: int = given(
        COUNT, "times the bucket is read back in the run", 2, minimum=0, maximum=10**6
    )
    part_bytes: int = given(
        BYTES, "part of a multipart upload", 128 << 20, minimum=5 << 20, maximum=5 << 30
    )
    prefixes: int = given(COUNT, "prefixes that the keys are spread over", 1, maximum=10**6)
    cross_zone_share: float = given(SHARE, "share of what is written to another zone", 0.0)
    nat_share: float = given(SHARE, "share of the store's traffic through a NAT gateway", 0.0)
    egress_share: float = given(SHARE, "share of what is read back that leaves the region", 0.0)
    file_system: str = given(
        TEXT, "parallel file system to compare with, as in the price file", "fsx-lustre-1000"
    )
    bucket: str = given(
        TEXT, "storage of the bucket, as in the price file, such as minio-nvme", "s3-standard"
    )
    archive: str = given(
        TEXT, "storage of what is kept for good, as in the price file", "s3-standard"
    )


SECTIONS: dict[str, type[Any]] = {
    "model": ModelInputs,
    "layout": LayoutInputs,
    "hardware": HardwareInputs,
    "saves": SaveInputs,
    "failures": FailureInputs,
    "cost": CostInputs,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """All inputs of a plan.

    Attributes:
        name: Its name.
        about: One sentence.
    """

    name: str = "your inputs"
    about: str = ""
    model: ModelInputs = ModelInputs()
    layout: LayoutInputs = LayoutInputs()
    hardware: HardwareInputs = HardwareInputs()
    saves: SaveInputs = SaveInputs()
    failures: FailureInputs = FailureInputs()
    cost: CostInputs = CostInputs()

    def as_dict(self) -> dict[str, Any]:
        """Give all of it as values that JSON has, with units in the names."""
        return dataclasses.asdict(self)

    def with_values(self, values: Mapping[str, Mapping[str, Any]], *, is_flags: bool) -> Scenario:
        """Give the scenario with values that a user wrote.

        Args:
            values: By section and name.
            is_flags: How errors call them: ``--interval`` or ``saves.interval``.

        Raises:
            ConfigError: A name is unknown, two contradict each other, or a value cannot be used.
        """
        sections = {}
        for section, given_values in values.items():
            if section not in SECTIONS:
                raise inputs.unknown_name(section, section, [*SECTIONS, "name", "about"])
            if not isinstance(given_values, Mapping):
                raise ConfigError(
                    f"{section} is {given_values!r}: give a section with names and values.",
                    field=section,
                )

            def label(name: str, section: str = section) -> str:
                return flag_of(name) if is_flags else f"{section}.{name}"

            parsed = inputs.read_values(SECTIONS[section], given_values, label)
            sections[section] = inputs.replaced(getattr(self, section), parsed)
        return dataclasses.replace(self, **sections)


def flag_of(name: str) -> str:
    """Give the flag of an input."""
    return "--" + name.replace("_", "-")


def ready_made(name: str) -> Scenario:
    """Give a ready-made scenario.

    Raises:
        ConfigError: None has this name.
    """
    if name not in READY_MADE:
        raise ConfigError(
            f"--scenario is {name!r}. Allowed: {', '.join(READY_MADE)}.", field="scenario"
        )
    file = resources.files("gdsckpt.planning") / "scenarios" / f"{name}.toml"
    return _from_document(tomllib.loads(file.read_text("utf-8")), name)


def from_file(path: str | os.PathLike[str]) -> Scenario:
    """Read a scenario of the user: TOML, or JSON where the name ends so.

    Raises:
        ConfigError: It is not understood, names something unknown, or a value cannot be used.
        StorageError: It cannot be read.
    """
    file = Path(path)
    try:
        with file.open("rb") as opened:
            raw = opened.read(FILE_MAX_BYTES + 1)
    except OSError as error:
        raise storage_error_from(error, op="read", path=file) from error
    if len(raw) > FILE_MAX_BYTES:
        raise ConfigError(
            f"{file} is larger than {FILE_MAX_BYTES} bytes: it is no scenario.", field="file"
        )
    try:
        text = raw.decode("utf-8")
        document = json.loads(text) if file.suffix == ".json" else tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # both decoders raise children of ValueError
        raise ConfigError(f"{file} is no scenario: {error}.", field="file") from error
    if not isinstance(document, dict):
        raise ConfigError(f"{file} is no scenario: it has no sections.", field="file")
    try:
        return _from_document(document, file.name)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}", field=error.field) from error


def _from_document(document: dict[str, Any], name: str) -> Scenario:
    sections = dict(document)
    texts = {
        key: inputs.TEXT.parse(sections.pop(key), key)
        for key in ("name", "about")
        if key in sections
    }
    base = dataclasses.replace(Scenario(name=name), **texts)
    return base.with_values(sections, is_flags=False)
