"""Prices with their date and source: read from ``prices.toml``, or from a file of the user's."""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from gdsckpt.errors import ConfigError, StrPath, storage_error_from
from gdsckpt.planning.band import Band
from gdsckpt.planning.tariffs import KINDS, GpuPrice, Quote, StoragePrice, TransferPrice

_VERSION = 1
_FILE_MAX_BYTES = 1 << 20
_AS_OF = re.compile(r"20[0-9]{2}-(0[1-9]|1[0-2])(-(0[1-9]|[12][0-9]|3[01]))?")
_PRICE_MAX_USD = 1e6
_QUOTE_KEYS = ("usd", "low", "mid", "high", "as_of", "source")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """All prices of a plan.

    Attributes:
        storage: By name.
        gpu: By name.
        transfer: What moving bytes costs.
        files: Where they were read, for the output.
    """

    storage: Mapping[str, StoragePrice]
    gpu: Mapping[str, GpuPrice]
    transfer: TransferPrice
    files: tuple[str, ...]

    def storage_named(self, name: str) -> StoragePrice:
        """Give a kind of storage; ConfigError names similar ones."""
        found: StoragePrice = _named("storage", name, self.storage)
        return found

    def gpu_named(self, name: str) -> GpuPrice:
        """Give a GPU; ConfigError names similar ones."""
        found: GpuPrice = _named("gpu", name, self.gpu)
        return found

    def as_dict(self) -> dict[str, Any]:
        """Give all numbers with dates and sources as values that JSON has."""
        return {
            "files": list(self.files),
            "storage": {name: dataclasses.asdict(each) for name, each in self.storage.items()},
            "gpu": {name: dataclasses.asdict(each) for name, each in self.gpu.items()},
            "transfer": dataclasses.asdict(self.transfer),
        }


def load_prices(path: StrPath | None = None) -> Prices:
    """Read the prices that come with the package, and a file whose entries replace them by name.

    Args:
        path: TOML file of the same form; each of its tables ``[storage.NAME]``, ``[gpu.NAME]`` and
            ``[transfer]`` takes the place of the whole table of that name.

    Raises:
        ConfigError: It is no TOML, or has an unknown key or a value that cannot be used; ``field``
            names the entry.
        StorageError: It cannot be read.
    """
    text = resources.files("gdsckpt.planning").joinpath("prices.toml").read_text("utf-8")
    built_in = _parse(text, "prices.toml of gdsckpt")
    if path is None:
        return built_in
    own = _parse(_read(path), os.fspath(path), built_in.transfer)
    return Prices(
        storage={**built_in.storage, **own.storage},
        gpu={**built_in.gpu, **own.gpu},
        transfer=own.transfer,
        files=built_in.files + own.files,
    )


def _read(path: StrPath) -> str:
    try:
        with Path(path).open("rb") as file:
            data = file.read(_FILE_MAX_BYTES + 1)
    except OSError as error:
        raise storage_error_from(error, op="open", path=path) from error
    if len(data) > _FILE_MAX_BYTES:
        raise ConfigError(
            f"--prices: {os.fspath(path)} is larger than {_FILE_MAX_BYTES} bytes: too large for a "
            "price file.",
            field="prices",
        )
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"--prices: {os.fspath(path)} is no text: {error}.", field="prices"
        ) from error


def _parse(text: str, origin: str, transfer: TransferPrice | None = None) -> Prices:
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"--prices: {origin} is no TOML: {error}.", field="prices") from error
    _check_keys("", raw, ("version", "sources", "storage", "gpu", "transfer"))
    if raw.get("version") != _VERSION:
        raise ConfigError(
            f"version of {origin} is {raw.get('version')!r}: this release reads {_VERSION}.",
            field="version",
        )
    sources = _table("sources", raw.get("sources", {}))
    for name, source in sources.items():
        if not isinstance(source, str) or not source.strip():
            raise ConfigError(f"sources.{name} is {source!r}: give text.", field=f"sources.{name}")
    if "transfer" in raw:
        transfer = _entry(TransferPrice, "transfer", raw["transfer"], sources)
    if transfer is None:
        raise ConfigError(f"transfer is missing in {origin}.", field="transfer")
    storage = {
        name: _storage(name, entry, sources)
        for name, entry in _table("storage", raw.get("storage", {})).items()
    }
    gpu = {
        name: _entry(GpuPrice, f"gpu.{name}", entry, sources, name=name)
        for name, entry in _table("gpu", raw.get("gpu", {})).items()
    }
    return Prices(storage=storage, gpu=gpu, transfer=transfer, files=(origin,))


