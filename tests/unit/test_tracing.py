"""Ranges without a profiler; tests/flow/test_nvtx.py has one."""

import pytest

from gdsckpt import native, tracing
from gdsckpt.errors import ConfigError


def test_nvtx_is_compiled_where_the_header_is():
    assert native.nvtx_compiled(), "nvidia-nvtx is a requirement of the build"


def test_stage_lets_exceptions_through():
    with pytest.raises(KeyError), tracing.stage("sync", 2**64 - 1):
        raise KeyError


def test_stage_unknown_name_is_refused():
    with pytest.raises(ConfigError, match='no range "snyc"; use one of plan, stage') as info:
        tracing.stage("snyc")
    assert info.value.field == "name"


def test_stage_names_are_those_of_the_native_core():
    for name in tracing.Stage.__args__:
        with tracing.stage(name):
            pass
