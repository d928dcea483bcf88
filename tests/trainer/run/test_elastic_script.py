"""The script of docs/use/elastic-state.md trains the same weights on any number of ranks."""

import re
from pathlib import Path

import pytest
import torch

from tests.trainer.rank_processes import Launcher

PAGE = Path(__file__).parents[3] / "docs" / "use" / "elastic-state.md"
TOTAL = "TOTAL = 10, 12"


def run(launcher: Launcher, folder: Path, world: int, updates: int) -> None:
    """Run the script up to an update."""
    (script,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert script.count(TOTAL) == 1
    shorter = script.replace(TOTAL, f"TOTAL = 10, {updates}")
    gang = launcher.call(
        "resize_probes:run_script", shorter, world=world, DDP_CHECKPOINT_DIR=str(folder)
    )
    assert gang.wait(60) == [0] * world, gang.err(0)


@pytest.mark.slow
def test_script_of_the_elastic_page_gives_the_same_weights_on_any_number_of_ranks(
    launcher: Launcher, tmp_path: Path
) -> None:
    run(launcher, tmp_path / "fixed", 2, 12)
    # The last batch of an epoch has 3 samples, so that one of 4 ranks has none.
    for world, updates in ((4, 6), (3, 7), (1, 9), (4, 12)):
        run(launcher, tmp_path / "chain", world, updates)
    one, other = (torch.load(tmp_path / name / "state.pt") for name in ("fixed", "chain"))
    assert (one["step"], one["samples"]) == (other["step"], other["samples"]) == (12, 2 * 43 + 20)
    for name, tensor in one["model"].items():
        assert tensor.allclose(other["model"][name], atol=1e-6, rtol=0), name
