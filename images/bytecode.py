"""Compile the modules of a folder to bytecode that is the same in every build.

Each group of files has a new interpreter, because the bytes of a file depend on the strings that
its interpreter has seen before. So the number of cores changes only the time.
"""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_GROUP = 200
"""Files per interpreter. Starting one takes as long as compiling about 20 files."""
_RARE = "/torch/testing/_internal/"
"""Modules of torch's own tests: their bytecode has 6 MB, and no training imports them."""


def main(folder: Path, shown: str) -> None:
    """Compile all modules below a folder.

    Args:
        folder: The folder.
        shown: The folder's path in the image, which tracebacks show.
    """
    files = sorted(str(file) for file in folder.rglob("*.py") if _RARE not in str(file))
    groups = [files[start : start + _GROUP] for start in range(0, len(files), _GROUP)]
    # Checked against the source and not against its time, which the build changes afterwards.
    options = ["--invalidation-mode=checked-hash", "-s", str(folder), "-p", shown]
    command = [sys.executable, "-m", "compileall", "-qq", *options, "-i", "-"]
    environment = os.environ | {"PYTHONHASHSEED": "0"}

    def compile_group(group: list[str]) -> None:
        # Files for other versions of Python do not compile, and no module imports them.
        subprocess.run(command, input="\n".join(group), text=True, check=False, env=environment)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile_group, groups))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
