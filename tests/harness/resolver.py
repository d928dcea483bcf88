"""A resolver whose lock is always held during a fork. With glibc's resolver this is rare."""

import subprocess
from pathlib import Path

_SOURCE = Path(__file__).with_name("resolver_lock.c")


def with_lasting_lock(folder: Path) -> dict[str, str]:
    """Return environment variables that load this resolver into a process. Linux only."""
    library = folder / "resolver_lock.so"
    command = ["cc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", str(library)]
    subprocess.run([*command, str(_SOURCE), "-ldl"], check=True)
    return {"LD_PRELOAD": str(library)}
