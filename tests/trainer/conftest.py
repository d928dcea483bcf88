import os
import sys
from collections.abc import Iterator
from pathlib import Path

# Must be set before the import of torch or NumPy. All ranks of a test share two cores.
os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parent))

import pytest

from tests.trainer.rank_processes import Launcher


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    launcher = Launcher(tmp_path)
    yield launcher
    launcher.close()
