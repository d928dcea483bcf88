"""Try checkpoints and records to destruction, as `make torture` does.

    python -m tests.torture [--part NAME …] [--seed 0] [--cases N] [--only TEXT] [--skip N]

The last lines are the counts. The exit code is 1 if a start loads a wrong state, starts over
without a sentence, hangs, or ends by a traceback.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence

from tests.harness import ending
from tests.torture import kills
from tests.torture.cases import PARTS, ROOT, Counts, play
from tests.torture.lab import Case, open_lab
from tests.torture.volumes import private_mounts

KILLS = "kills"
"""Part that kills ranks and pods of a whole run."""
MINUTE = 60.0


def main() -> None:
    """Play all cases of the chosen parts, and print their counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=[*PARTS, KILLS], action="append", help="run only this")
    parser.add_argument("--seed", type=int, default=int(os.environ.get("DDP_SEED") or "0"))
    parser.add_argument("--cases", type=int, help="play at most so many cases of each part")
    parser.add_argument("--only", default="", help="play only cases with this text in their name")
    parser.add_argument("--skip", type=int, default=0, help="leave out the first cases of a part")
    parser.add_argument("--kills", type=int, default=kills.KILLS, help="kills of part kills")
    options = parser.parse_args()
    wanted, began = options.part or [*PARTS, KILLS], time.monotonic()
    left_out = [] if private_mounts() else [part for part in wanted if part in ROOT]
    counts, failed = Counts(), list[str]()
    try:
        _play([part for part in wanted if part in PARTS and part not in left_out], options, counts)
        if KILLS in wanted:
            failed = kills.run(options.kills, options.seed)
    finally:  # An interrupted torture prints its counts, too.
        for part in left_out:
            print(f"not played: {part}, which needs root")
        if counts.seen:
            print(f"\n{counts.table()}")
        total = sum(each.total() for each in counts.seen.values())
        killed = f", {len(failed)} violations by {KILLS}" if KILLS in wanted else ""
        seconds = time.monotonic() - began
        print(
            f"torture, SEED={options.seed}: {total} cases in {seconds:.0f} s,"
            f" {len(counts.bad)} bad{killed}",
            flush=True,
        )
    sys.exit(1 if counts.bad or failed else 0)


def _play(parts: Sequence[str], options: argparse.Namespace, counts: Counts) -> None:
    """Play the cases of some parts."""
    if not parts:
        return
    lab, folder = open_lab(options.seed)
    with folder:
        for part in parts:
            cases = [case for case in PARTS[part](lab) if options.only in case.name][options.skip :]
            if options.cases is not None:
                cases = lab.random(part).sample(cases, min(options.cases, len(cases)))
            print(f"{part}: {len(cases)} cases", flush=True)
            play(_reported(part, cases, counts), counts)


def _reported(part: str, cases: Sequence[Case], counts: Counts) -> Iterator[Case]:
    """Yield cases, and print every minute how many have been played."""
    printed = time.monotonic()
    for number, case in enumerate(cases):
        if time.monotonic() > printed + MINUTE:
            printed = time.monotonic()
            print(f"{part}: {number} of {len(cases)} played, {len(counts.bad)} bad", flush=True)
        yield case


if __name__ == "__main__":
    ending.script(main)
