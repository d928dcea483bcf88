"""An environment with the newest torch that the lock files name, kept in the cache.

The environment has the build with CUDA libraries, which also runs on CPUs. The first use downloads
several gigabytes.
"""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from tests.harness.paths import REPOSITORY, cache

_LOCKS = [REPOSITORY / "requirements" / f"{name}.lock" for name in ("dev", "torch-cuda")]


def interpreter() -> Path:
    """Return the Python of the environment. Create the environment if it is missing."""
    digest = hashlib.sha256(b"".join(lock.read_bytes() for lock in _LOCKS)).hexdigest()[:12]
    home = cache() / f"torch-cuda-{digest}"
    python, ready = home / "bin" / "python", home / "ready"
    if not ready.exists():
        for old in home.parent.glob("torch-cuda-*"):  # Each needs 5.5 GB.
            shutil.rmtree(old)
        subprocess.run([sys.executable, "-m", "venv", home], check=True)
        pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        for lock in _LOCKS:
            subprocess.run([*pip, "--require-hashes", "--no-deps", "-r", str(lock)], check=True)
        ready.touch()
    return python
