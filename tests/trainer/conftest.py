import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import pytest

from tests.trainer.rank_processes import Launcher


@pytest.fixture
def launcher(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Launcher]:
    sees_gpus = request.node.get_closest_marker("gpu") is not None
    launcher = Launcher(tmp_path, sees_gpus=sees_gpus)
    yield launcher
    launcher.close()
