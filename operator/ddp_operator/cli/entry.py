"""Start `ddpjob`, or report the packages that are not installed."""

import sys
from importlib.util import find_spec
from pathlib import Path

from ddp_wire.exit_codes import ExitCode

_MODULES = ("aiohttp", "click", "kubernetes", "rich", "yaml")
"""Top-level modules of the packages in the extra `cli`."""


def main() -> None:
    """Run `ddpjob`, or exit with one sentence if packages of the extra `cli` are missing."""
    missing = [module for module in _MODULES if find_spec(module) is None]
    if missing:
        names = ", ".join(missing)
        how = "install the extra [cli] of ddp-trainer (in a clone: pip install '.[cli]')"
        print(f"ddpjob needs {names}: {how}", file=sys.stderr)
        sys.exit(ExitCode.BAD_INPUT)
    from ddp_operator.cli import main as command  # noqa: PLC0415 - it imports these packages

    called = Path(sys.argv[0]).name
    # kubectl starts its plugins under this name.
    command.main(prog_name=called.replace("kubectl-", "kubectl ") or None)
