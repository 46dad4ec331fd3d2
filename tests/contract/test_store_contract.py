import secrets

import pytest
from seaweed import BUCKET, point_boto3_at

from gdsckpt.config import Config
from gdsckpt.store import open_store
from gdsckpt.store.local import LocalStore
from gdsckpt.store.memory import MemoryStore
from gdsckpt.testing import store_contract

CONTRACTS = ("ObjectContract", "ConditionContract", "ListingContract", "UploadContract")


@pytest.fixture(scope="module")
def s3_store(seaweed, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        point_boto3_at(seaweed, patch, tmp_path_factory.mktemp("aws"))
        store, _ = open_store(f"s3://{BUCKET}/", Config())
        yield store
        store.close()


class Memory:
    @pytest.fixture
    def store(self):
        return MemoryStore("contract")


class Local:
    @pytest.fixture
    def store(self, tmp_path):
        return LocalStore(tmp_path / "objects")


@pytest.mark.s3
class S3:
    @pytest.fixture
    def store(self, s3_store):
        return s3_store


class Composed:
    """As ``open_store`` gives it: with retries around a limit."""

    @pytest.fixture
    def store(self):
        config = Config(upload_concurrency=2)
        return open_store(f"memory://{secrets.token_hex(8)}/", config)[0]


for _store in (Memory, Local, S3, Composed):
    for _name in CONTRACTS:
        _class = f"Test{_store.__name__}{_name}"
        globals()[_class] = type(_class, (_store, getattr(store_contract, _name)), {})
