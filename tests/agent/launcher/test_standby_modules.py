"""Modules that the standby imports in advance."""

import importlib.util

import pytest

from ddp_agent.launcher.standby import PRELOADED_MODULES


@pytest.mark.parametrize("module", PRELOADED_MODULES)
def test_each_module_that_the_standby_preloads_exists(module: str) -> None:
    """The standby skips a missing module: a wrong name would only make warm starts slower."""
    assert importlib.util.find_spec(module) is not None
