"""Compare the options of kubectl and helm with their help, and the fields and values with ours."""

import functools
import itertools
import json
import re
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from ddp_operator.api.job import InvalidJobError, parse_job
from tests.docs.own_programs import PLACEHOLDER, ddpjob_problem
from tests.docs.pages import ROOT
from tests.harness import binaries
from tests.operator.schema_tools import root_schema

_FLAG = re.compile(
    r"^ +(?:-(?P<short>\w), )?--(?P<name>[\w-]+)(?:=(?P<default>\S*?):|(?P<type> [\w/]+)?  )",
    re.MULTILINE,
)
_COMMANDS = re.compile(
    r"^(?!Usage|Examples)[A-Z][^\n]*:\n((?: +[a-z][\w-]* +\S.*\n)+)", re.MULTILINE
)


@functools.cache
def _help(program: str, *arguments: str) -> str:
    path = binaries.helm() if program == "helm" else binaries.kubectl()
    shown = subprocess.run([path, *arguments], capture_output=True, text=True, check=False)
    return shown.stdout


@functools.cache
def flags(program: str, *commands: str) -> dict[str, bool]:
    """Return the options of a command, and whether each takes a value."""
    texts = [_help(program, *commands, "--help")]
    texts += [_help(program, "options")] if program == "kubectl" else []
    found = {"-h": False, "--help": False}
    for match in (match for text in texts for match in _FLAG.finditer(text)):
        default = match["default"]
        takes = default not in ("true", "false") if default is not None else bool(match["type"])
        found[f"--{match['name']}"] = takes
        if match["short"]:
            found[f"-{match['short']}"] = takes
    return found


def subcommands(program: str, *commands: str) -> set[str]:
    """Return the names of the commands below a command."""
    text = _help(program, *commands, "--help")
    return {line.split()[0] for part in _COMMANDS.findall(text) for line in part.splitlines()}


def option_problem(program: str, words: Sequence[str]) -> str | None:
    """Return the command or the option that kubectl or helm does not have."""
    commands: list[str] = []
    possible = subcommands(program)
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        if word == "--":
            break
        if word.startswith("-"):
            known = flags(program, *commands)
            options = _options(word)
            if unknown := [one for one in options if one not in known]:
                return f"{program} {' '.join(commands)} has no option {unknown[0]}"
            if known[options[-1]] and "=" not in word and waiting:
                waiting.pop(0)
        elif possible and word in possible:
            commands.append(word)
            possible = subcommands(program, *commands)
        elif possible and not PLACEHOLDER.fullmatch(word):
            return f"{program} {' '.join(commands)} has no command {word}"
        else:
            possible = set()
    return None


def _options(word: str) -> list[str]:
    """Return the options in a word without values: several if it joins short ones, as `-it`."""
    name = word.partition("=")[0]
    return [name] if name.startswith("--") else [f"-{letter}" for letter in name[1:]]


def kubectl_problem(words: Sequence[str], *, whole: bool = True) -> str | None:
    """Return what is wrong with the arguments of kubectl: commands, options, fields of a DDPJob."""
    if words[:1] == ["ddpjob"]:
        return ddpjob_problem(words[1:], whole=whole)
    return option_problem("kubectl", words) or _field_problem(words) or _patch_problem(words)


def _field_problem(words: Sequence[str]) -> str | None:
    """Return the field for `kubectl explain ddpjob.FIELD` that a DDPJob does not have."""
    for word in words[1:] if words[:1] == ["explain"] else []:
        schema, (kind, *path) = root_schema(), word.split(".")
        for name in path if kind in ("ddpjob", "ddpjobs") else []:
            schema = schema.get("items", schema).get("properties", {})
            if name not in schema:
                return f"a DDPJob has no field {'.'.join(path)}"
            schema = schema[name]
    return None


def _patch_problem(words: Sequence[str]) -> str | None:
    """Return what is wrong with the spec of `kubectl patch ddpjob … -p JSON`."""
    if words[:1] != ["patch"] or "-p" not in words or not words[1].startswith("ddpjob"):
        return None
    sample = ROOT / "manifests" / "samples" / "digits.yaml"
    job = yaml.safe_load(sample.read_text(encoding="utf-8"))
    try:
        parse_job(
            {**job, "spec": {**job["spec"], **json.loads(words[words.index("-p") + 1])["spec"]}}
        )
    except InvalidJobError as error:
        return str(error)
    return None


def value_problem(words: Sequence[str]) -> str | None:
    """Return the first chart value in `--set` and its kin that the chart does not have."""
    schema = json.loads((ROOT / "charts" / "values.schema.json").read_text(encoding="utf-8"))
    for word, given in zip(words, [*words[1:], ""], strict=True):
        if word.startswith("--set"):
            text = word.partition("=")[2] or given
            for path in re.findall(r"(?:^|,)([\w.]+)=", text):
                if not _has_value(schema, schema, path.split(".")):
                    return f"the chart has no value {path}"
    return None


def _has_value(schema: dict[str, Any], root: dict[str, Any], path: Sequence[str]) -> bool:
    if "$ref" in schema:
        schema = root["definitions"][schema["$ref"].rpartition("/")[2]]
    if not path or "properties" not in schema:
        return True
    return path[0] in schema["properties"] and _has_value(
        schema["properties"][path[0]], root, path[1:]
    )


def stages() -> Iterator[str]:
    """Yield the stages of the Dockerfile, which `docker build --target` may name."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    yield from re.findall(r"^FROM \S+ AS (\S+)$", text, re.MULTILINE)


def docker_problem(words: Sequence[str]) -> str | None:
    """Return the stage or the build argument that the Dockerfile does not have."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    for option, given in itertools.pairwise(words):
        if option == "--target" and given not in stages():
            return f"the Dockerfile has no stage {given}"
        if option == "--build-arg" and not re.search(
            rf"^ARG {given.split('=')[0]}\b", text, re.MULTILINE
        ):
            return f"the Dockerfile has no argument {given}"
    return None
