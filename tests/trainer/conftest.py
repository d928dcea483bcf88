import signal
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import pytest

from ddp_wire.contract import Env
from tests.trainer.rank_processes import Launcher


@pytest.fixture
def launcher(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Launcher]:
    sees_gpus = request.node.get_closest_marker("gpu") is not None
    launcher = Launcher(tmp_path, sees_gpus=sees_gpus)
    yield launcher
    launcher.close()


@pytest.fixture(autouse=True)
def _events_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs in the process of the test print events with all their fields."""
    monkeypatch.setenv(Env.LOG_FORMAT, "json")


@pytest.fixture(autouse=True)
def _signal_handlers() -> Iterator[None]:
    """Restore the signal handlers that a command in the process of the test has replaced."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    signal.set_wakeup_fd(-1)
    for number, handler in before.items():
        signal.signal(number, handler)
