"""Read weights from files of other programs: safetensors, torch.save, and torch's DCP folders.

`init_from` and `ddp-trainer convert` use this module. The files may come from anywhere, so reading
must not run their code, must not follow a link or a path out of a folder, and must not allocate
more memory than the files have bytes.
"""

import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ddp_trainer.checkpoint.format import MODEL, BrokenCheckpointError, whole_name
from ddp_trainer.checkpoint.header import HeaderError, read_header
from ddp_trainer.checkpoint.named_weights import (
    METADATA,
    Weights,
    WeightsError,
    check_tensor,
    chosen_entry,
)
from ddp_trainer.checkpoint.parts import files_in, stored_tensors
from ddp_trainer.checkpoint.snapshot import Tensors
from ddp_trainer.checkpoint.stream import read_some, read_stored

_ZIP = b"PK\x03\x04"


def open_weights(path: Path, key: str | None = None) -> Weights:
    """Open the weights in a file or folder of any known format.

    Args:
        path: A safetensors file, a file of torch.save, a checkpoint, or a DCP folder.
        key: Entry of a nested state that holds the weights. By default the state itself, or the
            only one of `USUAL_KEYS`.

    Raises:
        WeightsError: If it has another format, is damaged, or holds other values than tensors.
        OSError: If the volume fails.
    """
    if path.is_dir():
        if (path / MODEL).is_file():
            return _safetensors(path / MODEL, key)
        if has_file(path, MODEL):
            return open_kind(path, MODEL)
        if (path / METADATA).exists():
            from ddp_trainer.checkpoint.dcp import open_dcp  # noqa: PLC0415 - imports torch's DCP

            return open_dcp(path, key)
    if not path.is_file():
        raise WeightsError(f"{path} is no file of weights, no checkpoint and no DCP folder")
    with path.open("rb") as file:
        start = file.read(len(_ZIP))
    # A pickle without an archive is how torch.save wrote before 1.6.
    if start == _ZIP or start[:1] == b"\x80":
        return _torch_file(path, key, is_archive=start == _ZIP)
    return _safetensors(path, key)


def has_file(checkpoint: Path, file: str) -> bool:
    """Return whether a checkpoint has tensors of a kind, in one file or in parts.

    Args:
        checkpoint: A folder, which may be no checkpoint.
        file: Name of the whole file of the kind, for example `MODEL`.

    Raises:
        OSError: If the volume fails.
    """
    try:
        return any(whole_name(name) == file for name in files_in(checkpoint))
    except BrokenCheckpointError:
        return False


def open_kind(checkpoint: Path, file: str) -> Weights:
    """Open the tensors of one kind in a complete checkpoint.

    Args:
        checkpoint: The checkpoint.
        file: Name of the whole file of the kind, for example `MODEL`.

    Raises:
        WeightsError: If a file is damaged.
        OSError: If the volume fails.
    """
    try:
        tensors = stored_tensors(checkpoint, file, files_in(checkpoint))
    except BrokenCheckpointError as error:
        raise WeightsError(f"{checkpoint} is damaged: {error}") from error
    by_name = {tensor.name: tensor for tensor in tensors}
    return Weights(
        checkpoint,
        [tensor.document() for tensor in tensors],
        lambda names: {name: read_stored(by_name[name]) for name in names},
    )


def _safetensors(path: Path, key: str | None) -> Weights:
    if key is not None:
        raise WeightsError(f"{path} has no entries, so no key can be chosen")
    try:
        header = read_header(path)
    except HeaderError as error:
        raise WeightsError(f"{path} is no file of weights: {error}") from error
    if not header.tensors:
        raise WeightsError(f"{path} holds no tensor")
    names = {tensor.name for tensor in header.tensors}
    # safetensors' own `save_model` writes the other names of tied weights there.
    aliases = {k: v for k, v in header.metadata.items() if k not in names and v in names}
    described = [tensor.document() for tensor in header.tensors]
    return Weights(path, described, lambda wanted: read_some(path, wanted), aliases)


def _torch_file(path: Path, key: str | None, *, is_archive: bool) -> Weights:
    if is_archive:
        _check_archive(path)
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=is_archive)
    except OSError:
        raise
    except pickle.UnpicklingError as error:
        raise WeightsError(
            f"{path} holds objects other than tensors, which could run code: save only the"
            " state_dict"
        ) from error
    except Exception as error:  # a damaged pickle may raise anything
        raise WeightsError(
            f"{path} cannot be read by torch.load ({type(error).__name__})"
        ) from error
    tensors = chosen_entry(state, key, path, Tensor)
    size = path.stat().st_size
    for name, tensor in tensors.items():
        check_tensor(path, name, tensor.shape, tensor.dtype, size)
        if tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized:
            raise WeightsError(f'"{name:.80}" in {path} is no dense tensor')
    first, aliases = untied(tensors)

    def read(names: list[str]) -> Tensors:
        # Copy, because a tensor that maps its file would fault when a network volume drops it.
        return {name: first[name].detach().clone().contiguous() for name in names}

    described = [
        [name, list(tensor.shape), str(tensor.dtype).removeprefix("torch.")]
        for name, tensor in first.items()
    ]
    return Weights(path, described, read, aliases)


def _check_archive(path: Path) -> None:
    """Compare the archive of torch.save with its checksums, which torch.load does not read.

    Raises:
        WeightsError: If it is damaged, or compressed: then it could grow without a limit.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            compressed = [i for i in archive.infolist() if i.compress_type != zipfile.ZIP_STORED]
            if compressed:
                raise WeightsError(f"{path} is a compressed archive, as torch.save writes none")
            damaged = archive.testzip()
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, EOFError) as error:
        if isinstance(error, WeightsError):
            raise
        raise WeightsError(f"{path} is a damaged archive ({error!s:.80})") from error
    if damaged is not None:
        raise WeightsError(f"{path} is damaged: {damaged:.80} does not match its CRC32")


def untied(tensors: Mapping[str, Tensor]) -> tuple[Tensors, dict[str, str]]:
    """Return each tensor once, and the first name of each tied one by its other names."""
    seen: dict[tuple[Any, ...], str] = {}
    first: Tensors = {}
    aliases: dict[str, str] = {}
    for name, tensor in tensors.items():
        place = tensor.untyped_storage().data_ptr(), tensor.storage_offset()
        found = seen.setdefault((*place, tensor.shape, tensor.stride(), tensor.dtype), name)
        if found == name or not tensor.numel():
            first[name] = tensor
        else:
            aliases[name] = found
    return first, aliases
