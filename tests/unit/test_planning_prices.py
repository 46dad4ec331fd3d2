import json
import re

import pytest

from gdsckpt.errors import ConfigError, StorageError
from gdsckpt.planning.band import Band
from gdsckpt.planning.prices import load_prices
from gdsckpt.planning.tariffs import Quote

OWN = """
version = 1
[sources]
offer = "offer of May 2027"
"""
QUOTE = 'as_of = "2027-05", source = "offer"'
WEKA = f"""
[storage.weka]
kind = "file_system"
region = "here"
bytes_per_gb = 1000000000
storage_usd_per_gb_month = {{low = 0.05, mid = 0.08, high = 0.1, {QUOTE}}}
throughput_mb_per_s_per_tib = 800
"""
BARE = '[storage.s]\nkind = "object"\nregion = "r"\nbytes_per_gb = 1000000000\n'


@pytest.fixture
def load(tmp_path):
    def load_text(text):
        path = tmp_path / "prices.toml"
        path.write_text(text)
        return load_prices(path)

    return load_text


def quotes(value):
    if isinstance(value, dict):
        if "as_of" in value:
            yield value
        else:
            for each in value.values():
                yield from quotes(each)


def test_built_in_names_every_kind_of_storage():
    assert load_prices().storage.keys() >= {
        "s3-standard",
        "s3-express",
        "s3-standard-ia",
        "s3-glacier-instant",
        "s3-glacier-flexible",
        "s3-glacier-deep",
        "fsx-lustre-125",
        "fsx-lustre-250",
        "fsx-lustre-500",
        "fsx-lustre-1000",
        "ebs-gp3",
        "nvme-local",
        "minio-nvme",
        "ceph-hdd",
        "weka",
        "gpfs",
    }


def test_built_in_every_number_has_region_date_and_source():
    as_dict = load_prices().as_dict()
    found = list(quotes(as_dict))
    assert len(found) > 50
    assert all(re.fullmatch(r"20\d\d-\d\d", each["as_of"]) and each["source"] for each in found)
    tables = [*as_dict["storage"].values(), *as_dict["gpu"].values(), as_dict["transfer"]]
    assert all(table["region"] for table in tables)
    json.dumps(as_dict)


def test_built_in_archives_have_their_minimum_durations():
    storage = load_prices().storage
    days = {name: price.minimum_storage_s / 86400 for name, price in storage.items()}
    assert days["s3-standard"] == 0
    assert days["s3-standard-ia"] == 30
    assert days["s3-glacier-instant"] == days["s3-glacier-flexible"] == 90
    assert days["s3-glacier-deep"] == 180
    assert storage["s3-express"].minimum_storage_s == 3600


def test_on_premises_price_by_hand(load):
    quote = f"{{usd = VALUE, {QUOTE}}}"
    prices = load(
        OWN
        + BARE.replace("object", "on_premises")
        + f"capital_usd_per_tb = {quote.replace('VALUE', '365')}\n"
        + f"power_w_per_tb = {quote.replace('VALUE', '2')}\n"
        + f"usd_per_kwh = {quote.replace('VALUE', '0.1')}\n"
        + "lifetime_years = 5\npower_usage_effectiveness = 1.5\n"
    )
    # 365 USD over 5 years are 6 for 30 days; 2 W x 1.5 x 720 h = 2.16 kWh are 0.216. Per TB.
    assert prices.storage_named("s").usd_per_gb_month.mid == pytest.approx(6.216e-3)


def test_own_file_replaces_entries_and_keeps_the_others(load):
    prices = load(OWN + WEKA)
    weka = prices.storage_named("weka")
    assert weka.usd_per_gb_month == Band(0.05, 0.08, 0.1)
    assert weka.storage_usd_per_gb_month == Quote(
        Band(0.05, 0.08, 0.1), "2027-05", "offer of May 2027"
    )
    assert weka.bytes_per_s_per_byte == pytest.approx(800e6 / 2**40)
    assert prices.storage_named("s3-standard") == load_prices().storage_named("s3-standard")
    assert len(prices.files) == 2


