"""Train all cases of `verify`, and compare their weights with those of one process."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file

from ddp_trainer.config import Precision
from ddp_trainer.config.settings import Document, merge
from ddp_trainer.ranks.local_gang import run_ranks
from ddp_trainer.tools.verify.buffers import BufferReport
from ddp_trainer.tools.verify.cases import REFERENCE, Case
from ddp_trainer.tools.verify.training import train_all


@dataclass(frozen=True, slots=True)
class Differences:
    """The differences of all cases from one process."""

    weights: dict[Case, float]
    """Largest difference of a weight, for each case that trained."""
    refused: dict[Case, str]
    """Reason why a case did not train, for each case without weights."""
    buffers: BufferReport | None
    """Report on the buffers that training changes. None if it changes none."""


@dataclass(frozen=True, slots=True)
class CaseRunner:
    """Task, settings and folder for the training of all cases."""

    task: str
    document: Document
    graph: Document
    """Settings `find_unused_parameters` and `static_graph` of `parallel`, if the user set them."""
    folder: Path

    def differences(self, cases: Sequence[Case], precision: Precision) -> Differences:
        """Train the cases and compare the weights of each with those of one process.

        Args:
            cases: The cases to compare.
            precision: Precision of all cases and of the single process.
        """
        buffers: BufferReport | None = None
        refused: dict[Case, str] = {}
        document = self.document | {"precision": precision}
        for world in sorted({1} | {case.ranks for case in cases}):
            here = [case for case in cases if case.ranks == world]
            if world == 1:
                here = [REFERENCE, *here]
            settings = [(case, self._settings(case, document)) for case in here]
            found = run_ranks(world, train_all, settings, self.task, str(self.folder))
            buffers = buffers or found.buffers
            refused |= found.refused
        weights = load_file(self.folder / REFERENCE.file)
        by_case = {
            case: largest_difference(weights, load_file(self.folder / case.file))
            for case in cases
            if case not in refused
        }
        return Differences(by_case, refused, buffers)

    def _settings(self, case: Case, document: Document) -> Document:
        """Return the settings of a case. fsdp2 has no static graph."""
        graph = dict(self.graph)
        if case.strategy == "fsdp2":
            graph.pop("static_graph", None)
        return merge(document, {"parallel": graph})


def largest_difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Return the largest absolute difference between corresponding numbers of two sets of tensors.

    Return infinity if the names differ or a difference is not finite.
    """
    if one.keys() != other.keys():
        return math.inf
    largest = 0.0
    for name, tensor in one.items():
        if tensor.numel():
            difference = float((tensor.double() - other[name].double()).abs().max())
            largest = max(largest, difference if math.isfinite(difference) else math.inf)
    return largest
