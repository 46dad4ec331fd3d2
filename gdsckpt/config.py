"""The settings: each is declared once, with default, bounds and meaning.

The constructor checks them, the environment is read by their names, and ``docs/settings.md`` is
printed from them.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from gdsckpt.errors import ConfigError
from gdsckpt.units import format_binary_bytes, parse_bytes

KiB, MiB, GiB, TiB = 2**10, 2**20, 2**30, 2**40

ENVIRONMENT_PREFIX = "GDSCKPT_"
# Names with our prefix that are no settings of a run; these are of the build (setup.py).
_OTHER_ENVIRONMENT_NAMES = frozenset({"GDSCKPT_BUILD_JOBS", "GDSCKPT_WERROR"})

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})

# The ring keeps one slab filling, one in flight and two waiting (docs/design.md, "Engines").
SLABS_MIN = 4


@dataclasses.dataclass(frozen=True)
class _Setting:
    """What is known of one setting but its name and default."""

    meaning: str
    choices: tuple[str, ...] = ()
    minimum: int = 0
    maximum: int = 0
    multiple_of: int = 1
    is_bytes: bool = False
    is_bool: bool = False
    is_text: bool = False

    @property
    def allowed(self) -> str:
        """The allowed values, for the documentation and for errors."""
        if self.is_bool:
            return "true, false"
        if self.is_text:
            return "any text"
        if self.choices:
            return ", ".join(self.choices)
        bounds = f"{self.format(self.minimum)} to {self.format(self.maximum)}"
        step = f", a multiple of {self.format(self.multiple_of)}" if self.multiple_of > 1 else ""
        return bounds + step

    def format(self, value: object) -> str:
        """Give a value as a user would write it."""
        if isinstance(value, bool):
            return str(value).lower()
        return (
            format_binary_bytes(value) if self.is_bytes and isinstance(value, int) else f"{value}"
        )

    def parse(self, name: str, value: object) -> str | int | bool:
        """Give the checked value; text is read as a user writes it.

        Raises:
            ConfigError: The value is none of the allowed ones.
        """
        if self.is_bool:
            parsed: str | int | bool | None = self._parse_bool(value)
        elif self.is_text:
            parsed = value if isinstance(value, str) else None
        elif self.choices:
            parsed = value if isinstance(value, str) and value in self.choices else None
        else:
            parsed = self._parse_number(name, value)
        if parsed is None:
            raise ConfigError(f"{name} is {value!r}. Allowed: {self.allowed}.", field=name)
        return parsed

    def _parse_bool(self, value: object) -> bool | None:
        if isinstance(value, bool):
            return value
        text = value.strip().lower() if isinstance(value, str) else ""
        return True if text in _TRUE else False if text in _FALSE else None

    def _parse_number(self, name: str, value: object) -> int | None:
        number: int
        if self.is_bytes and isinstance(value, int | str):
            number = parse_bytes(value, field=name)
        elif isinstance(value, int) and not isinstance(value, bool):
            number = value
        elif isinstance(value, str) and value.strip().isascii() and value.strip().isdigit():
            number = int(value)
        else:
            return None
        fits = self.minimum <= number <= self.maximum and number % self.multiple_of == 0
        return number if fits else None


def _setting(default: Any, meaning: str, **facts: Any) -> Any:
    return dataclasses.field(default=default, metadata={"setting": _Setting(meaning, **facts)})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """The settings of a save, load, verify, upload or fetch; checked when made.

    Sizes may be given as text with a unit (``"32MiB"``); afterwards they are numbers of bytes.

    Raises:
        ConfigError: A value is out of its bounds; ``field`` names the setting.
    """

    engine: str = _setting(
        "auto",
        "What moves bytes between memory and a file. `auto` takes the fastest that was proved to "
        "work ([gpu.md](gpu.md)); the name of an engine demands it.",
        choices=("auto", "cufile", "kvikio", "pinned"),
    )
    io_threads: int = _setting(
        8, "Threads that read and write one file at the same time.", minimum=1, maximum=64
    )
    chunk_bytes: int = _setting(
        16 * MiB,
        "Size of one request to the drive, and of the pieces of a file that have a checksum each.",
        minimum=64 * KiB,
        maximum=GiB,
        multiple_of=64 * KiB,
        is_bytes=True,
    )
    pinned_pool_bytes: int = _setting(
        128 * MiB,
        f"Host memory that an engine may use for its ring of slabs; at least {SLABS_MIN} times "
        "`chunk_bytes`.",
        minimum=SLABS_MIN * 64 * KiB,
        maximum=TiB,
        is_bytes=True,
    )
    direct_io: str = _setting(
        "auto",
        "`auto` bypasses the page cache (O_DIRECT) where the file system allows it; `off` never "
        "does.",
        choices=("auto", "off"),
    )
    fsync: bool = _setting(
        True,
        "Whether a save returns only when the file would survive a power loss. `false` is for "
        "scratch files.",
        is_bool=True,
    )
    checksum: str = _setting(
        "crc32",
        "What a load checks the bytes against. `none` skips the check; a save always writes "
        "checksums.",
        choices=("crc32", "none"),
    )
    read_ahead_bytes: int = _setting(
        256 * MiB,
        "How far a load reads ahead of the tensor being restored; 0 reads each one when it comes.",
        minimum=0,
        maximum=TiB,
        is_bytes=True,
    )
    snapshot_slots: int = _setting(
        2,
        "Copies of the state in host memory that may wait for the drive at the same time, each in "
        "a slot that is used again.",
        minimum=1,
        maximum=64,
    )
    snapshot_policy: str = _setting(
        "wait",
        "What an asynchronous save does when every slot is in use: `wait` for one, `skip` the save "
        "(its futures fail, and a warning is logged), or `raise` SnapshotBusyError.",
        choices=("wait", "skip", "raise"),
    )
    staging_max_bytes: int = _setting(
        0,
        "Host memory that all slots together may use; a larger state is read in part while the "
        "caller waits. 0 takes a quarter of the memory of the machine or container, divided by the "
        "processes of the job on it (`LOCAL_WORLD_SIZE`).",
        minimum=0,
        maximum=TiB,
        is_bytes=True,
    )
    endpoint_url: str = _setting(
        "",
        "`https://HOST:PORT` of the object store; empty takes what boto3 finds: "
        "`AWS_ENDPOINT_URL`, its configuration file, or Amazon S3.",
        is_text=True,
    )
    addressing_style: str = _setting(
        "auto",
        "Whether the bucket is part of the host's name (`virtual`) or of the path (`path`); `auto` "
        "leaves it to boto3.",
        choices=("auto", "path", "virtual"),
    )
    allow_plain_http: bool = _setting(
        False,
        "Whether data may go unencrypted to an endpoint that is not on this machine.",
        is_bool=True,
    )
    upload_part_bytes: int = _setting(
        128 * MiB,
        "Size of the parts of an upload; they grow where an object would have more than 10,000.",
        minimum=5 * MiB,
        maximum=5 * GiB,
        is_bytes=True,
    )
    upload_concurrency: int = _setting(
        8,
        "Requests to an object store in flight at the same time; fewer while it says that it is "
        "overloaded.",
        minimum=1,
        maximum=256,
    )
    store_attempts_max: int = _setting(
        10,
        "How often a request to an object store is tried; the waits between grow to 20 seconds.",
        minimum=1,
        maximum=1000,
    )
    store_timeout_s: int = _setting(
        30,
        "Seconds without any byte moved after which a request counts as failed.",
        minimum=1,
        maximum=3600,
    )
    libcuda: str = _setting(
        "",
        "Absolute path of a library to load in the place of `libcuda.so.1`, for tests. Read from "
        "the environment only, once for a process; ignored where a program runs with more rights "
        "than its user.",
        is_text=True,
    )
    libcufile: str = _setting(
        "",
        "As `libcuda`, in the place of `libcufile.so.0`.",
        is_text=True,
    )

    def __post_init__(self) -> None:
        """Check each setting, then those that depend on one another."""
        for name, setting in _settings().items():
            # The way of the dataclasses documentation to set a field of a frozen instance.
            object.__setattr__(self, name, setting.parse(name, getattr(self, name)))
        _check_endpoint(self.endpoint_url)
        pool_min_bytes = SLABS_MIN * self.chunk_bytes
        if self.pinned_pool_bytes < pool_min_bytes:
            raise ConfigError(
                f"pinned_pool_bytes is {format_binary_bytes(self.pinned_pool_bytes)}, less than "
                f"{SLABS_MIN} slabs of chunk_bytes = {format_binary_bytes(self.chunk_bytes)}. "
                f"Raise pinned_pool_bytes to {format_binary_bytes(pool_min_bytes)} or lower "
                "chunk_bytes.",
                field="pinned_pool_bytes",
            )

    @classmethod
    def resolve(
        cls, overrides: "Config | Mapping[str, Any] | None", environ: Mapping[str, str]
    ) -> "Config":
        """Give the settings in force: explicit before environment before default.

        Args:
            overrides: What the caller gave. A Config is complete, so the environment adds nothing;
                a mapping holds some settings by name; None holds none.
            environ: The environment, usually ``os.environ``; names without our prefix are ignored.

        Returns:
            The checked settings.

        Raises:
            ConfigError: A name is unknown, here or in the environment, or a value is out of bounds.
        """
        from_environment = _named_in(environ)
        if isinstance(overrides, Config):
            return overrides
        if overrides is not None and not isinstance(overrides, Mapping):
            raise ConfigError(
                f"config is of type {type(overrides).__name__}. Pass a gdsckpt.Config or a dict of "
                "settings by name.",
                field="config",
            )
        explicit = dict(overrides or {})
        for name in explicit:
            _check_name(str(name), list(_settings()))
        try:
            return cls(**{**from_environment, **explicit})
        except ConfigError as exc:
            if exc.field in from_environment and exc.field not in explicit:
                variable = ENVIRONMENT_PREFIX + exc.field.upper()
                exc.add_note(f"{exc.field} was set by {variable} in the environment.")
            raise

    @classmethod
    def to_markdown(cls) -> str:
        """Print ``docs/settings.md``."""
        rows = [
            f"| `{field.name}` | `{setting.format(field.default)}` | {setting.allowed} "
            f"| {setting.meaning} |"
            for field, setting in zip(dataclasses.fields(cls), _settings().values(), strict=True)
        ]
        return _MARKDOWN_HEAD + "\n".join(rows) + "\n"


_MARKDOWN_HEAD = """\
# Settings

