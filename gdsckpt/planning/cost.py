"""What the checkpoints of a run cost: capacity, requests, moving bytes, and idle GPUs."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from gdsckpt.planning.architecture import Architecture, FileSystem, LocalDrives, Workload
from gdsckpt.planning.band import Band
from gdsckpt.planning.capacity import Flow, flows
from gdsckpt.planning.prices import Prices
from gdsckpt.planning.tariffs import MONTH_S, Quote, StoragePrice, TransferPrice, usd_of

__all__ = [
    "Architecture",
    "Cost",
    "CostLine",
    "FileSystem",
    "GpuIdle",
    "LocalDrives",
    "Workload",
    "cost",
    "file_system_bytes",
    "gpu_idle",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class CostLine:
    """One item of a bill.

    Attributes:
        name: What is paid for.
        usd: For the whole run.
        driver: What it grows with, in plain words and numbers.
    """

    name: str
    usd: Band
    driver: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuIdle:
    """GPUs that stand still for saves.

    Attributes:
        standstill_s: Wall time of the run for which the training stands still.
        gpu_hours: That time in hours, times the GPUs of the job: the GPU count is in it.
        usd: GPU-hours times the price of one GPU-hour.
        statement: The same in words, so that nobody multiplies by the GPU count again.
    """

    standstill_s: Band
    gpu_hours: Band
    usd: Band
    statement: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The bill of one architecture for a run.

    Attributes:
        architecture: Its name.
        lines: All that is not zero, the dearest first.
        idle: GPUs that stand still; also one of the lines.
        storage_usd: All lines but that.
        total_usd: All lines.
        usd_per_month: The total per 30 days.
        peak_bytes: Most that is kept at one time, by storage.
        main_driver: What the dearest line grows with.
    """

    architecture: str
    lines: tuple[CostLine, ...]
    idle: GpuIdle
    storage_usd: Band
    total_usd: Band
    usd_per_month: Band
    peak_bytes: dict[str, float]
    main_driver: str

    def as_dict(self) -> dict[str, Any]:
        """Give the fields as values that JSON has."""
        return dataclasses.asdict(self)


def cost(workload: Workload, architecture: Architecture, prices: Prices) -> Cost:
    """Compute the bill of a run.

    Raises:
        ConfigError: The price file does not have what the architecture needs.
    """
    bill = _Bill(workload, prices)
    waits_s = (architecture.commit_s - workload.interval_s).at_least(0.0)
    standstill = (architecture.stall_s + waits_s) * workload.num_saves
    if architecture.file_system is not None:
        stall_s = bill.add_file_system(architecture.file_system)
        standstill = standstill + stall_s * workload.num_saves
    if architecture.drives is not None:
        bill.add_drives(architecture.drives)
    if architecture.stages:
        bill.add_stages(architecture)
    storage_usd = Band.total(line.usd for line in bill.lines)
    idle = gpu_idle(workload, standstill.at_most(workload.run_s), prices)
    bill.add("GPUs standing still", idle.usd, idle.statement)
    paid = sorted(
        (each for each in bill.lines if each.usd.high > 0), key=lambda line: -line.usd.mid
    )
    total = Band.total(line.usd for line in paid)
    return Cost(
        architecture=architecture.name,
        lines=tuple(paid),
        idle=idle,
        storage_usd=storage_usd,
        total_usd=total,
        usd_per_month=total * (MONTH_S / workload.run_s),
        peak_bytes=bill.peak_bytes,
        main_driver=f"{paid[0].name}: {paid[0].driver}" if paid else "nothing costs anything",
    )


def gpu_idle(workload: Workload, standstill_s: Band, prices: Prices) -> GpuIdle:
    """Price the time that the training stands still.

    Args:
        workload: Its number of GPUs and their kind.
        standstill_s: Wall time of the run, in seconds; not multiplied by anything.
        prices: What an hour of one GPU costs.
    """
    price = prices.gpu_named(workload.gpu).usd_per_gpu_hour.usd
    gpu_hours = standstill_s * (workload.num_gpus / 3600)
    return GpuIdle(
        standstill_s=standstill_s,
        gpu_hours=gpu_hours,
        usd=gpu_hours * price,
        statement=(
            f"{standstill_s.mid / 3600:,.1f} h of standstill x {workload.num_gpus} GPUs = "
            f"{gpu_hours.mid:,.0f} GPU-hours, at {price.mid:g} USD per GPU-hour (the number of "
            "GPUs is in the GPU-hours)"
        ),
    )


