"""Shared by many tests: inputs and calls of the ops, and their references."""

import pytest

# A failed assertion shows the compared values, as in a test.
pytest.register_assert_rewrite(
    "problems.grus", "problems.lstms", "problems.nets", "problems.properties", "problems.refusals"
)
