"""Tests on several hosts need a lab; where there can be none they are skipped, and say why."""

from __future__ import annotations

import pytest

from tests.hosts.lab import why_not


@pytest.fixture(autouse=True, scope="session")
def a_lab_can_be_made() -> None:
    """Skip everything here without root, or without what makes namespaces."""
    if reason := why_not():
        pytest.skip(reason)
