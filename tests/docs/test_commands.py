"""Each command on a page names programs, options, settings, targets and files that exist."""

import re
from pathlib import Path

import pytest

from tests.docs import other_programs
from tests.docs.pages import (
    ROOT,
    Block,
    fenced,
    fences,
    has_indented_code,
    inline_code,
    pages,
    without_fences,
)
from tests.docs.programs import problem
from tests.docs.shell import commands, split

SHELL = ("sh", "console")
LANGUAGES = {*SHELL, "dockerfile", "json", "mermaid", "python", "text", "yaml"}
GENERATED = ROOT / "docs" / "reference"
OWN = re.compile(r"(?:\.venv/bin/)?(?:ddpjob|ddp-trainer|make|kubectl|helm|pip install) ")


def problems(block: Block) -> list[str]:
    """Return what is wrong with the commands of a block."""
    found = [(words, problem(words)) for words in commands(block)]
    return [f"{block.place}: {' '.join(words)}: {wrong}" for words, wrong in found if wrong]


def test_each_block_of_code_names_its_language() -> None:
    blocks = [block for page in pages() for block in fences(page)]
    assert len(blocks) > 60
    assert [block.place for block in blocks if block.language not in LANGUAGES] == []
    assert [str(page) for page in pages() if has_indented_code(page)] == []


def test_no_page_has_code_without_content() -> None:
    empty = re.compile(r"(?<!`)``(?!`)")
    assert [str(page) for page in pages() if empty.search(without_fences(page))] == []


@pytest.mark.slow
def test_each_command_of_the_pages_is_right() -> None:
    blocks = fenced(*SHELL)
    assert len([words for block in blocks for words in commands(block)]) > 60
    assert [wrong for block in blocks for wrong in problems(block)] == []


@pytest.mark.slow
def test_each_command_within_a_sentence_is_right() -> None:
    written = [page for page in pages() if GENERATED not in page.parents]
    blocks = [block for page in written for block in inline_code(page) if OWN.match(block.text)]
    assert len(blocks) > 100
    found = [
        f"{block.place}: {block.text}: {wrong}"
        for block in blocks
        for words in split(block.text)
        if (wrong := problem(words, whole=False))
    ]
    assert found == []


@pytest.mark.api  # It needs helm.
def test_options_of_helm_on_the_pages_exist() -> None:
    blocks = [*fenced(*SHELL), *(block for page in pages() for block in inline_code(page))]
    given = [
        (block.place, words)
        for block in blocks
        if block.text.removeprefix("$ ").startswith("helm ") or block.language
        for words in (commands(block) if block.language else split(block.text))
        if words[0] == "helm"
    ]
    assert len(given) > 8
    found = [(place, other_programs.option_problem("helm", words[1:])) for place, words in given]
    assert [wrong for wrong in found if wrong[1]] == []


@pytest.mark.parametrize(
    ("command", "wrong"),
    [
        ("ddpjob run job.yaml --sett nodes=1", "No such option '--sett'"),
        ("ddpjob scale digits many", "'many' is not a valid integer"),
        ("ddpjob scale digits", "Missing argument 'NODES'"),
        ("ddpjob why digits flowers", "unexpected argument flowers"),
        ("ddpjob checkpoints fetch digits", "No such command 'fetch'"),
        ("ddpjob run job.yaml --set config.epoch=1", "epoch"),
        ("ddpjob run job.yaml --set procs=1", "procs: unknown field"),
        ("kubectl ddpjob list --everything", "No such option '--everything'"),
        ("ddp-trainer train --task a:b --epoch=1", "epoch"),
        ("ddp-trainer export --output o --format onnx", "--format"),
        ("ddp-trainer fit", "no command fit"),
        ("torchrun --nproc-per-nodes 2 -m ddp_trainer train", "--nproc-per-nodes"),
        ("torchrun --nproc-per-node 2 -m ddp_trainer train --epoch=2", "epoch"),
        ("kubectl exec pod -- ddp-trainer fit", "no command fit"),
        ("kubectl aply -f job.yaml", "kubectl  has no command aply"),
        ("kubectl get ddpjobs --watching", "kubectl get has no option --watching"),
        ("kubectl -n team rollout state deployment/a", "kubectl rollout has no command state"),
        ("kubectl explain ddpjob.spec.node", "a DDPJob has no field spec.node"),
        ("""kubectl patch ddpjob a -p '{"spec":{"suspended":true}}'""", "suspended: unknown field"),
        ("helm install a charts/ --set image.repo=a", "the chart has no value image.repo"),
        ("make tests", "the Makefile has no target tests"),
        ("make test SEEDS=1", "the Makefile has no variable SEEDS"),
        ("kubectl apply -f manifests/samples/digit.yaml", "digit.yaml does not exist"),
        ("pip install '.[onx]'", "the package has no extra onx"),
        ("pip install ddp-trainer[cli]", "no package index has ddp-trainer"),
        ("docker build --target train .", "the Dockerfile has no stage train"),
        ("docker build --build-arg BASE=a .", "the Dockerfile has no argument BASE"),
        ("ddpjobs list", "no test knows the program ddpjobs"),
    ],
)
def test_wrong_command_is_found(command: str, wrong: str) -> None:
    [words] = split(command)
    assert wrong in (problem(words) or "")


@pytest.mark.api
def test_wrong_option_of_helm_is_found() -> None:
    found = other_programs.option_problem("helm", ["upgrade", "a", "charts/", "--reset"])
    assert found == "helm upgrade has no option --reset"


def test_commands_of_a_shell_block_are_separated() -> None:
    text = "$ A=1 x/ddpjob run a \\\n  --set b=1 > c | cat   # d\nshown\n$ make run && make docs\n"
    block = Block(Path("page.md"), 1, "console", text)
    assert list(commands(block)) == [
        ["ddpjob", "run", "a", "--set", "b=1"],
        ["cat"],
        ["make", "run"],
        ["make", "docs"],
    ]
