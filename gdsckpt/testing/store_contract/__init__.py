"""What every store has to do, as tests: make a child of each class and give it a store.

    from gdsckpt.testing import store_contract

    class TestMyObjects(store_contract.ObjectContract):
        @pytest.fixture
        def store(self):
            return MyStore(...)

The tests write below prefixes of their own, and leave their objects there.
"""

from gdsckpt.testing.store_contract.listings import ListingContract
from gdsckpt.testing.store_contract.objects import ConditionContract, ObjectContract
from gdsckpt.testing.store_contract.uploads import UploadContract

__all__ = ["ConditionContract", "ListingContract", "ObjectContract", "UploadContract"]
