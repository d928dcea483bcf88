"""Read the command of a pod that starts ranks: torchrun, or a program that is one rank.

A DDPJob starts torchrun itself, and its command is that of each rank. So the launcher and its
arguments are taken away, and what they say about the number of ranks is kept.
"""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

_SHELLS = frozenset({"sh", "bash"})
_SHELL_SYNTAX = re.compile(r"[;&|<>$`()\n*?]")
_PYTHON = re.compile(r"(.*/)?python[0-9.]*")
_MODULES = frozenset({"torch.distributed.run", "torch.distributed.launch"})
_FLAGS = frozenset({"standalone", "no_python", "run_path", "module", "use_env", "no_use_env"})
"""Arguments of torchrun without a value."""
_RANKS = "nproc_per_node"


@dataclass(frozen=True)
class RankCommand:
    """The command of each rank."""

    command: list[str]
    """Program and arguments."""
    by_torchrun: bool
    """Whether torchrun started the command."""
    ranks: str | None = None
    """The number of ranks per pod that torchrun was given: a number, `auto`, `gpu` or `cpu`."""


def read_launch(argv: Sequence[str]) -> RankCommand | None:
    """Return the command of each rank, or None for a shell script that nobody can take apart.

    Args:
        argv: Command and arguments of the container.
    """
    words = list(argv)
    if len(words) >= 3 and _name(words[0]) in _SHELLS and words[1] in {"-c", "-ec", "-xc"}:  # noqa: PLR2004
        if _SHELL_SYNTAX.search(words[2]):
            return None
        words = shlex.split(words[2])
    rest = _after_launcher(words)
    return RankCommand(words, by_torchrun=False) if rest is None else _without_options(rest)


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _after_launcher(words: Sequence[str]) -> list[str] | None:
    """Return the arguments of torchrun, or None if the command does not start it."""
    if words and _name(words[0]) == "torchrun":
        return list(words[1:])
    if words and _PYTHON.fullmatch(words[0]):
        flags = next((i for i, word in enumerate(words[1:], 1) if word in {"-m"} | _MODULES), 0)
        if words[flags : flags + 1] == ["-m"] and words[flags + 1 : flags + 2]:
            module = words[flags + 1]
            return list(words[flags + 2 :]) if module in _MODULES else None
    return None


def _without_options(words: Sequence[str]) -> RankCommand:
    """Return the command behind the options of torchrun."""
    waiting = list(words)
    found: dict[str, str] = {}
    while waiting and waiting[0].startswith("-"):
        word = waiting.pop(0)
        name, equals, value = word.lstrip("-").replace("-", "_").partition("=")
        if equals:
            found[name] = word.partition("=")[2]
        elif name in _FLAGS or name == "m":
            found[name] = ""
        elif waiting:
            found[name] = waiting.pop(0)
        else:
            found[name] = value
    if "no_python" in found:
        head = []
    elif "module" in found or "m" in found:
        head = ["python", "-m"]
    else:
        head = ["python"]
    return RankCommand([*head, *waiting], by_torchrun=True, ranks=found.get(_RANKS))
