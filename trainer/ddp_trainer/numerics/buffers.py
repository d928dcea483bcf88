"""Live buffers: buffers that the loss changes, such as normalisers, codebooks and queues.

The loss of each rank changes the rank's own buffers, so without a policy they differ between ranks.
A pass before the first update shows which buffers change, so models without live buffers have no
further cost. BatchNorm's statistics have their own policy (`numerics.batch_norm`).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ddp_trainer.config import BufferPolicy
from ddp_trainer.errors import InputError
from ddp_trainer.names import NamedTensors, plain_name
from ddp_trainer.parallel.dtensor import is_split
from ddp_trainer.ranks.collectives import broadcast, sum_over_ranks

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
"""Integer types by the number of bytes in an element. Larger elements use int64."""

FROZEN_BYTES = 64 << 20
"""Maximum bytes of frozen parameters that are copied if it is unknown which of them change.
Codebooks are smaller. A large frozen model, for example below adapters, is not."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Location of a buffer: a module and a name. Each pass may store a new tensor there."""

    name: str
    module: nn.Module
    key: str

    @property
    def tensor(self) -> Tensor:
        """Tensor that the module currently stores under the name."""
        found: Tensor = getattr(self.module, self.key)
        return found.detach()

    @property
    def frozen(self) -> bool:
        """Whether the tensor is a frozen parameter, not a buffer."""
        return isinstance(getattr(self.module, self.key), nn.Parameter)


def slots_in(model: nn.Module) -> list[Slot]:
    """Return the locations of all tensors that a forward pass may change, each once.

    These are the buffers, and parameters without a gradient, because some codebooks are such
    parameters. Parameters of torch's own layers are excluded, because they never change in a
    forward pass.
    """
    found: dict[int, Slot] = {}
    for path, module in model.named_modules():
        named: dict[str, Tensor] = dict(module.named_buffers(recurse=False))
        if not type(module).__module__.startswith("torch."):
            params = module.named_parameters(recurse=False)
            named |= {key: param for key, param in params if not param.requires_grad}
        for key, tensor in named.items():
            if tensor.layout == torch.strided and not is_split(tensor):
                name = plain_name(f"{path}.{key}" if path else key)
                found.setdefault(id(tensor), Slot(name, module, key))
    return list(found.values())


@contextmanager
def kept_buffers(model: nn.Module) -> Iterator[None]:
    """Restore the content of all buffers, for example running statistics, when the context ends."""
    kept = [(s, getattr(s.module, s.key), s.tensor.clone()) for s in slots_in(model)]
    try:
        yield
    finally:
        for slot, tensor, value in kept:
            tensor.detach().copy_(value)
            setattr(slot.module, slot.key, tensor)


def saved_slots(model: nn.Module) -> list[Slot]:
    """Return the locations of tensors that a forward pass may change and a checkpoint contains."""
    saved = {id(value) for value in model.state_dict(keep_vars=True).values()}
    return [slot for slot in slots_in(model) if id(getattr(slot.module, slot.key)) in saved]


class BufferCopy:
    """Copy of buffers at the start of an update, in case the update is skipped.

    The copy is one block of memory. So its creation takes one kernel for any number of buffers.
    """

    @torch.no_grad()
    def __init__(self, slots: list[Slot], device: torch.device) -> None:
        """Copy the buffers at the given locations.

        Args:
            slots: Locations of the buffers.
            device: Device of the flag. Buffers on other devices, which would wait for the flag, are
                not copied.
        """
        found = [(slot, tensor) for slot in slots if (tensor := slot.tensor).device == device]
        found.sort(key=lambda pair: _place(pair[1]))
        self._slots = [slot for slot, _ in found]
        tensors = [tensor for _, tensor in found]
        self._kinds = _kinds(tensors)
        self._bytes = _joined(tensors) if tensors else None

    @torch.no_grad()
    def restore_if(self, flag: Tensor) -> None:
        """Restore the buffers in place if a flag is set, without a host sync.

        If a buffer has changed its shape, type or device since then, no buffer is restored.

        Args:
            flag: Scalar on the device of the buffers, 0 or 1.
        """
        tensors = [slot.tensor for slot in self._slots]
        if self._bytes is not None and _kinds(tensors) == self._kinds:
            _split_into(tensors, torch.where(flag.bool(), self._bytes, _joined(tensors)))


