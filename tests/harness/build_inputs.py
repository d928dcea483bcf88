"""The inputs of an image build: the files of its context and everything else that it reads."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from tests.harness import dockerfile, pip_settings
from tests.harness.errors import HarnessError

_MODIFIED: Final = 1_000_000_000  # one modification time for all files, so that layers are reused
_SKIPPED: Final = {".git", "__pycache__"}


class _Digest(Protocol):
    def update(self, data: bytes, /) -> None: ...


@dataclass(frozen=True)
class Inputs:
    """All inputs of an image.

    Attributes:
        repository: The folder with the Dockerfile.
        files: The files of the build's context, as relative paths.
        base: The base image's archive, whose file name changes with its content.
        wheels: The folder that the build mounts at `/wheels`.
        outside: Digest of what RUN instructions read besides the context.
    """

    repository: Path
    files: tuple[Path, ...]
    base: Path
    wheels: Path | None
    outside: str

    @classmethod
    def gather(cls, repository: Path, target: str, base: Path, wheels: Path | None) -> Inputs:
        """Find the files that the target depends on."""
        recipe = repository / "Dockerfile"
        if not recipe.is_file():
            raise HarnessError(f"There is no Dockerfile in {repository}.")
        sources = dockerfile.sources(recipe.read_text(encoding="utf-8"), target)
        files = {Path("Dockerfile"), *_files(repository, sources)}
        if (repository / ".dockerignore").is_file():
            files.add(Path(".dockerignore"))
        packed = sorted(wheels.iterdir()) if wheels is not None else []
        digest = hashlib.sha256(f"{base.name}\n{pip_settings.configuration()}".encode())
        for file in packed:
            _add_file(digest, file, file.name)
        return cls(repository, tuple(sorted(files)), base, wheels, digest.hexdigest()[:12])

    def key(self, words: Iterable[str]) -> str:
        """Return the digest of all inputs and of further texts."""
        digest = hashlib.sha256("\0".join([self.outside, *words]).encode())
        for file in self.files:
            _add_file(digest, self.repository / file, str(file))
        return digest.hexdigest()[:12]

    def copy_to(self, context: Path) -> None:
        """Copy all files to the build's context, with the same modification time."""
        for file in self.files:
            copy = context / file
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(self.repository / file, copy)
        for folder, folders, names in os.walk(context):
            for name in (*folders, *names):
                os.utime(Path(folder, name), (_MODIFIED, _MODIFIED))


def _files(repository: Path, sources: Iterable[str]) -> set[Path]:
    """Return the files below these patterns that git tracks or would add, relative."""
    found: set[Path] = set()
    for source in sources:
        for match in [repository] if source == "." else repository.glob(source):
            found.update([match] if match.is_file() else _below(repository, match))
    return {file.relative_to(repository) for file in found}


def _below(repository: Path, folder: Path) -> list[Path]:
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--"]
    done = subprocess.run(
        [*listing, str(folder)], check=False, capture_output=True, text=True, cwd=repository
    )
    if done.returncode == 0:
        found = [repository / name for name in done.stdout.split("\0") if name]
    else:
        found = [file for file in folder.rglob("*") if not _SKIPPED & set(file.parts)]
    return [file for file in found if file.is_file()]


def _add_file(digest: _Digest, file: Path, name: str) -> None:
    runs = os.access(file, os.X_OK)
    with file.open("rb") as opened:
        content = hashlib.file_digest(opened, "sha256").hexdigest()
    digest.update(f"{name}\0{runs}\0{content}\n".encode())
