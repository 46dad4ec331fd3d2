import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdsckpt.errors import ConfigError, StorageError
from gdsckpt.planning import inputs, scenario
from gdsckpt.planning.band import Band
from gdsckpt.planning.scenario import SECTIONS, Scenario

ALL_INPUTS = [
    pytest.param(section, name, id=f"{section}.{name}")
    for section, cls in SECTIONS.items()
    for name in inputs.inputs_of(cls)
]


def read_flags(**sections):
    return Scenario().with_values(sections, is_flags=True)


@pytest.mark.parametrize("name", scenario.READY_MADE)
def test_ready_made_has_its_name_and_says_what_it_is(name):
    found = scenario.ready_made(name)
    assert found.name == name
    assert found.about


def test_ready_made_nvl72_is_racks_of_18_trays_of_4_gpus():
    found = scenario.ready_made("gb200-nvl72-hourly")
    assert found.layout.gpus % (18 * 4) == 0
    assert found.hardware.node == "gb200-nvl72-tray"
    assert found.saves.interval_s == 3600


def test_ready_made_1t_is_the_checkpoint_of_mlperf():
    found = scenario.ready_made("1t-mlperf")
    assert found.model.checkpoint_bytes == Band.exactly(18e12)
    assert found.layout.data * found.layout.tensor * found.layout.pipeline == 1024


def test_ready_made_unknown_name_lists_the_known():
    with pytest.raises(ConfigError, match=r"gb200-nvl72-hourly.*small") as raised:
        scenario.ready_made("huge")
    assert raised.value.field == "scenario"


def test_flags_are_unique_over_the_sections():
    names = [name for cls in SECTIONS.values() for name in inputs.inputs_of(cls)]
    assert len(names) == len(set(names))


def test_values_are_read_with_their_units():
    found = read_flags(
        model={"parameters": "70B"},
        saves={"interval": "1 h 30 min", "allowed_overlap": "5%"},
        hardware={"drive_rate": "6GB/s", "drives": 8},
        cost={"part": "256MiB", "gpu_hour": "$2..$3..$6"},
    )
    assert found.model.parameters == 70_000_000_000
    assert found.saves.interval_s == 5400
    assert found.saves.allowed_overlap_share == 0.05
    assert found.hardware.drive_rate_bytes_per_s == Band.exactly(6e9)
    assert found.cost.part_bytes == 268_435_456
    assert found.cost.gpu_hour_usd == Band(2, 3, 6)


def test_band_of_two_ends_has_its_middle_between_them():
    found = read_flags(failures={"mtbf_job": "2h..4h"})
    assert found.failures.mtbf_job_s == Band(7200, 10800, 14400)


@pytest.mark.parametrize(
    ("section", "name", "value", "said"),
    [
        ("saves", "interval", "3600", "with its unit"),
        ("saves", "interval", 3600, "of type int"),
        ("saves", "interval", "0s", "from 1 ms"),
        ("saves", "interval", "-1h", "with its unit"),
        ("saves", "interval", "2y", "to 365 d"),
        ("saves", "interval", "", "with its unit"),
        ("saves", "mode", "magic", "Allowed: sync, host, fence"),
        ("saves", "allowed_overlap", "0", "give a share from"),
        ("model", "parameters", "-70B", "give a count"),
        ("model", "parameters", "0", "give a count from 1"),
        ("model", "parameters", 7.5, "of type float"),
        ("model", "parameters", True, "of type bool"),
        ("model", "parameters", "99999T", "from 1 to 10,000,000,000,000,000"),
        ("model", "checkpoint", "912", "without a unit"),
        ("model", "checkpoint", 912, "without a unit"),
        ("model", "checkpoint", "912 Gb", "unknown unit 'Gb'"),
        ("model", "optimizer", "adam", "Allowed: "),
        ("hardware", "drive_rate", "6GB", "unknown unit 'GB'"),
        ("hardware", "drives", "0", "give a count from 1"),
        ("cost", "part", "1MiB", "give bytes from 5.24 MB"),
        ("cost", "gpu_hour", "3", "give US dollars"),
        ("cost", "gpu_hour", "$6..$2", "ascending"),
        ("cost", "gpu_hour", "$1..$2..$3..$4", "ascending"),
        ("cost", "keep_uploads", "0", "give a count from 1"),
        ("failures", "node_loss", "150%", "give a share"),
    ],
    ids=lambda value: repr(value),
)
def test_bad_value_is_refused_with_its_flag(section, name, value, said):
    with pytest.raises(ConfigError) as raised:
        read_flags(**{section: {name: value}})
    flag = scenario.flag_of(name)
    assert raised.value.field == flag
    assert flag in str(raised.value)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("section", "name"), ALL_INPUTS)
