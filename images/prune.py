"""Remove files of installed packages that no process of an image reads."""

import shutil
import subprocess
import sys
from pathlib import Path

_LAZY = ("client/api", "client/models", "aio/client/api", "aio/client/models")
"""Folders of the package kubernetes with a module per API group and per type of object."""
_TORCH_PROGRAMS = {"torch_shm_manager"}
"""Programs of torch that a training starts. The others are its tests and a compiler."""
_WITH_TESTS = ("fsspec", "mpmath", "networkx", "numpy", "sympy")
"""Packages whose tests are modules of the package, in folders `tests`."""
_IMPORTS = "import kubernetes.aio.client, kubernetes.aio.config, sys; print(*sys.modules)"


def main() -> None:
    """Prune the packages of this interpreter's environment."""
    packages = Path(next(path for path in sys.path if path.endswith("-packages")))
    if (packages / "kubernetes").is_dir():
        _prune_kubernetes(packages)
    if (packages / "torch").is_dir():
        shutil.rmtree(packages / "torch" / "test", ignore_errors=True)
        for program in (packages / "torch" / "bin").iterdir():
            if program.is_file() and program.name not in _TORCH_PROGRAMS:
                program.unlink()
    for package in _WITH_TESTS:
        for tests in sorted((packages / package).rglob("tests")):
            shutil.rmtree(tests)


def _prune_kubernetes(packages: Path) -> None:
    """Remove the modules that the client imports only for typed calls, which are most of it.

    The operator sends dictionaries through the client's low-level call, so it has no typed calls.
    """
    command = [sys.executable, "-c", _IMPORTS]
    loaded = set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    for folder in _LAZY:
        for file in (packages / "kubernetes" / folder).glob("*.py"):
            name = ".".join(file.relative_to(packages).with_suffix("").parts)
            if name.removesuffix(".__init__") not in loaded:
                file.unlink()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)


if __name__ == "__main__":
    main()
