"""Find the repeated blocks of a model, for example of a transformer."""

from collections import Counter

from torch import nn

REPEATED = 2
"""Minimum number of modules of one class in a container that counts as a list of blocks."""


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """Return the outermost modules that a container lists together with others of their class.

    Transformer blocks are the usual case. A module that shares a parameter with the rest of the
    model is not a block, because its weights cannot be gathered separately. A module that is listed
    twice is not a block, because it computes several times in one pass.
    """
    blocks: list[nn.Module] = []
    inside: set[nn.Module] = set()
    for module in model.modules():
        if module in inside or not isinstance(module, (nn.ModuleList, nn.Sequential)):
            continue
        members = list(module)
        if len(members) >= REPEATED and len({type(member) for member in members}) == 1:
            blocks += members
            inside |= {part for member in members for part in member.modules()}
    times = Counter(map(id, blocks))
    uses: dict[int, int] = {}
    for param in (p for part in model.modules() for p in part.parameters(recurse=False)):
        uses[id(param)] = uses.get(id(param), 0) + 1
    return [
        block
        for block in blocks
        if times[id(block)] == 1
        and any(True for _ in block.parameters())
        and all(
            uses[id(param)]
            == sum(
                1
                for part in block.modules()
                for own in part.parameters(recurse=False)
                if own is param
            )
            for param in block.parameters()
        )
    ]
