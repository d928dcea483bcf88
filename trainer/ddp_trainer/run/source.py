"""Compute fingerprints of a task's code and data, which may change between two attempts.

The code may come from a ConfigMap, a shared volume or another image, and the files of a data set
may be replaced. The ranks compare the fingerprints, and each checkpoint contains them.
"""

import hashlib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from ddp_trainer.saved_state import SavedState

_BUNDLED = "ddp_trainer"
_CHARACTERS = 16


def source_fingerprint(path: str) -> str:
    """Return a hash of the loaded source files of a task, or "" for a bundled task.

    The files are the modules of the task's package, or those in the folder of its module.

    Args:
        path: Import path `package.module:function` of a task that was built.
    """
    top = path.partition(":")[0].partition(".")[0]
    if top == _BUNDLED:
        return ""
    digest = hashlib.blake2b(digest_size=_CHARACTERS // 2)
    for name, file in sorted(_files(top, sys.modules).items()):
        try:
            content = file.read_bytes()
        except OSError:
            continue  # An archive has no such file.
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Fingerprints:
    """Fingerprints in a checkpoint, which show whether code and data are unchanged."""

    source: str
    """Result of `source_fingerprint`."""
    data: str
    """Fingerprints of the training and the evaluation data."""

    def warnings(self, saved: SavedState) -> list[str]:
        """Return one sentence for each change of code or data since a checkpoint.

        Args:
            saved: State in the checkpoint. Older releases saved fewer fingerprints.
        """
        since = f"since attempt {saved.attempt} saved the checkpoint of step {saved.step}"
        found = []
        if saved.source not in {None, self.source}:
            found.append(f"the code of the task has changed {since}")
        if saved.data not in {None, self.data}:
            found.append(
                f"the data have changed {since}: they were {saved.data}, now they are {self.data}"
            )
        return found


def _files(top: str, modules: Mapping[str, ModuleType]) -> dict[str, Path]:
    """Return the source files of a task's modules by name.

    Thousands of modules may be loaded, so only the task's modules are converted to a `Path`.
    """
    own = _source(modules.get(top))
    folder, file_name = os.path.split(own or "")
    siblings = own is not None and file_name != "__init__.py" and _is_of_the_user(Path(folder))
    found = {}
    for name, module in list(modules.items()):
        file = _source(module)
        if file is None:
            continue
        beside = siblings and os.path.split(file)[0] == folder
        if beside or name.partition(".")[0] == top:
            found[name] = Path(file)
    return found


def _source(module: ModuleType | None) -> str | None:
    file = getattr(module, "__file__", None)
    return file if file and file.endswith(".py") else None


def _is_of_the_user(folder: Path) -> bool:
    return folder.name not in {"site-packages", "dist-packages"}
