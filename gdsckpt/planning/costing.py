"""What a plan costs: architectures side by side, over the frequency of saves."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from gdsckpt.errors import ConfigError
from gdsckpt.planning import crossover
from gdsckpt.planning.architecture import Architecture, FileSystem, LocalDrives, Workload
from gdsckpt.planning.band import Band
from gdsckpt.planning.building import Facts
from gdsckpt.planning.capacity import Stage
from gdsckpt.planning.cost import Cost
from gdsckpt.planning.crossover import Crossover
from gdsckpt.planning.prices import Prices, load_prices
from gdsckpt.planning.scenario import Scenario, flag_of
from gdsckpt.planning.tariffs import GpuPrice, Quote

FILE_SYSTEM = "synchronous to parallel file system"
EXPRESS = "NVMe, then Express, then Standard"
STANDARD = "NVMe, then Standard"
DRIVES = "all NVMe, two copies"

S3_STANDARD = "s3-standard"
BUCKET_KINDS = ("object", "on_premises")
_YOURS = "yours"


@dataclass(frozen=True, slots=True)
class CostCurve:
    """Totals of one architecture: (saves an hour, USD for the run)."""

    architecture: str
    points: tuple[tuple[float, Band], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Costing:
    """What it costs.

    Attributes:
        workload: What is paid for.
        costs: The bill of each architecture, the cheapest first.
        curves: Totals over the frequency of saves.
        crossovers: Where the parallel file system and each other architecture cost the same.
        has_gpu_price: Whether standstill has a price; else it is stated in GPU-hours alone.
        price_files: Where the prices were read.
    """

    workload: Workload
    costs: tuple[Cost, ...]
    curves: tuple[CostCurve, ...]
    crossovers: tuple[Crossover, ...]
    has_gpu_price: bool
    price_files: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Give all of it as values that JSON has."""
        return dataclasses.asdict(self)


def costing_of(scenario: Scenario, facts: Facts) -> Costing:
    """Compute the bills.

    Raises:
        ConfigError: The price file cannot be used or lacks what is named.
        StorageError: It cannot be read.
    """
    prices, gpu, has_price = _prices(scenario, facts)
    work = _workload(scenario, facts, gpu)
    compared = architectures(scenario, facts)
    return Costing(
        workload=work,
        costs=bills_of(scenario, facts),
        curves=tuple(
            CostCurve(each.name, tuple(crossover.cost_over_frequency(work, each, prices)))
            for each in compared
        ),
        crossovers=tuple(
            crossover.crossover(work, compared[0], each, prices) for each in compared[1:]
        ),
        has_gpu_price=has_price,
        price_files=prices.files,
    )


def bills_of(scenario: Scenario, facts: Facts) -> tuple[Cost, ...]:
    """Compute the bills at the frequency of the plan alone, the cheapest first.

    Raises:
        ConfigError: As :func:`costing_of`.
        StorageError: As :func:`costing_of`.
    """
    prices, gpu, _ = _prices(scenario, facts)
    work = _workload(scenario, facts, gpu)
    return tuple(crossover.compare(work, architectures(scenario, facts), prices))


def architectures(scenario: Scenario, facts: Facts) -> tuple[Architecture, ...]:
    """Give what is compared: first the parallel file system, then the others."""
    saves, cost = scenario.saves, scenario.cost
    # The names say Standard; another bucket is named as it is.
    express_name, standard_name = (
        name if cost.bucket == S3_STANDARD else name.replace("Standard", cost.bucket)
        for name in (EXPRESS, STANDARD)
    )
    standard = [Stage(storage=cost.bucket, keep_newest=cost.keep_uploads)]
    if cost.keep_every is not None:
        if cost.keep_uploads is None:
            raise ConfigError(
                f"--keep-every is {cost.keep_every}, but all uploads stay: give --keep-uploads, "
                "how many of the newest stay beside those.",
                field="keep_every",
            )
        standard.append(Stage(storage=cost.archive, keep_every=cost.keep_every))
    express = Stage(storage="s3-express", keep_newest=saves.keep_local)
    drives = LocalDrives(keep_newest=saves.keep_local + 1)
    every = saves.upload_every
    stall_s = facts.timeline.alone_stall_s
    commit_s = facts.timeline.durable_s if saves.mode == "host" else Band.exactly(0.0)
    return (
        Architecture(
            name=FILE_SYSTEM,
            file_system=FileSystem(
                storage=cost.file_system,
                keep_newest=saves.keep_local + 1,
                overlap_share=saves.allowed_overlap_share,
                weighs_idle=True,
            ),
        ),
        Architecture(
            name=express_name,
            drives=drives,
            stages=(express, *standard),
            stall_s=stall_s,
            commit_s=commit_s,
            upload_every=every,
        ),
        Architecture(
            name=standard_name,
            drives=drives,
            stages=tuple(standard),
            stall_s=stall_s,
            commit_s=commit_s,
            upload_every=every,
        ),
        Architecture(
            name=DRIVES,
            drives=dataclasses.replace(drives, num_copies=2),
            stall_s=stall_s,
            commit_s=commit_s,
        ),
    )


def _workload(scenario: Scenario, facts: Facts, gpu: str) -> Workload:
    cost = scenario.cost
    return Workload(
        checkpoint_bytes=max(1.0, facts.placement.nbytes.mid),
        interval_s=scenario.saves.interval_s,
        run_s=cost.run_s,
        num_gpus=facts.placement.layout.num_ranks,
        gpu=gpu,
        num_objects=max(1, facts.placement.num_writing_ranks),
        part_bytes=cost.part_bytes,
        num_restores=cost.restores,
        cross_zone_share=cost.cross_zone_share,
        nat_share=cost.nat_share,
        egress_share=cost.egress_share,
    )


def _prices(scenario: Scenario, facts: Facts) -> tuple[Prices, str, bool]:
    """Give the prices, the name of the GPU in them, and whether it has a price."""
    prices = load_prices(scenario.cost.prices)
    for field in ("bucket", "archive", "file_system"):
        _check_storage(field, getattr(scenario.cost, field), prices)
    hour = scenario.cost.gpu_hour_usd
    name = facts.node.name.partition("-")[0]
    if hour is None and name in prices.gpu:
        return prices, name, True
    quote = Quote(Band.exactly(0.0) if hour is None else hour, "", "given by the user")
    yours = GpuPrice(name=_YOURS, region="", usd_per_gpu_hour=quote)
    return dataclasses.replace(prices, gpu={**prices.gpu, _YOURS: yours}), _YOURS, hour is not None


def _check_storage(field: str, storage: str, prices: Prices) -> None:
    try:
        kind = prices.storage_named(storage).kind
    except ConfigError as error:
        raise ConfigError(f"{flag_of(field)}: {error}", field=field) from error
    if field != "file_system" and kind not in BUCKET_KINDS:
        raise ConfigError(
            f"{flag_of(field)} is {storage!r}, of the kind {kind}: give a storage of the kind "
            f"{' or '.join(BUCKET_KINDS)}.",
            field=field,
        )