class BufferShapes:
    """Shapes of saved buffers. They must not change, because a resumed run could not load them.

    Args:
        model: The bare model, before its first pass.
    """

    def __init__(self, model: nn.Module) -> None:
        self._shapes = [(slot, tuple(slot.tensor.shape)) for slot in saved_slots(model)]
        self._frozen_bytes = sum(slot.tensor.nbytes for slot, _ in self._shapes if slot.frozen)

    def slots(self, live: "LiveBuffers | None") -> list[Slot]:
        """Return the locations of buffers that a pass may change.

        Args:
            live: Live buffers, if a policy applies to them. Otherwise every saved buffer counts,
                but frozen parameters only if they are small together.
        """
        found = [slot for slot, _ in self._shapes]
        names = live.names if live else None
        if names is not None:
            return [s for s in found if s.name in names or isinstance(s.module, _BatchNorm)]
        return found if self._frozen_bytes <= FROZEN_BYTES else [s for s in found if not s.frozen]

    def check(self) -> None:
        """Compare the current shapes with the stored ones.

        Raises:
            InputError: If the shape of a buffer has changed.
        """
        for slot, before in self._shapes:
            now = tuple(slot.tensor.shape)
            if now != before:
                raise InputError(
                    f'task: the loss changes the shape of buffer "{slot.name}" from {before} to'
                    f" {now}; register it in build with its largest shape, so that ranks and"
                    " checkpoints agree"
                )


class LiveBuffers:
    """The live buffers of a model on several ranks, and the policy that they follow.

    If one buffer of a module is live, all buffers of the module are, because a module may change
    some buffers rarely. Only buffers that checkpoints contain can be live.
    """

    def __init__(self, model: nn.Module, policy: BufferPolicy) -> None:
        """Prepare to find the live buffers of a model.

        Args:
            model: The bare model, on its device.
            policy: Policy for the live buffers.
        """
        self._slots = [
            slot for slot in saved_slots(model) if not isinstance(slot.module, _BatchNorm)
        ]
        self.policy = policy
        self.names: list[str] | None = None
        """Names of the live buffers; None if they are not known yet."""
        self._apart = False
        self._seen: dict[str, int] = {}
        self._shapes = BufferShapes(model)

    def __bool__(self) -> bool:
        """Return whether the model has a buffer that may be live."""
        return bool(self._slots)

    def watch(self) -> None:
        """Record checksums of all buffers, with one host sync."""
        self._seen = _checksums(self._slots)

    def rehearsed(self) -> None:
        """Find the buffers that changed since `watch`, unless a checkpoint named the live ones.

        Every rank must call it.

        Raises:
            InputError: If the shape of a buffer has changed.
        """
        if self.names is None:
            self.names = []
            self._find()

    def after_update(self, *, local: bool) -> None:
        """Apply the policy after an update. Every rank must call it.

        Args:
            local: Whether the ranks do not synchronize after this update (local SGD).
        """
        self._apart = local
        if self.names and not local:
            self._share()

    def synchronize(self) -> list[str]:
        """Apply the policy before an evaluation or a checkpoint. Every rank must call it.

        Returns:
            Names of the buffers that the loss began to change only after the first pass. They count
            as live from now on.
        """
        if self.names is None:
            return []
        late = self._find()
        if late or self._apart:
            self._share()
        self._apart = False
        return late

    def tensors(self) -> list[Tensor]:
        """Return the live buffers themselves, not copies."""
        return [slot.tensor for slot in self._live()]

    def own(self, rank: int) -> dict[str, Tensor]:
        """Return this rank's buffers by `<rank>/<name>` if each rank keeps its own buffers."""
        if self.policy != "per_rank":
            return {}
        return {f"{rank}/{slot.name}": slot.tensor for slot in self._live()}

    def load(self, names: list[str] | None, saved: NamedTensors, rank: int) -> None:
        """Restore the set of live buffers, and this rank's own buffers.

        Args:
            names: Names of the live buffers in the checkpoint; None if the checkpoint does not list
                them.
            saved: Buffers by `<rank>/<name>`; empty if all ranks use rank 0's buffers.
            rank: This rank's number.
        """
        if names is not None:
            self.names = sorted({*names, *(self.names or ())})
        own = {f"{rank}/{slot.name}": slot for slot in self._live()}
        for name, value in saved.items():
            if name in own:
                own[name].tensor.copy_(value)

    def sentence(self, *, local: bool) -> str | None:
        """Return a message about the live buffers and their policy; None without live buffers.

        Args:
            local: Whether the run uses local SGD.
        """
        if not self.names:
            return None
        when = "at each average of the ranks" if local else "after each update"
        what = {
            "broadcast": f"{when} all ranks take those of rank 0",
            "average": f"{when} all ranks take their mean (of whole numbers, those of rank 0)",
            "per_rank": "each rank keeps its own, and checkpoints save them for each rank",
        }[self.policy]
        return (
            f'training changes {len(self.names)} buffers, first "{self.names[0]}": {what}'
            f" (parallel.buffers is {self.policy})"
        )

    def _live(self) -> list[Slot]:
        return [slot for slot in self._slots if slot.name in (self.names or ())]

    def _find(self) -> list[str]:
        """Add all buffers that have changed on any rank to the live ones. Return their names."""
        quiet = [slot for slot in self._slots if slot.name not in (self.names or ())]
        if not quiet:
            return []
        self._shapes.check()
        now = _checksums(quiet)
        changed = [float(self._seen[name] != value) for name, value in now.items()]
        flags = sum_over_ranks(torch.tensor(changed, device=quiet[0].tensor.device)).tolist()
        modules = {slot.module for slot, flag in zip(quiet, flags, strict=True) if flag}
        found = sorted(slot.name for slot in quiet if slot.module in modules)
        self.names = sorted([*(self.names or ()), *found])
        return found

    @torch.no_grad()
    def _share(self) -> None:
        """Make the live buffers equal on all ranks, unless each rank keeps its own."""
        if self.policy == "per_rank":
            return
        self._shapes.check()
        tensors = self.tensors()
        averaged = self.policy == "average"
        floats = [t for t in tensors if averaged and t.is_floating_point()]
        others = [t for t in tensors if not (averaged and t.is_floating_point())]
        if floats:
            _average(floats)
        if others:
            _take_from_first_rank(others)