def _storage(name: str, entry: Any, sources: Mapping[str, Any]) -> StoragePrice:
    field = f"storage.{name}"
    price: StoragePrice = _entry(StoragePrice, field, entry, sources, name=name)
    if price.kind not in KINDS:
        raise ConfigError(
            f"{field}.kind is {price.kind!r}. Allowed: {', '.join(KINDS)}.", field=f"{field}.kind"
        )
    return price


def _entry(
    cls: Any, field: str, entry: Any, sources: Mapping[str, Any], *, name: str | None = None
) -> Any:
    """Make one of the classes above from a table, a field at a time."""
    table = _table(field, entry)
    known = {each.name: each for each in dataclasses.fields(cls) if each.name != "name"}
    _check_keys(f"{field}.", table, known)
    values: dict[str, Any] = {} if name is None else {"name": name}
    for key, each in known.items():
        if key in table:
            values[key] = _value(f"{field}.{key}", str(each.type), table[key], sources)
        elif each.default is dataclasses.MISSING:
            raise ConfigError(f"{field}.{key} is missing.", field=f"{field}.{key}")
    return cls(**values)


def _value(field: str, kind: str, value: Any, sources: Mapping[str, Any]) -> Any:
    if kind.startswith("Quote"):
        return _quote(field, value, sources)
    if kind == "str":
        if isinstance(value, str) and value:
            return value
        raise ConfigError(f"{field} is {value!r}: give text.", field=field)
    if kind == "bool":
        if isinstance(value, bool):
            return value
        raise ConfigError(f"{field} is {value!r}: give true or false.", field=field)
    if field.endswith(".bytes_per_gb") and value not in (10**9, 2**30):
        raise ConfigError(
            f"{field} is {value!r}: a GB is 1000000000 or 1073741824 bytes.", field=field
        )
    number = _number(field, value, maximum=1e12)
    if number == 0 and not field.endswith((".minimum_storage_hours", ".minimum_capacity_gb")):
        raise ConfigError(f"{field} is 0: give a number above 0.", field=field)
    return int(number) if kind == "int" else number


def _quote(field: str, value: Any, sources: Mapping[str, Any]) -> Quote:
    table = _table(field, value)
    _check_keys(f"{field}.", table, _QUOTE_KEYS)
    is_band = {"low", "mid", "high"} <= table.keys()
    if is_band == ("usd" in table) or (not is_band and {"low", "mid", "high"} & table.keys()):
        raise ConfigError(f"{field}: give either usd, or low, mid and high.", field=field)
    ends = [
        _number(f"{field}.{key}", table[key], maximum=_PRICE_MAX_USD)
        for key in (("low", "mid", "high") if is_band else ("usd", "usd", "usd"))
    ]
    if not ends[0] <= ends[1] <= ends[2]:
        raise ConfigError(f"{field} is {ends}: give low <= mid <= high.", field=field)
    as_of, source = table.get("as_of"), table.get("source")
    if not isinstance(as_of, str) or not _AS_OF.fullmatch(as_of):
        raise ConfigError(
            f'{field}.as_of is {as_of!r}: give the date of the price, such as "2026-03".',
            field=f"{field}.as_of",
        )
    if not isinstance(source, str) or source not in sources:
        raise ConfigError(
            f"{field}.source is {source!r}: give the name of an entry of [sources].",
            field=f"{field}.source",
        )
    return Quote(Band(*ends), as_of, sources[source])


def _number(field: str, value: Any, *, maximum: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{field} is {value!r}: give a number.", field=field)
    if not 0 <= value <= maximum:
        raise ConfigError(
            f"{field} is {value!r}: give a number from 0 to {maximum:g}.", field=field
        )
    return float(value)


def _table(field: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{field} is {value!r}: give a table.", field=field)
    return value


def _check_keys(prefix: str, table: Mapping[str, Any], known: Iterable[str]) -> None:
    names = list(known)
    for key in table:
        if key not in names:
            field = f"{prefix}{key}"
            raise ConfigError(f"{field} is not known.{_suggestion(key, names)}", field=field)


def _named(kind: str, name: str, known: Mapping[str, Any]) -> Any:
    if name not in known:
        raise ConfigError(
            f"{kind} {name!r} is not in the price file.{_suggestion(name, known)} Known: "
            f"{', '.join(sorted(known))}.",
            field=kind,
        )
    return known[name]


def _suggestion(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {close[0]}?" if close else ""
