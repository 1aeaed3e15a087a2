"""Inputs of the ops, calls of them and their references: what many test modules share."""

import pytest

# A failure shows the values compared, as in a test.
pytest.register_assert_rewrite(
    "problems.grus", "problems.lstms", "problems.nets", "problems.properties", "problems.refusals"
)