def file_system_bytes(
    workload: Workload,
    file_system: FileSystem,
    price: StoragePrice,
    *,
    idle_usd_per_s: float = 0.0,
) -> float:
    """Give the capacity to buy: for what is kept, and for the throughput that comes with it.

    Args:
        workload: What is saved.
        file_system: What it is bought for.
        price: What it costs.
        idle_usd_per_s: What a second without training costs. The capacity costs ``a`` a byte and a
            stall ``b`` / bytes, so that both together are least at sqrt(b / a) bytes.
    """
    if file_system.provisioned_bytes is not None:
        return file_system.provisioned_bytes
    kept = workload.checkpoint_bytes * file_system.keep_newest
    allowed_s = workload.interval_s * file_system.overlap_share
    fast = workload.checkpoint_bytes / allowed_s / price.bytes_per_s_per_byte
    usd_per_byte_second = price.usd_per_byte_second.mid
    if file_system.weighs_idle and usd_per_byte_second > 0:
        bytes_per_s = workload.checkpoint_bytes / workload.interval_s
        stalled_usd = idle_usd_per_s * bytes_per_s / price.bytes_per_s_per_byte
        kept = max(kept, math.sqrt(stalled_usd / usd_per_byte_second))
    return max(kept, fast, price.minimum_capacity_bytes)


