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
    point_boto3_at(seaweed, monkeypatch, tmp_path)
    return dict(os.environ)


def point_boto3_at(server, patch, directory, *, identity=None, endpoint=None):
    """Set the variables of boto3.

    Args:
        server: The server.
        patch: A ``pytest.MonkeyPatch``.
        directory: Where boto3 shall look for files, and find none.
        identity: Whose keys; the owner's if None.
        endpoint: URL of a proxy before the server, if any.
    """
    for name in (*_OWN, *(name.lower() for name in _OWN)):
        patch.delenv(name, raising=False)
    patch.setenv("AWS_CONFIG_FILE", str(directory / "no-aws-config"))
    patch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(directory / "no-aws-credentials"))
    patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name, value in server.environment_of(identity).items():
        patch.setenv(name, value)
    if endpoint is not None:
        patch.setenv("AWS_ENDPOINT_URL", endpoint)
