"""The real S3 server of the tests: started once in a session, for all test files."""

import os

import pytest

from gdsckpt.demo.seaweed import Seaweed, new_identity

BUCKET = "checkpoints"

# Taken out of the environment, so that no test meets the machine's own cloud.
_OWN = ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_REGION", "HTTP_PROXY", "HTTPS_PROXY")


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory):
    """The server; its first identity may do everything, ``reader`` only read and list."""
    reader = new_identity("reader", ["Read", "List"])
    writer = new_identity("writer", ["Write"])
    identities = [new_identity("owner"), reader, writer]
    with Seaweed(tmp_path_factory.mktemp("seaweed"), [BUCKET], identities=identities) as server:
        yield server


@pytest.fixture
def s3_environment(seaweed, monkeypatch, tmp_path):
    """Make boto3 find the server and the owner's keys, and nothing else of this machine."""
    for name in (*_OWN, *(name.lower() for name in _OWN)):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-aws-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no-aws-credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name, value in seaweed.environment_of().items():
        monkeypatch.setenv(name, value)
    return dict(os.environ)