class _Bill:
    """Collects the lines of a bill; ``peak_bytes`` is the most kept at one time, by storage."""

    def __init__(self, workload: Workload, prices: Prices) -> None:
        self.lines: list[CostLine] = []
        self.peak_bytes: dict[str, float] = {}
        self._workload = workload
        self._prices = prices

    def add(self, name: str, usd: Band, driver: str) -> None:
        """Add a line."""
        self.lines.append(CostLine(name=name, usd=usd, driver=driver))

    def add_file_system(self, file_system: FileSystem) -> float:
        """Add a file system, and give the stall of one save in seconds."""
        workload = self._workload
        price = self._prices.storage_named(file_system.storage)
        gpu_hour_usd = self._prices.gpu_named(workload.gpu).usd_per_gpu_hour.usd.mid
        idle_usd_per_s = workload.num_gpus * gpu_hour_usd / 3600
        capacity = file_system_bytes(workload, file_system, price, idle_usd_per_s=idle_usd_per_s)
        bytes_per_s = capacity * price.bytes_per_s_per_byte
        self.peak_bytes[price.name] = capacity
        self.add(
            f"{price.name} capacity",
            price.usd_per_byte_second * (capacity * workload.run_s),
            f"{capacity / 1e12:.4g} TB with {bytes_per_s / 1e9:.4g} GB/s, provisioned for "
            f"{workload.run_s / 86400:.4g} days whether used or not",
        )
        written = workload.checkpoint_bytes * workload.num_saves
        self._add_cross_zone(written)
        return workload.checkpoint_bytes / bytes_per_s

    def add_drives(self, drives: LocalDrives) -> None:
        """Add the drives of the nodes."""
        workload = self._workload
        price = self._prices.storage_named(drives.storage)
        capacity = workload.checkpoint_bytes * drives.keep_newest * drives.num_copies
        self.peak_bytes[price.name] = capacity
        self.add(
            f"{price.name} capacity",
            price.usd_per_byte_second * (capacity * workload.run_s),
            f"{capacity / 1e12:.4g} TB: {drives.keep_newest} checkpoints, copies: "
            f"{drives.num_copies}",
        )
        copied = workload.checkpoint_bytes * workload.num_saves * (drives.num_copies - 1)
        self._add_cross_zone(copied)

    def add_stages(self, architecture: Architecture) -> None:
        """Add the object stores that checkpoints pass through, and what is read back."""
        workload = self._workload
        through = flows(
            architecture.stages,
            interval_s=workload.interval_s * architecture.upload_every,
            run_s=workload.run_s,
        )
        stores = [self._prices.storage_named(flow.stage.storage) for flow in through]
        for n, (flow, price) in enumerate(zip(through, stores, strict=True)):
            is_there = n > 0 and price.name == stores[n - 1].name
            self._add_kept(flow, price, 0.0 if is_there else price.minimum_storage_s)
            if n == 0:
                self._add_uploads(price, flow.num_in)
            elif not is_there:  # else it stays where it is, and its least time has been charged
                self._add_moves(stores[n - 1], price, flow.num_in)
        self._add_restores(stores[0])
        sent = workload.checkpoint_bytes * through[0].num_in
        read = workload.checkpoint_bytes * workload.num_restores
        transfer = self._prices.transfer
        self._add_bytes(
            "NAT gateway", transfer.nat_usd_per_gb, transfer, workload.nat_share * (sent + read)
        )
        self._add_bytes(
            "egress", transfer.egress_usd_per_gb, transfer, workload.egress_share * read
        )

    def _add_kept(self, flow: Flow, price: StoragePrice, minimum_s: float) -> None:
        peak = flow.peak * self._workload.checkpoint_bytes
        kept = flow.kept_s(minimum_s) * self._workload.checkpoint_bytes
        self.peak_bytes[price.name] = self.peak_bytes.get(price.name, 0.0) + peak
        self.add(
            f"{price.name} capacity",
            price.usd_per_byte_second * kept,
            f"{kept / 1e12 / MONTH_S:.4g} TB-months charged, at most {peak / 1e12:.4g} TB at once",
        )

    def _add_uploads(self, price: StoragePrice, number: float) -> None:
        workload = self._workload
        requests = workload.write_requests_per_checkpoint * number
        self.add(
            f"{price.name} PUT requests",
            usd_of(price.put_usd_per_1000) * (requests / 1000),
            f"{number:.4g} checkpoints x {workload.num_objects} objects x "
            f"{workload.parts_per_object} parts",
        )
        moved = workload.checkpoint_bytes * number
        self._add_bytes(f"{price.name} upload", price.upload_usd_per_gb, price, moved)

    def _add_moves(self, source: StoragePrice, target: StoragePrice, number: float) -> None:
        """Add the moves from one stage to the next: by a lifecycle rule, or else by copies."""
        if source.lifecycle_out:
            num_objects = self._workload.num_objects
            self.add(
                f"lifecycle to {target.name}",
                usd_of(target.lifecycle_usd_per_1000) * (num_objects * number / 1000),
                f"{num_objects} objects x {number:.4g} checkpoints",
            )
            return
        self._add_uploads(target, number)
        moved = self._workload.checkpoint_bytes * number
        name = f"{source.name} retrieval for copies"
        self._add_bytes(name, source.retrieval_usd_per_gb, source, moved)

    def _add_restores(self, price: StoragePrice) -> None:
        workload = self._workload
        requests = workload.num_objects * workload.parts_per_object * workload.num_restores
        self.add(
            f"{price.name} GET requests",
            usd_of(price.get_usd_per_1000) * (requests / 1000),
            f"{workload.num_restores:.4g} restores",
        )
        read = workload.checkpoint_bytes * workload.num_restores
        name = f"{price.name} retrieval for restores"
        self._add_bytes(name, price.retrieval_usd_per_gb, price, read)

    def _add_cross_zone(self, written_bytes: float) -> None:
        transfer = self._prices.transfer
        moved = self._workload.cross_zone_share * written_bytes
        self._add_bytes("cross-zone", transfer.cross_zone_usd_per_gb, transfer, moved)

    def _add_bytes(
        self,
        name: str,
        quote: Quote | None,
        price: StoragePrice | TransferPrice,
        moved_bytes: float,
    ) -> None:
        gb = moved_bytes / price.bytes_per_gb
        self.add(name, usd_of(quote) * gb, f"{moved_bytes / 1e12:.4g} TB")
