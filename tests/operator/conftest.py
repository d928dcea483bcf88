"""Fixtures for tests of the operator."""

from collections.abc import AsyncIterator

import pytest

from tests.operator.fake_api import FakeApi


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    """Yield an API server without objects."""
    found = FakeApi()
    await found.start()
    yield found
    await found.stop()