def _checksums(slots: list[Slot]) -> dict[str, int]:
    """Return a checksum of the content of each buffer, which changes if any number changes."""
    if not slots:
        return {}
    sums = []
    for slot in slots:
        tensor = slot.tensor
        words = _WORDS.get(tensor.element_size(), torch.int64)
        flat = tensor.contiguous().reshape(-1)
        flat = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
        sums.append(flat.view(words).sum(dtype=torch.int64))
    numbers = torch.stack(sums).tolist()
    return {slot.name: number for slot, number in zip(slots, numbers, strict=True)}


def _average(tensors: list[Tensor]) -> None:
    """Replace tensors by their mean over ranks, in place, with one reduction."""
    exact = torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32
    flat = torch.cat([tensor.flatten().to(exact) for tensor in tensors])
    parts = sum_over_ranks(flat).div_(dist.get_world_size()).split([t.numel() for t in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.copy_(part.view(tensor.shape))


def _take_from_first_rank(tensors: list[Tensor]) -> None:
    """Replace tensors by rank 0's tensors, in place, with one broadcast of their bytes."""
    tensors = sorted(tensors, key=_place)
    _split_into(tensors, broadcast(_joined(tensors)))


def _place(tensor: Tensor) -> tuple[int, str]:
    """Return the place of a tensor in `_joined`: the largest numbers first, then by data type.

    Each tensor then begins at a multiple of its numbers' size.
    """
    return -tensor.element_size(), str(tensor.dtype)


def _kinds(tensors: list[Tensor]) -> list[tuple[torch.Size, torch.dtype, torch.device]]:
    return [(tensor.shape, tensor.dtype, tensor.device) for tensor in tensors]


def _joined(tensors: list[Tensor]) -> Tensor:
    """Return a copy of the bytes of tensors, one after another."""
    return torch.cat([t.contiguous().reshape(-1).view(torch.uint8) for t in tensors])


def _split_into(tensors: list[Tensor], flat: Tensor) -> None:
    """Write bytes in the order of `_joined` into tensors, in place."""
    parts = flat.split([tensor.nbytes for tensor in tensors])
    parts = [p.view(t.dtype).view(t.shape) for p, t in zip(parts, tensors, strict=True)]
    pairs = zip(tensors, parts, strict=True)
    for _, group in groupby(pairs, key=lambda pair: pair[0].dtype):  # A kernel takes one type.
        old, new = zip(*group, strict=True)
        torch._foreach_copy_(old, new)
