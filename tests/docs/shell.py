"""Split the commands of a page into words, as a shell does."""

import re
import shlex
from collections.abc import Iterator

from tests.docs.pages import Block

Words = list[str]
PROMPT = "$ "
"""Begin of a command in a block of the language `console`. Its other lines are output."""
_COMMENT = re.compile(r"(?:^|\s)#\s.*$")
_SEPARATOR = re.compile(r"^[();|&\n]+$")
_REDIRECTION = re.compile(r"^[<>&]*[<>]+&?$")
_ASSIGNMENT = re.compile(r"^[A-Za-z_]\w*=")


def commands(block: Block) -> Iterator[Words]:
    """Yield the words of each command in a block of the language `sh` or `console`.

    A word `…` stands for anything.

    Raises:
        ValueError: A quotation is not closed.
    """
    text = block.text.replace("\\\n", " ")
    lines = text.splitlines()
    if block.language == "console":
        lines = [line.removeprefix(PROMPT) for line in lines if line.startswith(PROMPT)]
    for line in lines:
        yield from split(line)


def split(line: str) -> Iterator[Words]:
    """Yield the commands of a line, without variables before them and without redirections."""
    lexer = shlex.shlex(_COMMENT.sub("", line), posix=True, punctuation_chars="();<>|&")
    lexer.whitespace_split, lexer.commenters = True, ""
    words: Words = []
    skipped = False
    for word in lexer:
        if _REDIRECTION.match(word):
            skipped = True
        elif _SEPARATOR.match(word):
            yield from filter(None, [_program(words)])
            words = []
        elif skipped:
            skipped = False
        else:
            words.append(word)
    yield from filter(None, [_program(words)])


def _program(words: Words) -> Words:
    """Return a command without the assignments before it, and without the folder of its program."""
    while words and _ASSIGNMENT.match(words[0]):
        words = words[1:]
    return [words[0].rpartition("/")[2], *words[1:]] if words else []
