"""Find the checkpoint to export, and read its weights and metadata."""

import time
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from ddp_trainer.checkpoint.contents import verify_contents
from ddp_trainer.checkpoint.format import (
    AVERAGE,
    MODEL,
    STATE,
    BrokenCheckpointError,
    UnreadableCheckpointError,
    names_in,
    read_json,
)
from ddp_trainer.checkpoint.snapshot import Tensors, put_model
from ddp_trainer.checkpoint.volume import Sleep, retried, volume_error
from ddp_trainer.checkpoint.weights import has_file, open_kind
from ddp_trainer.errors import InputError
from ddp_trainer.saved_state import SavedState


def find_checkpoint(path: Path, sleep: Sleep = time.sleep, *, command: str = "export") -> Path:
    """Return the path if it is a checkpoint, else the newest complete checkpoint in it. Only read.

    Args:
        path: A checkpoint, or a run's directory.
        sleep: Function that waits between two attempts to read.
        command: Name of the command, for messages.

    Raises:
        InputError: If there is no complete checkpoint, or if the newest one has an unknown format
            or denies access to this process.
        VolumeError: If the volume fails. The function then returns no older checkpoint.
    """
    names = [path / str(name) for name in reversed(names_in(path)) if not name.suffix]
    reasons = []
    for candidate in names or [path]:
        try:
            retried(partial(verify_contents, candidate), sleep)
        except UnreadableCheckpointError as error:
            raise InputError(f"{command}: {candidate}: {error}") from error
        except (BrokenCheckpointError, NotADirectoryError) as error:
            reasons.append(f"{candidate.name}: {error}")
        except OSError as error:
            raise volume_error(f"{command}: cannot read {candidate}: {error}", error) from error
        else:
            return candidate
    raise InputError(f"{command}: {path} holds no complete checkpoint ({'; '.join(reasons)})")


def load_weights(model: nn.Module, checkpoint: Path, *, averaged: bool) -> bool:
    """Load a checkpoint's weights into a newly built model.

    Args:
        model: The model, which is changed in place.
        checkpoint: A complete checkpoint.
        averaged: Whether to prefer the moving average of the weights if there is one.

    Returns:
        Whether the moving average was loaded.
    """
    use_average = averaged and has_file(checkpoint, AVERAGE)
    tensors: Tensors = {}
    for file in (MODEL, AVERAGE) if use_average else (MODEL,):
        weights = open_kind(checkpoint, file)
        tensors |= weights.read([name for name, *_ in weights.described])
    put_model(model, tensors)
    return use_average


def checkpoint_metadata(checkpoint: Path) -> dict[str, Any]:
    """Return the checkpoint's path, task, settings and position as metadata."""
    state = SavedState.model_validate(read_json(checkpoint / STATE)).document()
    kept = {key: state[key] for key in ("task", "config", "step", "epoch", "samples")}
    return {"checkpoint": str(checkpoint), **kept}
