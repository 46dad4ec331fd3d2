"""What a price file says of storage, GPUs and transfers, each number with date and source."""

from __future__ import annotations

from dataclasses import dataclass

from gdsckpt.errors import ConfigError
from gdsckpt.planning.band import Band

KINDS = ("object", "file_system", "block", "on_premises")
MONTH_S = 30 * 86400.0
"""Seconds of a month of storage: 30 days. AWS charges by the hours of the calendar month, 672 to
744, so that a bill differs from this by up to 7 %."""

YEAR_MONTHS = 365 * 86400.0 / MONTH_S
MB, TIB, TB = 10**6, 2**40, 10**12


@dataclass(frozen=True, slots=True)
class Quote:
    """One number with where it comes from.

    Attributes:
        usd: US dollars per what the name of the number says.
        as_of: When it was so, ``YYYY-MM`` or ``YYYY-MM-DD``.
        source: Who says so.
    """

    usd: Band
    as_of: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoragePrice:
    """What one kind of storage costs. A quote is None where the file has none: it costs nothing.

    Attributes:
        name: Its name in the file.
        kind: One of ``KINDS``.
        region: Where.
        bytes_per_gb: What the seller calls a GB: 2**30 or 10**9.
        storage_usd_per_gb_month: Keeping a GB for 30 days. For ``on_premises`` it is computed from
            the next four; None where the user has to enter it.
        capital_usd_per_tb: Buying a usable TB (10**12 bytes).
        power_w_per_tb: Watts that it takes (the unit of this quote is W, not USD).
        usd_per_kwh: Electricity.
        operation_share_per_year: Support and staff as a share of the capital (no unit).
        lifetime_years: Until it is written off.
        power_usage_effectiveness: Power of the site per power of the machines.
        put_usd_per_1000: 1,000 requests that write, parts of multipart uploads among them.
        get_usd_per_1000: 1,000 requests that read.
        lifecycle_usd_per_1000: 1,000 objects that a lifecycle rule moves to here.
        upload_usd_per_gb: A GB that is written.
        retrieval_usd_per_gb: A GB that is read or copied away.
        minimum_storage_hours: What is deleted or moved on earlier is charged as if it had stayed.
        lifecycle_out: Whether lifecycle rules move objects on from here; they are copied else.
        throughput_mb_per_s_per_tib: MB/s (10**6) that a TiB of capacity brings; None if unknown.
        minimum_capacity_gb: Smallest capacity that is sold.
    """

    name: str
    kind: str
    region: str
    bytes_per_gb: int
    storage_usd_per_gb_month: Quote | None = None
    capital_usd_per_tb: Quote | None = None
    power_w_per_tb: Quote | None = None
    usd_per_kwh: Quote | None = None
    operation_share_per_year: Quote | None = None
    lifetime_years: float = 5.0
    power_usage_effectiveness: float = 1.4
    put_usd_per_1000: Quote | None = None
    get_usd_per_1000: Quote | None = None
    lifecycle_usd_per_1000: Quote | None = None
    upload_usd_per_gb: Quote | None = None
    retrieval_usd_per_gb: Quote | None = None
    minimum_storage_hours: float = 0.0
    lifecycle_out: bool = True
    throughput_mb_per_s_per_tib: float | None = None
    minimum_capacity_gb: float = 0.0

    @property
    def usd_per_byte_second(self) -> Band:
        """Keeping one byte for one second.

        Raises:
            ConfigError: The file has no price for it.
        """
        return self.usd_per_gb_month / (self.bytes_per_gb * MONTH_S)

    @property
    def usd_per_gb_month(self) -> Band:
        """Keeping a GB of ``bytes_per_gb`` bytes for 30 days.

        Raises:
            ConfigError: The file has no price for it.
        """
        if self.storage_usd_per_gb_month is not None:
            return self.storage_usd_per_gb_month.usd
        capital, power = self.capital_usd_per_tb, self.power_w_per_tb
        if capital is None or power is None or self.usd_per_kwh is None:
            raise ConfigError(
                f"storage.{self.name}.storage_usd_per_gb_month is missing: enter what yours costs "
                "in a price file of your own, and give --prices FILE.",
                field=f"storage.{self.name}.storage_usd_per_gb_month",
            )
        operation = usd_of(self.operation_share_per_year) * capital.usd / YEAR_MONTHS
        written_off = capital.usd / (self.lifetime_years * YEAR_MONTHS)
        kwh = power.usd * (self.power_usage_effectiveness * MONTH_S / 3600 / 1000)
        per_tb = written_off + operation + kwh * self.usd_per_kwh.usd
        return per_tb * (self.bytes_per_gb / TB)

    @property
    def bytes_per_s_per_byte(self) -> float:
        """Throughput that one byte of capacity brings, in bytes per second.

        Raises:
            ConfigError: The file does not say.
        """
        if self.throughput_mb_per_s_per_tib is None:
            raise ConfigError(
                f"storage.{self.name}.throughput_mb_per_s_per_tib is missing: enter what yours "
                "brings in a price file of your own, and give --prices FILE.",
                field=f"storage.{self.name}.throughput_mb_per_s_per_tib",
            )
        return self.throughput_mb_per_s_per_tib * MB / TIB

    @property
    def minimum_storage_s(self) -> float:
        """Seconds for which everything is charged at least."""
        return self.minimum_storage_hours * 3600

    @property
    def minimum_capacity_bytes(self) -> float:
        """Smallest capacity that is sold, in bytes."""
        return self.minimum_capacity_gb * self.bytes_per_gb


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferPrice:
    """What moving a GB costs.

    Attributes:
        region: Where.
        bytes_per_gb: What the seller calls a GB.
        cross_zone_usd_per_gb: From one availability zone to another, both sides together.
        egress_usd_per_gb: Out of the region.
        nat_usd_per_gb: Through a NAT gateway.
    """

    region: str
    bytes_per_gb: int
    cross_zone_usd_per_gb: Quote | None = None
    egress_usd_per_gb: Quote | None = None
    nat_usd_per_gb: Quote | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPrice:
    """What an hour of one GPU with its share of the node costs.

    Attributes:
        name: Its name in the file.
        region: Where.
        usd_per_gpu_hour: One GPU for one hour.
    """

    name: str
    region: str
    usd_per_gpu_hour: Quote


def usd_of(quote: Quote | None) -> Band:
    """Give the dollars of a quote; none costs nothing."""
    return quote.usd if quote else Band.exactly(0.0)
