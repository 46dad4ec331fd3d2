"""Fixtures of the tests that go to the real S3 server."""

import zlib

import pytest
from fault_proxy import FaultProxy
from remote_cases import S3_SETTINGS, save_large
from seaweed import BUCKET, point_boto3_at

import gdsckpt


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A file of three parts."""
    return save_large(tmp_path_factory.mktemp("saved") / "a.pt")


@pytest.fixture(scope="module")
def module_proxy(seaweed):
    with FaultProxy(seaweed.port) as proxy:
        yield proxy


@pytest.fixture
def proxy(module_proxy, s3_environment):
    module_proxy.heal()
    module_proxy.seen.clear()
    yield module_proxy
    module_proxy.heal()


@pytest.fixture(scope="module")
def stored(seaweed, saved, tmp_path_factory):
    """URL of an object that is only read."""
    with pytest.MonkeyPatch.context() as patch:
        point_boto3_at(seaweed, patch, tmp_path_factory.mktemp("aws"))
        gdsckpt.upload(saved, f"s3://{BUCKET}/stored/a.pt", config=S3_SETTINGS)
    return f"s3://{BUCKET}/stored/a.pt"


@pytest.fixture
def harmed(proxy):
    """Settings of calls that go through the proxy."""
    return {**S3_SETTINGS, "endpoint_url": proxy.endpoint}


@pytest.fixture
def url(request):
    return f"s3://{BUCKET}/{zlib.crc32(request.node.name.encode()):08x}/a.pt"
