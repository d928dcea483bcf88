"""Parse a Dockerfile to find the files that one of its targets depends on."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field
from typing import Final

from tests.harness.errors import HarnessError

_EVERYTHING: Final = "."


@dataclass
class _Stage:
    """One stage: the stages that it builds on, and the context paths that it reads."""

    needs: set[str] = field(default_factory=set)
    sources: set[str] = field(default_factory=set)


def sources(text: str, target: str) -> set[str]:
    """Return the paths of the build context that a target reads, as patterns.

    Args:
        text: The Dockerfile.
        target: The name of the stage that is built.

    Raises:
        HarnessError: There is no such stage.
    """
    stages = _stages(text)
    if target not in stages:
        names = ", ".join(sorted(name for name in stages if not name.isdigit()))
        raise HarnessError(f"The Dockerfile has no target {target}; it has: {names}.")
    found: set[str] = set()
    seen: set[str] = set()
    waiting = [target]
    while waiting:
        name = waiting.pop()
        if name in seen or name not in stages:
            continue
        seen.add(name)
        found |= stages[name].sources
        waiting.extend(stages[name].needs)
    return found


def _stages(text: str) -> dict[str, _Stage]:
    """Return the stages by name, and by number as text."""
    stages: dict[str, _Stage] = {}
    current = _Stage()
    count = 0
    for line in _instructions(text):
        verb, _, rest = line.partition(" ")
        match verb.upper():
            case "FROM":
                current = _Stage()
                words = [word for word in rest.split() if not word.startswith("--")]
                current.needs.add(words[0])
                stages[str(count)] = current
                count += 1
                if len(words) > 1 and words[1].upper() == "AS":
                    stages[words[2]] = current
            case "COPY" | "ADD":
                _read_copy(rest, current)
            case "RUN":
                _read_mounts(rest, current)
            case _:
                pass
    return stages


def _instructions(text: str) -> list[str]:
    """Return the instructions, each on one line, without comments."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\s*\n", " ", "\n".join(lines))
    return [line.strip() for line in joined.splitlines() if line.strip()]


def _read_copy(rest: str, stage: _Stage) -> None:
    words = rest.split()
    flags = [word for word in words if word.startswith("--")]
    origin = next(
        (flag.removeprefix("--from=") for flag in flags if flag.startswith("--from=")), ""
    )
    if origin:
        stage.needs.add(origin)
        return
    plain = " ".join(words[len(flags) :])
    parts = json.loads(plain) if plain.startswith("[") else shlex.split(plain)
    stage.sources.update(_path(part) for part in parts[:-1])


def _read_mounts(rest: str, stage: _Stage) -> None:
    for mount in re.findall(r"--mount=(\S+)", rest):
        parts = (part.partition("=") for part in str(mount).split(","))
        options = {key: value for key, _, value in parts}
        if options.get("type", "bind") != "bind":
            continue
        if "from" in options:
            stage.needs.add(options["from"])
        else:
            stage.sources.add(_path(options.get("source", options.get("src", _EVERYTHING))))


def _path(written: str) -> str:
    """Return a context path as a pattern, with a wildcard for each build argument."""
    pattern = re.sub(r"\$\{[^}]*\}|\$\w+", "*", written)
    return pattern.removeprefix("./").strip("/") or _EVERYTHING
