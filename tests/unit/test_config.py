import dataclasses
import re
from pathlib import Path

import pytest

from gdsckpt.config import Config
from gdsckpt.errors import ConfigError

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "settings.md"
KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40

DEFAULTS = {
    "engine": "auto",
    "io_threads": 8,
    "chunk_bytes": 16 * MIB,
    "pinned_pool_bytes": 128 * MIB,
    "direct_io": "auto",
    "fsync": True,
    "checksum": "crc32",
    "read_ahead_bytes": 256 * MIB,
    "snapshot_slots": 2,
    "snapshot_policy": "wait",
    "staging_max_bytes": 0,
    "endpoint_url": "",
    "addressing_style": "auto",
    "allow_plain_http": False,
    "upload_part_bytes": 128 * MIB,
    "upload_concurrency": 8,
    "store_attempts_max": 10,
    "store_timeout_s": 30,
    "libcuda": "",
    "libcufile": "",
}

# Settings beside the one that is tried, so that bounds across settings are kept.
BESIDE = {"chunk_bytes": {"pinned_pool_bytes": TIB}, "pinned_pool_bytes": {"chunk_bytes": 64 * KIB}}

ACCEPTED = [
    ("libcuda", "/opt/libcuda.so"),
    ("libcufile", "/opt/libcufile.so"),
    ("engine", "auto"),
    ("engine", "pinned"),
    ("io_threads", 1),
    ("io_threads", 64),
    ("chunk_bytes", 64 * KIB),
    ("chunk_bytes", GIB),
    ("pinned_pool_bytes", 256 * KIB),
    ("pinned_pool_bytes", TIB),
    ("direct_io", "off"),
    ("fsync", False),
    ("checksum", "none"),
    ("read_ahead_bytes", 0),
    ("read_ahead_bytes", TIB),
    ("snapshot_slots", 1),
    ("snapshot_slots", 64),
    ("snapshot_policy", "skip"),
    ("staging_max_bytes", TIB),
    ("endpoint_url", ""),
    ("endpoint_url", "http://127.0.0.1:8333"),
    ("endpoint_url", "https://s3.example.com"),
    ("addressing_style", "virtual"),
    ("allow_plain_http", True),
    ("upload_part_bytes", 5 * MIB),
    ("upload_part_bytes", 5 * GIB),
    ("upload_concurrency", 1),
    ("upload_concurrency", 256),
    ("store_attempts_max", 1),
    ("store_attempts_max", 1000),
    ("store_timeout_s", 1),
    ("store_timeout_s", 3600),
]

REFUSED = [
    ("engine", "cufile2"),
    ("engine", "AUTO"),
    ("engine", None),
    ("io_threads", 0),
    ("io_threads", 65),
    ("io_threads", -1),
    ("io_threads", 4.0),
    ("io_threads", True),
    ("io_threads", "four"),
    ("io_threads", "\u0664"),
    ("chunk_bytes", 0),
    ("chunk_bytes", 64 * KIB - 1),
    ("chunk_bytes", 64 * KIB + 4096),
    ("chunk_bytes", GIB + 64 * KIB),
    ("chunk_bytes", True),
    ("chunk_bytes", 1e6),
    ("chunk_bytes", "100KiB"),
    ("chunk_bytes", "16M"),
    ("pinned_pool_bytes", 256 * KIB - 1),
    ("pinned_pool_bytes", TIB + 1),
    ("direct_io", "on"),
    ("direct_io", True),
    ("fsync", 1),
    ("fsync", "maybe"),
    ("checksum", "md5"),
    ("libcuda", 1),
    ("libcufile", None),
    ("read_ahead_bytes", -1),
    ("read_ahead_bytes", TIB + 1),
    ("endpoint_url", None),
    ("addressing_style", "host"),
    ("allow_plain_http", "maybe"),
    ("upload_part_bytes", 5 * MIB - 1),
    ("upload_part_bytes", 5 * GIB + 1),
    ("snapshot_slots", 0),
    ("snapshot_slots", 65),
    ("snapshot_policy", "hope"),
    ("staging_max_bytes", TIB + 1),
    ("upload_concurrency", 0),
    ("upload_concurrency", 257),
    ("store_attempts_max", 0),
    ("store_attempts_max", 1001),
    ("store_timeout_s", 0),
    ("store_timeout_s", 3601),
]


def test_config_defaults_are_the_documented_ones():
    assert dataclasses.asdict(Config()) == DEFAULTS


def test_config_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().io_threads = 8


@pytest.mark.parametrize(("name", "value"), ACCEPTED)
def test_config_value_within_bounds_is_kept(name, value):
    config = Config(**{name: value, **BESIDE.get(name, {})})
    assert getattr(config, name) == value


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_config_value_out_of_bounds_is_refused(name, value):
    with pytest.raises(ConfigError) as info:
        Config(**{name: value, **BESIDE.get(name, {})})
    assert info.value.field == name
    assert str(info.value).startswith(f"{name} is {value!r}")


def test_config_every_setting_has_accepted_and_refused_values():
    assert {name for name, _ in ACCEPTED} == set(DEFAULTS)
    assert {name for name, _ in REFUSED} == set(DEFAULTS)


