"""The generated reference pages name everything that the code declares, reads or returns."""

import argparse
import ast
import re
from enum import StrEnum
from functools import cache
from pathlib import Path

import pytest

from ddp_operator.cli.exit_codes import CommandCode
from ddp_operator.cli.main import main as ddpjob
from ddp_operator.runtime.settings import PREFIX, Settings
from ddp_trainer.commands.main import COMMANDS
from ddp_trainer.config.settings import describe
from ddp_wire.exit_codes import ExitCode
from ddp_wire.variables import Env
from tools.reference import attribute_docs, cli_page, settings_page
from tools.reference.environment_page import build_environment_page
from tools.reference.exit_codes_page import build_exit_codes_page
from tools.reference.markdown import table
from tools.reference.variables import FOR_TORCHRUN, VARIABLES

ROOT = Path(__file__).parents[2]
PRODUCT = [f for home in ("operator", "trainer") for f in sorted((ROOT / home).rglob("*.py"))]
VARIABLE = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)+")
NO_VARIABLES = {
    "EAI_NODATA",
    "F8_E4M3",
    "F8_E4M3FNUZ",
    "F8_E5M2",
    "F8_E5M2FNUZ",
    "IPC_LOCK",
    "SC_CLK_TCK",
    "TCP_KEEPCNT",
    "TCP_KEEPIDLE",
    "TCP_KEEPINTVL",
}
"""Names of the C library, the kernel and safetensors that look like names of variables."""
BY_LIBRARIES = {"HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY"}
"""Variables that only a library reads."""
BY_PART = {"PET_…"}
"""Variables whose names the code composes from parts."""


@cache
def nodes() -> list[tuple[str, ast.AST]]:
    """Yield all syntax nodes of the product, each with the name of its file."""
    return [
        (file.name, node)
        for file in PRODUCT
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    ]


def rows(page: str) -> list[str]:
    """Return the names in the first cells of all tables."""
    first = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    return [name for cell in first for name in re.findall(r"`([^`]+)`", cell)]


def test_each_setting_has_one_row_with_a_description_in_the_reference() -> None:
    page = settings_page.build_settings_page()
    known = re.findall(r"^  --([\w.]+)=", describe(), re.MULTILINE)
    assert sorted(rows(page)) == sorted(known)
    assert "checkpoint.every_seconds" in known
    assert '| `data.workers` | integer, ≥ 0 or auto or null | `"auto"` | Number of worker' in page
    assert "| `optimizer.betas` | list of 2: number | `[0.9, 0.99]` | Decay" in page
    assert not re.search(r"\|  \|$", page, re.MULTILINE), "a setting has no docstring"


def test_each_command_and_each_option_is_listed() -> None:
    page = cli_page.build_cli_page()
    for name in COMMANDS:
        assert f"### ddp-trainer {name}\n" in page
    for name, command in ddpjob.commands.items():
        section = page.partition(f"### ddpjob {name}\n")[2].partition("\n### ")[0]
        for option in [text for one in command.params for text in one.opts if text[0] == "-"]:
            assert option in section
    assert "`--weights average|last`" in page.replace("\\|", "|")
    assert "`--output OUTPUT` | folder to create; must not exist (required)" in page


def test_argparse_options_are_listed_as_users_type_them() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("place", nargs="?", metavar="DIR")
    parser.add_argument("-v", "--verbose", action="store_true", help="100%% of it, %(dest)s")
    place, verbose = parser._actions[1:]
    assert cli_page._spelling(place) == "[DIR]"
    assert cli_page._spelling(verbose) == "-v, --verbose"
    assert cli_page._help(verbose) == "100% of it, verbose"


def test_each_exit_code_is_listed_with_its_meaning() -> None:
    page = build_exit_codes_page()
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}
    assert listed == {*ExitCode, *CommandCode, 130, 137, 255}
    assert not re.search(r"\|  \|$", page, re.MULTILINE)


@pytest.mark.slow
def test_no_module_exits_with_an_undeclared_code() -> None:
    found = {
        (name, node.args[0].value)
        for name, node in nodes()
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"sys.exit", "os._exit"}
        if node.args and isinstance(node.args[0], ast.Constant)
    }
    assert {code for _, code in found} <= {0, 1}, found


def test_each_variable_of_the_product_is_listed() -> None:
    listed = rows(build_environment_page())
    assert len(listed) == len(set(listed))
    assert {str(one) for one in Env} <= set(listed)
    assert {PREFIX + name.upper() for name in Settings.model_fields} <= set(listed)


@pytest.mark.slow
def test_each_variable_in_the_code_is_listed() -> None:
    named = {
        node.value
        for _, node in nodes()
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if VARIABLE.fullmatch(node.value)
    }
    assert len(named) > 60
    assert named - set(rows(build_environment_page())) == NO_VARIABLES


@pytest.mark.slow
def test_each_declared_variable_is_in_the_code() -> None:
    declared = [one for group in VARIABLES.values() for one in group]
    names = {name for one in [*declared, *FOR_TORCHRUN] for name in one.names}
    text = "\n".join(file.read_text(encoding="utf-8") for file in PRODUCT)
    missing = {name for name in names if not re.search(rf"\b{name}\b", text)}
    assert missing == BY_LIBRARIES | BY_PART


def test_attribute_docstring_is_the_string_below_the_attribute() -> None:
    class Colour(StrEnum):
        RED = "red"
        """Color of a fire
        engine."""
        GREEN = "green"
        BLUE = "blue"
        """Color of the sky."""

    found = attribute_docs.attribute_docs(Colour)
    assert found == {"RED": "Color of a fire engine.", "BLUE": "Color of the sky."}


def test_table_cells_have_no_line_breaks_and_no_unescaped_bars() -> None:
    text = table(("a", "b"), [("one\ntwo", "x | y")])
    assert text.splitlines() == ["| a | b |", "| --- | --- |", "| one two | x \\| y |"]