def test_weka_without_a_price_says_what_to_enter():
    with pytest.raises(ConfigError, match="enter what yours costs") as caught:
        _ = load_prices().storage_named("weka").usd_per_gb_month
    assert caught.value.field == "storage.weka.storage_usd_per_gb_month"
    with pytest.raises(ConfigError) as caught:
        _ = load_prices().storage_named("gpfs").bytes_per_s_per_byte
    assert caught.value.field == "storage.gpfs.throughput_mb_per_s_per_tib"


def test_unknown_name_is_suggested():
    with pytest.raises(ConfigError, match="Did you mean s3-express"):
        load_prices().storage_named("s3-expres")
    with pytest.raises(ConfigError) as caught:
        load_prices().gpu_named("h1000")
    assert caught.value.field == "gpu"


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("", "version"),
        ("version = 2", "version"),
        ("version = ", "prices"),
        (OWN + "[stroage.x]", "stroage"),
        (OWN + BARE + "put_usd_per_100 = 1", "storage.s.put_usd_per_100"),
        (OWN + BARE.replace('kind = "object"\n', ""), "storage.s.kind"),
        (OWN + BARE.replace("object", "cloud"), "storage.s.kind"),
        (OWN + BARE.replace("1000000000", "1024"), "storage.s.bytes_per_gb"),
        (OWN + BARE + "put_usd_per_1000 = 0.005", "storage.s.put_usd_per_1000"),
        (OWN + BARE + "lifecycle_out = 1", "storage.s.lifecycle_out"),
        (OWN + BARE + "minimum_storage_hours = -1", "storage.s.minimum_storage_hours"),
        (OWN + BARE + "throughput_mb_per_s_per_tib = 0", "storage.s.throughput_mb_per_s_per_tib"),
        (OWN + BARE + "minimum_storage_hours = nan", "storage.s.minimum_storage_hours"),
        (OWN + "[gpu.h100]\nregion = 'any'", "gpu.h100.usd_per_gpu_hour"),
        (OWN + "storage = 3", "sources.storage"),
    ],
)
def test_file_with_a_fault_names_it(load, text, field):
    with pytest.raises(ConfigError) as caught:
        load(text)
    assert caught.value.field == field
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("quote", "field"),
    [
        (f"{{usd = -1, {QUOTE}}}", ".usd"),
        (f"{{usd = '1', {QUOTE}}}", ".usd"),
        (f"{{usd = 1e9, {QUOTE}}}", ".usd"),
        (f"{{low = 2, mid = 1, high = 3, {QUOTE}}}", ""),
        (f"{{low = 1, mid = 1, {QUOTE}}}", ""),
        (f"{{usd = 1, mid = 1, {QUOTE}}}", ""),
        (f"{{eur = 1, {QUOTE}}}", ".eur"),
        ('{usd = 1, source = "offer"}', ".as_of"),
        ('{usd = 1, as_of = "May", source = "offer"}', ".as_of"),
        ('{usd = 1, as_of = "2027-05"}', ".source"),
        ('{usd = 1, as_of = "2027-05", source = "hearsay"}', ".source"),
    ],
)
def test_number_with_a_fault_names_it(load, quote, field):
    with pytest.raises(ConfigError) as caught:
        load(OWN + BARE + f"put_usd_per_1000 = {quote}\n")
    assert caught.value.field == f"storage.s.put_usd_per_1000{field}"


def test_file_that_is_missing_is_a_storage_error(tmp_path):
    with pytest.raises(StorageError):
        load_prices(tmp_path / "none.toml")


def test_file_that_is_no_text_is_refused(tmp_path):
    path = tmp_path / "prices.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="no text"):
        load_prices(path)
