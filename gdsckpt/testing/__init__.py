"""Contract suites for stores of third parties, and wrappers that make stores fail.

Needs pytest. Nothing else of gdsckpt imports it.
"""

import pytest

# So that a failed assertion shows its values, as in a test file.
pytest.register_assert_rewrite("gdsckpt.testing.store_contract")
