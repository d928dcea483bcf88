"""Write the lock files: all packages with version and hashes, with a separate file for torch.

torch and the packages that only torch needs are in a separate file, because torch has two builds:
the registry's newest release with CUDA libraries, and a build for machines without a GPU, which
does not need these packages.
"""

import argparse
import hashlib
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
CPU_TORCH = "2.13.0"
"""Version of the build for machines without a GPU."""
_TORCH_ONLY = re.compile(r"^(torch==|triton|nvidia-(?!ml-py)|cuda-)")
_PIN = re.compile(r"^[^\s#=]+==[^\\\n]+", flags=re.MULTILINE)
_HEAD = "# Written by `make lock`.\n"
_TARGETS = {
    "operator": ["--extra", "operator"],
    "trainer": ["--extra", "trainer"],
    "dev": [f"--extra={name}" for name in ("operator", "cli", "trainer", "onnx", "dev")],
    "bench": ["requirements/bench.in", "--extra", "trainer"],
    "s3": ["--extra", "trainer", "--extra", "s3"],
}
_BESIDES = {"s3": "trainer"}
"""Lock files without the packages of another one. `s3` needs an older python-dateutil than the
client of Kubernetes, so the development environment cannot contain both."""


def main() -> None:
    """Lock all targets. Packages that are locked already keep their versions by default."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--wheels", type=Path, required=True, help="folder with torch for CPUs")
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions")
    options = parser.parse_args()
    wheels: Path = options.wheels
    for name, extras in _TARGETS.items():
        pins = [] if options.upgrade else _locked(name)
        pins += _locked(_BESIDES[name]) if name in _BESIDES else []
        rest, torch = _split(_compile(["pyproject.toml", *extras], "\n".join(pins)))
        if name in _BESIDES:
            there = set(_PIN.findall((HERE / f"{_BESIDES[name]}.lock").read_text()))
            rest = [entry for entry in rest if not there & set(_PIN.findall(entry))]
        _write(f"{name}.lock", rest)
        if name == "trainer":
            _write("torch-cuda.lock", torch)
    pins = [] if options.upgrade else _locked("docs")
    _write("docs.lock", [_compile(["requirements/docs.in"], "\n".join(pins))])
    pins = [] if options.upgrade else _locked("build")
    _write("build.lock", [_compile(["-"], "\n".join(pins), "hatchling<2\neditables\n")])
    wheel = next(wheels.glob(f"torch-{CPU_TORCH}+cpu-*.whl"))
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    _write("torch-cpu.lock", [f"torch=={CPU_TORCH}+cpu \\\n    --hash=sha256:{digest}\n"])


def _locked(name: str) -> list[str]:
    """Return the pinned versions of a lock file, also that of torch."""
    texts = [(HERE / file).read_text() for file in (f"{name}.lock", "torch-cuda.lock")]
    return [pin for text in texts for pin in _PIN.findall(text)]


def _compile(sources: list[str], constraints: str, stdin: str = "") -> str:
    pins = HERE / ".constraints.txt"
    pins.write_text(constraints)
    options = ["--generate-hashes", "--universal", "--python-version", "3.11", "--no-header"]
    quiet = ["--no-annotate", "--no-emit-index-url", "--quiet", "--constraint", str(pins)]
    try:
        return subprocess.run(
            [sys.executable, "-m", "uv", "pip", "compile", *options, *quiet, *sources],
            input=stdin,
            capture_output=True,
            text=True,
            check=True,
            cwd=HERE.parent,
        ).stdout
    finally:
        pins.unlink()


def _split(text: str) -> tuple[list[str], list[str]]:
    """Return the entries without torch's packages, and torch's packages."""
    entries = re.split(r"^(?=\S)", text, flags=re.MULTILINE)
    found: tuple[list[str], list[str]] = ([], [])
    for entry in entries:
        found[bool(_TORCH_ONLY.match(entry))].append(entry)
    return found


def _write(name: str, entries: list[str]) -> None:
    (HERE / name).write_text(_HEAD + "".join(entries))


if __name__ == "__main__":
    main()
