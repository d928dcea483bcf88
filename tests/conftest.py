"""Settings that apply to all tests."""

import gc
import importlib
import os
import sys
from types import ModuleType
from typing import Any

from hypothesis import HealthCheck, settings

from tests.garbage import exempt_all_objects
from tests.harness.ending import clean_up_when_terminated

# Must be set before the first import of torch or NumPy: all processes of tests share the cores.
os.environ["OMP_NUM_THREADS"] = "1"

# Deadlines are off because a slow machine is no fault of the code. All other settings are
# Hypothesis' defaults.
settings.register_profile(
    "untimed", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("untimed")


def pytest_configure() -> None:
    """Let SIGTERM stop the cluster and the processes that the tests started."""
    clean_up_when_terminated()


def pytest_collection_finish() -> None:
    """Exempt all imported modules and collected tests from garbage collections."""
    gc.collect()
    exempt_all_objects()


def _defer_grammar_of_iris() -> None:
    """Delay jsonschema's import of the grammar of IRIs until a schema needs it. It takes 2 s."""
    name = "rfc3987_syntax"
    stub = ModuleType(name)

    def is_valid_syntax(term: str, value: str) -> Any:
        if sys.modules.get(name) is stub:
            del sys.modules[name]
        return importlib.import_module(name).is_valid_syntax(term, value)

    vars(stub)["is_valid_syntax"] = is_valid_syntax
    sys.modules.setdefault(name, stub)


_defer_grammar_of_iris()
