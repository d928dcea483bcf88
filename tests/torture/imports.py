"""Import once what all attempts import.

Each attempt is a fork of this process. The loop imports much of torch only when it needs it, and a
fork that did so would take a second for it: most of the time of a case.
"""

import importlib
import json
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ddp_trainer.ranks.environment import Ranks
from tests.torture import gangs
from tests.torture.attempts import RECORDS, Attempt
from tests.torture.gangs import Act

SAMPLES = (
    Attempt(1, copies=2),
    *(Attempt(1, world=2, strategy=strategy) for strategy in ("ddp", "zero1", "fsdp2")),
)
"""Attempts that together use each part of the loop."""


def import_all(folder: Path) -> None:
    """Import in this process what attempts import. Run them in subfolders of a folder."""
    for number, attempt in enumerate(SAMPLES):
        home = folder / f"imports-{number}"
        (home / RECORDS).mkdir(parents=True)
        for act in (attempt.train, replace(attempt, number=2).start):
            _import_as(act, attempt.world, home)


def _import_as(act: Act, world: int, home: Path) -> None:
    """Let all ranks call `act`, and import in this process what rank 0 has imported."""

    known = set(sys.modules)

    def acted(home: Path, ranks: Ranks) -> str:
        act(home, ranks)
        return json.dumps([name for name in sys.modules if name not in known])

    for name in json.loads(gangs.run(acted, world, home).answer):
        # A module that torch has made at run time cannot be imported.
        with suppress(ImportError):
            importlib.import_module(name)