@pytest.mark.parametrize("value", [None, [], {}, "\x00", float("nan"), -1])
def test_no_input_takes_nonsense(section, name, value):
    with pytest.raises(ConfigError) as raised:
        Scenario().with_values({section: {name: value}}, is_flags=False)
    assert raised.value.field == f"{section}.{name}"


@pytest.mark.parametrize(
    "values",
    [
        {"model": {"parameters": "7B", "checkpoint": "100GB"}},
        {"layout": {"gpus": 8, "data": 8}},
        {"failures": {"mtbf_gpu": "1000h", "mtbf_job": "3h"}},
    ],
)
def test_contradicting_values_are_refused(values):
    with pytest.raises(ConfigError, match="contradict each other") as raised:
        Scenario().with_values(values, is_flags=True)
    assert raised.value.field.startswith("--")


def test_flag_overrules_the_other_inputs_of_its_group():
    base = scenario.ready_made("h100-70b")
    found = base.with_values(
        {"failures": {"mtbf_job": "3h"}, "model": {"checkpoint": "100GB"}}, is_flags=True
    )
    assert found.failures.mtbf_gpu_s is None
    assert found.failures.mtbf_job_s == Band.exactly(10_800)
    assert found.model.parameters is None
    assert found.layout == base.layout


def test_unknown_name_says_what_was_meant():
    with pytest.raises(ConfigError, match=r"Did you mean interval\?"):
        read_flags(saves={"intervall": "1h"})


def test_file_toml_and_json_give_the_same(tmp_path):
    (tmp_path / "a.toml").write_text('[model]\nparameters = "7B"\n[saves]\ninterval = "5min"\n')
    document = {"model": {"parameters": "7B"}, "saves": {"interval": "5min"}}
    (tmp_path / "a.json").write_text(json.dumps(document))
    toml, found = (scenario.from_file(tmp_path / name) for name in ("a.toml", "a.json"))
    assert toml.model.parameters == 7_000_000_000
    assert toml.saves == found.saves
    assert toml.model == found.model
    assert toml.name == "a.toml"


@pytest.mark.parametrize(
    ("text", "field", "said"),
    [
        ("[model\n", "file", "is no scenario"),
        ("[modell]\n", "modell", "Did you mean model?"),
        ("model = 3\n", "model", "give a section"),
        ('[model]\nparameter = "7B"\n', "model.parameter", "Did you mean parameters?"),
        ('[saves]\ninterval = "1"\n', "saves.interval", "with its unit"),
        ("[saves]\ninterval = 3600\n", "saves.interval", "of type int"),
        ("name = 3\n", "name", "give a text"),
    ],
)
def test_bad_file_is_refused_with_its_path(tmp_path, text, field, said):
    path = tmp_path / "plan.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as raised:
        scenario.from_file(path)
    assert raised.value.field == field
    assert str(path) in str(raised.value)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("raw", [b"\xff\xfe", b"[" * 100_000, b"[1, 2]", b"{"])
def test_bad_json_is_refused(tmp_path, raw):
    path = tmp_path / "plan.json"
    path.write_bytes(raw)
    with pytest.raises(ConfigError):
        scenario.from_file(path)


def test_huge_file_is_refused(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_bytes(b"#" * (scenario.FILE_MAX_BYTES + 1))
    with pytest.raises(ConfigError, match="is larger than"):
        scenario.from_file(path)


def test_missing_file_names_it(tmp_path):
    with pytest.raises(StorageError) as raised:
        scenario.from_file(tmp_path / "plan.toml")
    assert raised.value.path == str(tmp_path / "plan.toml")


@given(st.integers(1, 365 * 86400))
def test_interval_survives_a_round_trip(seconds):
    found = read_flags(saves={"interval": f"{seconds}s"})
    written = inputs.DURATION.format(found.saves.interval_s)
    again = read_flags(saves={"interval": written})
    assert again.saves.interval_s == pytest.approx(seconds, rel=0.042)
