"""Join the parts of a record, which several ranks send, to one checkpoint.

Parts either hold different tensors, such as the moments of the parameters that a rank owns, or each
of them holds rows of the same tensors. In the second case the rows are joined in the order of the
ranks. So a reader of the checkpoint needs no knowledge of parts, and never holds more than one
joined tensor. Every rank must iterate over all tensors, as over a stream (`checkpoint.stream`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ddp_trainer.checkpoint.snapshot import Checkpoint
from ddp_trainer.errors import ReportedError
from ddp_trainer.names import NamedTensors

_TENSORS = ("model", "optimizer", "average", "compression", "buffers", "task")
"""Fields of a snapshot that hold tensors by name."""


class JoinedTensors:
    """Tensors of a common part, and of the parts of single ranks."""

    def __init__(self, common: NamedTensors, own: Sequence[NamedTensors]) -> None:
        """Join parts without reading them.

        Args:
            common: Tensors of the common part.
            own: Tensors of the parts of single ranks, by rank.
        """
        self._common, self._own = common, own
        names = [list(part) for part in own]
        self._have_rows = len(names) > 1 and bool(names[0]) and names[0] == names[1]
        if self._have_rows and any(each != names[0] for each in names):
            raise _mixed("they hold rows of different tensors")
        parts = names[:1] if self._have_rows else names
        self._names = [*common, *(name for part in parts for name in part)]
        if len(set(self._names)) != len(self._names):
            raise _mixed("two of them hold the same tensor")

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names, without communication."""
        return iter(self._names)

    def __len__(self) -> int:
        """Return the number of joined tensors."""
        return len(self._names)

    def items(self) -> Iterator[tuple[str, Tensor]]:
        """Yield each name with its tensor, equal on every rank."""
        yield from self._common.items()
        if not self._have_rows:
            for part in self._own:
                yield from part.items()
            return
        for together in zip(*(part.items() for part in self._own), strict=True):
            yield together[0][0], torch.cat([rows for _, rows in together])


def joined(common: Checkpoint, own: Sequence[Checkpoint]) -> Checkpoint:
    """Return the checkpoint that the parts of a record are.

    Args:
        common: The common part.
        own: The parts of single ranks, by rank.

    Raises:
        ReportedError: If the parts do not belong together.
    """
    if not own:
        return common
    parts: dict[str, Any] = {
        name: JoinedTensors(
            getattr(common.snapshot, name), [getattr(part.snapshot, name) for part in own]
        )
        for name in _TENSORS
    }
    rest = common.snapshot.optimizer_rest
    state = dict(rest["state"])
    for part in own:
        state |= part.snapshot.optimizer_rest["state"]
    snapshot = replace(common.snapshot, **parts, optimizer_rest=rest | {"state": state})
    return Checkpoint(common.state, snapshot)


def _mixed(reason: str) -> ReportedError:
    return ReportedError(f"checkpoint: the parts of a state in memory do not fit: {reason}")