<!-- Printed by `make docs` from gdsckpt/config.py: change it there. -->

Give settings as `config=` of a call: a `gdsckpt.Config`, or a mapping of some of them by name. What
is not given is taken from the environment, where the name is `GDSCKPT_` and the setting in capitals
(`GDSCKPT_IO_THREADS=8`), and else has its default. A `gdsckpt.Config` is complete: with one, the
environment changes nothing.

Sizes are bytes, or text with a unit: `32MiB` (powers of 1024) or `4GB` (powers of 1000). A name
that is not in this table raises `ConfigError`, in the environment too.

| setting | default | allowed | meaning |
|---|---|---|---|
"""


def _check_endpoint(url: str) -> None:
    scheme, separator, rest = url.partition("://")
    if not url or (scheme in ("http", "https") and separator and rest and "@" not in rest):
        return
    # Not shown: what stands before an '@' is a secret.
    raise ConfigError(
        "endpoint_url is no address of a server. Give https://HOST:PORT, without a name or a "
        "password in it.",
        field="endpoint_url",
    )


def _settings() -> dict[str, _Setting]:
    return {field.name: field.metadata["setting"] for field in dataclasses.fields(Config)}


def _named_in(environ: Mapping[str, str]) -> dict[str, str]:
    """Give the settings that the environment names, unread."""
    names = {ENVIRONMENT_PREFIX + name.upper(): name for name in _settings()}
    found = {}
    for variable, value in environ.items():
        if variable.startswith(ENVIRONMENT_PREFIX) and variable not in _OTHER_ENVIRONMENT_NAMES:
            _check_name(variable, list(names))
            found[names[variable]] = value
    return found


def _check_name(name: str, known: list[str]) -> None:
    if name in known:
        return
    # Costs 2 ms to import, and only an error needs it.
    import difflib

    near = difflib.get_close_matches(name, known, n=1)
    hint = f"Did you mean {near[0]}?" if near else f"Known are {', '.join(known)}."
    raise ConfigError(f"Unknown setting {name}. {hint}", field=name)
