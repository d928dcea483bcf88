"""Find out what is wrong with a command of a page."""

import re
from collections.abc import Callable, Sequence

from tests.docs import other_programs, own_programs
from tests.docs.pages import ROOT

UNCHECKED = {
    *("cat", "df", "echo", "eval", "exit", "export", "grep", "nc", "sha256sum", "wait"),
    *("apptainer", "argocd", "ctr", "curl", "flux", "python", "skopeo"),
}
"""Programs whose options no test compares with the program."""
OWN_FOLDERS = ("bench/", "charts/", "docs/", "manifests/", "tests/", "tools/")
_Check = Callable[[Sequence[str]], str | None]


def problem(words: Sequence[str], *, whole: bool = True) -> str | None:
    """Return what is wrong with a command, or None.

    Args:
        words: The program and its arguments.
        whole: Whether the command has all its arguments. In a sentence some may be missing.
    """
    program, arguments = words[0], list(words[1:])
    nested = _nested(program, arguments)
    if nested is not None:
        arguments, inner = nested
        if (found := problem(inner, whole=whole)) is not None:
            return found
    checks: dict[str, _Check] = {
        "ddpjob": lambda given: own_programs.ddpjob_problem(given, whole=whole),
        "ddp-trainer": lambda given: own_programs.ddp_trainer_problem(given, whole=whole),
        "kubectl": lambda given: other_programs.kubectl_problem(given, whole=whole),
        "make": own_programs.make_problem,
        "pip": own_programs.pip_problem,
        "helm": other_programs.value_problem,
        "docker": other_programs.docker_problem,
        "torchrun": own_programs.torchrun_problem,
        "pytest": lambda _: None,
        "pre-commit": lambda _: None,
    }
    if program not in checks and program not in UNCHECKED:
        return f"no test knows the program {program}"
    if (found := _missing_file(arguments)) is not None:
        return found
    return checks[program](arguments) if program in checks else None


def _nested(program: str, arguments: list[str]) -> tuple[list[str], list[str]] | None:
    """Return the arguments of a program that starts another one, and the command that it starts."""
    if program == "python" and arguments[:1] == ["-m"] and arguments[1:2] != ["ddp_trainer"]:
        return None
    if program in ("python", "torchrun") and "ddp_trainer" in arguments:
        at = arguments.index("ddp_trainer")
        return arguments[: at + 1], ["ddp-trainer", *arguments[at + 1 :]]
    if program == "kubectl" and "--" in arguments:
        at = arguments.index("--")
        return arguments[:at], arguments[at + 1 :]
    starts = [at for at, word in enumerate(arguments) if word in ("torchrun", "python")]
    if program in ("apptainer", "srun") and starts:
        return arguments[: starts[0]], arguments[starts[0] :]
    return None


def _missing_file(arguments: Sequence[str]) -> str | None:
    """Return the file of the repository that a command names and that does not exist."""
    for word in arguments:
        path = word.partition("::")[0]
        if (
            re.match(r"[\w./-]+$", path)
            and path.startswith(OWN_FOLDERS)
            and not (ROOT / path).exists()
        ):
            return f"{path} does not exist"
    return None
