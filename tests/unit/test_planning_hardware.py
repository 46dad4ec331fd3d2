import dataclasses
import json
import re

import pytest

from gdsckpt.errors import ConfigError
from gdsckpt.planning.band import Band
from gdsckpt.planning.hardware import NODES, Figure, node


def test_node_unknown_name_is_refused_with_those_known():
    with pytest.raises(ConfigError, match="h100-8") as info:
        node("h100")
    assert info.value.field == "node"


@pytest.mark.parametrize("name", list(NODES))
def test_node_figures_are_positive_with_source_and_date(name):
    found = node(name)
    figures = [
        value
        for value in (getattr(found, field.name) for field in dataclasses.fields(found))
        if isinstance(value, Figure)
    ]
    assert len(figures) >= 6
    for figure in figures:
        assert figure.value.low > 0
        assert figure.source
        assert re.fullmatch(r"20\d\d-\d\d", figure.as_of)
    assert json.loads(json.dumps(found.as_dict()))["name"] == name


def test_nvl72_tray_has_four_gpus():
    assert node("gb200-nvl72-tray").gpus == 4
    assert node("gb200-nvl72-tray").link == "NVLink-C2C"


def test_node_drives_together_are_limited_where_a_limit_is_known():
    h200 = node("h200-8")
    assert h200.nvme_write_bytes_per_s == Band(20e9, 26e9, 45e9)
    unlimited = dataclasses.replace(h200, drives_max_bytes_per_s=None)
    assert unlimited.nvme_write_bytes_per_s == Band(24e9, 32e9, 64e9)
    assert h200.nvme_bytes.mid == 8 * 3.84e12
