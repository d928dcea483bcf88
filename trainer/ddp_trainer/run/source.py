"""Fingerprint of a task's own code, which may change between two attempts.

The code may come from a ConfigMap, a shared volume or another image. The ranks compare the
fingerprint, and each checkpoint keeps it.
"""

import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

_BUNDLED = "ddp_trainer"
_CHARACTERS = 16


def source_fingerprint(path: str) -> str:
    """Return a hash of the loaded source files of a task. "" for a bundled task.

    They are the modules of the task's package, or those in the folder of its module.

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


def source_warning(fingerprint: str, state: Mapping[str, Any]) -> str | None:
    """Return a sentence if the code of the task has changed since a checkpoint.

    Args:
        fingerprint: That of this attempt.
        state: State in the checkpoint, or empty. That of an older release has no fingerprint.
    """
    before = state.get("source")
    if before is None or before == fingerprint:
        return None
    return (
        f"the code of the task has changed since attempt {state['attempt']} saved the checkpoint of"
        f" step {state['step']}"
    )


def _files(top: str, modules: Mapping[str, ModuleType]) -> dict[str, Path]:
    """Return the source files of a task's modules by name."""
    own = _source(modules.get(top))
    siblings = own is not None and own.name != "__init__.py" and _is_of_the_user(own.parent)
    found = {}
    for name, module in list(modules.items()):
        file = _source(module)
        belongs = name.partition(".")[0] == top or (
            siblings and file is not None and own is not None and file.parent == own.parent
        )
        if belongs and file is not None:
            found[name] = file
    return found


def _source(module: ModuleType | None) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file) if file and file.endswith(".py") else None


def _is_of_the_user(folder: Path) -> bool:
    return folder.name not in {"site-packages", "dist-packages"}