def test_config_pool_below_four_slabs_is_refused():
    with pytest.raises(ConfigError) as info:
        Config(chunk_bytes=64 * MIB)
    assert info.value.field == "pinned_pool_bytes"
    assert str(info.value) == (
        "pinned_pool_bytes is 128 MiB, less than 4 slabs of chunk_bytes = 64 MiB. "
        "Raise pinned_pool_bytes to 256 MiB or lower chunk_bytes."
    )
    assert Config(chunk_bytes=32 * MIB).pinned_pool_bytes == 4 * 32 * MIB


@pytest.mark.parametrize(
    "url",
    ["127.0.0.1:8333", "s3://bucket", "http://", "https://name:swordfish@host", "http:/swordfish"],
)
def test_config_endpoint_that_is_none_is_refused_and_not_shown(url):
    with pytest.raises(ConfigError) as info:
        Config(endpoint_url=url)
    assert info.value.field == "endpoint_url"
    assert "swordfish" not in str(info.value)


def test_config_unknown_name_is_refused_by_the_constructor():
    with pytest.raises(TypeError):
        Config(io_thread=4)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("engine", "pinned", "pinned"),
        ("io_threads", "8", 8),
        ("chunk_bytes", "32MiB", 32 * MIB),
        ("chunk_bytes", "65536", 65536),
        ("pinned_pool_bytes", "1GiB", GIB),
        ("direct_io", "off", "off"),
        ("fsync", "0", False),
        ("fsync", "False", False),
        ("fsync", "no", False),
        ("fsync", "off", False),
        ("fsync", "1", True),
        ("fsync", "TRUE", True),
        ("fsync", "yes", True),
        ("fsync", "on", True),
        ("checksum", "none", "none"),
        ("read_ahead_bytes", "0", 0),
    ],
)
def test_resolve_environment_text_is_read(name, text, value):
    environ = {f"GDSCKPT_{name.upper()}": text}
    assert Config.resolve(None, environ) == dataclasses.replace(Config(), **{name: value})


def test_resolve_explicit_beats_environment_beats_default():
    environ = {"GDSCKPT_IO_THREADS": "8", "GDSCKPT_FSYNC": "false", "HOME": "/root"}
    config = Config.resolve({"io_threads": 16}, environ)
    assert (config.io_threads, config.fsync, config.engine) == (16, False, "auto")


def test_resolve_explicit_value_saves_from_a_bad_one_in_the_environment():
    assert Config.resolve({"io_threads": 2}, {"GDSCKPT_IO_THREADS": "many"}).io_threads == 2


def test_resolve_config_is_complete():
    given = Config(io_threads=2)
    assert Config.resolve(given, {"GDSCKPT_IO_THREADS": "8", "GDSCKPT_FSYNC": "0"}) is given


def test_resolve_text_in_a_mapping_is_read():
    assert Config.resolve({"chunk_bytes": "1MiB"}, {}).chunk_bytes == MIB


def test_resolve_nothing_gives_defaults():
    assert Config.resolve(None, {}) == Config()
    assert Config.resolve({}, {}) == Config()


def test_resolve_bad_environment_value_names_the_variable():
    with pytest.raises(ConfigError) as info:
        Config.resolve(None, {"GDSCKPT_IO_THREADS": "99"})
    assert info.value.field == "io_threads"
    assert str(info.value) == "io_threads is '99'. Allowed: 1 to 64."
    assert info.value.__notes__ == ["io_threads was set by GDSCKPT_IO_THREADS in the environment."]


def test_resolve_bad_explicit_value_has_no_note():
    with pytest.raises(ConfigError) as info:
        Config.resolve({"io_threads": 99}, {"GDSCKPT_FSYNC": "0"})
    assert not hasattr(info.value, "__notes__")


@pytest.mark.parametrize(
    ("overrides", "environ", "field", "hint"),
    [
        ({"io_thread": 4}, {}, "io_thread", "Did you mean io_threads?"),
        (None, {"GDSCKPT_FSINC": "1"}, "GDSCKPT_FSINC", "Did you mean GDSCKPT_FSYNC?"),
        ({"zzz": 4}, {}, "zzz", "Known are engine, io_threads, "),
        (Config(), {"GDSCKPT_CHUNKBYTES": "1"}, "GDSCKPT_CHUNKBYTES", "GDSCKPT_CHUNK_BYTES?"),
        (None, {"GDSCKPT_engine": "auto"}, "GDSCKPT_engine", "GDSCKPT_ENGINE"),
    ],
)
def test_resolve_unknown_name_is_refused_with_a_hint(overrides, environ, field, hint):
    with pytest.raises(ConfigError) as info:
        Config.resolve(overrides, environ)
    assert info.value.field == field
    assert hint in str(info.value)


def test_resolve_variables_of_the_build_are_ignored():
    variables = set(re.findall(r'"(GDSCKPT_[A-Z_]+)"', (ROOT / "setup.py").read_text()))
    assert Config.resolve(None, dict.fromkeys(variables, "1")) == Config()


def test_docs_of_settings_are_current():
    assert DOCS.read_text() == Config.to_markdown(), "run `make docs`"
