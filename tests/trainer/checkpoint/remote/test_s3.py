"""The mirror against a real S3 server, directly and through a proxy that fails.

"Another cluster" is another directory, which has nothing of the first one.
"""

import contextlib
import json
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.harness import s3
from tests.harness.s3 import Faults, Server
from tests.trainer.checkpoint.remote.memory import Run, content

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # Each process imports torch or s3fs.

URL = "s3://bucket/team/run"


def name(step: int, attempt: int = 1) -> str:
    return f"step-{step:08d}.attempt-{attempt}"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with s3.server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def server(running: Server, tmp_path: Path) -> Server:
    """Return the server with an empty bucket."""
    bucket = running.data / "bucket"
    if bucket.exists():
        bucket.rename(tmp_path / "old bucket")
    bucket.mkdir()
    return running


def store(
    command: str, folder: Path, environ: dict[str, str], *options: str, url: str = URL
) -> subprocess.CompletedProcess[str]:
    arguments = [sys.executable, "-m", "ddp_trainer.checkpoint.remote", command, str(folder), url]
    given = "finish\n" if command == "mirror" else None
    return subprocess.run(
        [*arguments, *options], env=environ, input=given, capture_output=True, text=True,
        check=False, timeout=280,
    )  # fmt: skip


def mirrored(run: Run, environ: dict[str, str]) -> dict[str, object]:
    """Mirror a run's directory with the real process, and return the last status."""
    process = subprocess.Popen(
        [sys.executable, "-m", "ddp_trainer.checkpoint.remote", "mirror", str(run.directory), URL],
        env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin
    assert process.stdout
    process.stdin.write("finish\n")
    process.stdin.flush()
    lines = process.stdout.readlines()
    assert process.wait(60) == 0
    process.stdin.close()
    process.stdout.close()
    status: dict[str, object] = json.loads(lines[-1])
    return status


def fetched(folder: Path, environ: dict[str, str]) -> str | None:
    folder.mkdir()
    done = store("fetch", folder, environ)
    assert done.returncode == 0, done.stdout + done.stderr
    found: str | None = json.loads(done.stdout)["name"]
    return found


def trainer(
    *arguments: str, environ: dict[str, str], cwd: Path
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ddp_trainer", *arguments]
    return subprocess.run(
        command, env=environ, cwd=cwd, capture_output=True, text=True, check=False, timeout=280
    )


def train(
    directory: Path, steps: int, environ: dict[str, str], *settings: str
) -> subprocess.CompletedProcess[str]:
    fixed = [
        "--device=cpu",
        "--checkpoint.every_steps=4",
        "--global_batch=64",
        "--seed=3",
        "--schedule.name=constant",
    ]
    return trainer(
        "train", "--task=ddp_trainer.tasks.miniresnet:build", f"--checkpoint.directory={directory}",
        f"--max_steps={steps}", *fixed, *settings, environ=environ, cwd=directory.parent,
    )  # fmt: skip


def weights(directory: Path) -> dict[str, torch.Tensor]:
    newest = max(path for path in directory.glob("step-*") if path.suffix != ".tmp")
    return {key: value for part in sorted(newest.glob("model*.safetensors"))
            for key, value in load_file(part).items()}  # fmt: skip


def test_run_continues_in_another_cluster_bit_for_bit(server: Server, tmp_path: Path) -> None:
    environ = server.environment()
    mirror = f"--checkpoint.mirror={URL}"
    whole = train(tmp_path / "whole", 12, environ)
    assert whole.returncode == 0, whole.stdout + whole.stderr
    first = train(tmp_path / "first", 8, environ, mirror)
    assert first.returncode == 0, first.stdout + first.stderr
    second = train(tmp_path / "second", 12, environ, mirror)
    assert second.returncode == 0, second.stdout + second.stderr
    assert "resumed at step 8 of 12" in second.stdout
    assert f"{name(8, 0)} was copied from the mirror" in second.stdout
    expected, found = weights(tmp_path / "whole"), weights(tmp_path / "second")
    assert expected.keys() == found.keys()
    assert all(expected[key].equal(found[key]) for key in expected)
    kept = sorted(path.name for path in (server.data / "bucket/team/run").glob("step-*"))
    assert kept[-1].startswith("step-00000012")
    log = "".join(done.stdout + done.stderr for done in (whole, first, second))
    assert s3.SECRET not in log
    stored = b"".join(p.read_bytes() for p in server.data.rglob("*.json") if p.is_file())
    assert s3.SECRET.encode() not in stored
    assert s3.ACCESS.encode() not in stored


def test_commands_accept_the_address(server: Server, tmp_path: Path) -> None:
    environ = server.environment()
    run = Run(tmp_path / "run")
    run.save(10, 20)
    assert mirrored(run, environ)["step"] == 20
    shown = trainer("inspect", URL, "-o", "json", environ=environ, cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    document = json.loads(shown.stdout)
    assert (document["directory"], document["start"]) == (URL, name(20))
    assert document["checkpoints"][0]["state"] == "whole"
    single = [sys.executable, "-m", "ddp_trainer.checkpoint", f"{URL}/{name(20)}"]
    assert subprocess.run(single, env=environ, check=False).returncode == 0
    converted = trainer("convert", URL, "out.safetensors", environ=environ, cwd=tmp_path)
    assert converted.returncode == 0, converted.stderr
    own = load_file(run.directory / name(20) / "model.safetensors")
    other = load_file(tmp_path / "out.safetensors")
    assert own.keys() == other.keys()
    assert all(own[key].equal(other[key]) for key in own)

    model = server.data / "bucket/team/run" / name(20) / "model.safetensors"
    model.write_bytes(model.read_bytes()[:-1] + b"\x7f")
    damaged = trainer("inspect", URL, environ=environ, cwd=tmp_path)
    assert damaged.returncode == 1
    assert "model.safetensors does not match its checksum in the store" in damaged.stdout
    checked = subprocess.run(single, env=environ, check=False, capture_output=True, text=True)
    assert checked.returncode == 1
    assert "does not match its checksum in the store" in checked.stderr
    refused = trainer("convert", f"{URL}/{name(20)}", "x.pt", environ=environ, cwd=tmp_path)
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
    assert not (tmp_path / "x.pt").exists()


def test_weights_in_a_bucket_initialise_a_run(server: Server, tmp_path: Path) -> None:
    environ = server.environment()
    assert train(tmp_path / "first", 4, environ, f"--checkpoint.mirror={URL}").returncode == 0
    source = load_file(next((tmp_path / "first").glob("step-*4.*/model.safetensors")))
    done = train(tmp_path / "into", 1, environ, f"--init_from={URL}", "--optimizer.lr=1e-30")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"initial tensors from {URL}" in done.stdout
    found = weights(tmp_path / "into")
    floats = [key for key in source if "running" not in key and "batches" not in key]
    assert all(torch.allclose(source[key], found[key], atol=1e-6) for key in floats)


@pytest.mark.parametrize(
    ("case", "sentence"),
    [
        ("secret", "Forbidden"),
        ("bucket", "bucket does not exist"),
    ],
)
def test_wrong_credentials_or_bucket_end_the_start_with_one_sentence(
    server: Server, tmp_path: Path, case: str, sentence: str
) -> None:
    wrong = "a-wrong-secret-that-nobody-may-see"
    environ = server.environment(secret=wrong if case == "secret" else s3.SECRET)
    url = "s3://missing/run" if case == "bucket" else URL
    done = train(tmp_path / "run", 4, environ, f"--checkpoint.mirror={url}")
    assert done.returncode == 2, done.stdout + done.stderr
    assert f"checkpoint: cannot read {url}: " in done.stderr
    assert sentence in done.stderr
    assert wrong not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


FAULTS = {
    "errors": Faults(errors=0.3, seed=1),
    "lost answers": Faults(lost=0.2, seed=2),
    "truncated": Faults(truncated=0.3, seed=3),
    "slow": Faults(slow=0.3, seed=4),
    "stale lists": Faults(stale_lists=True, seed=5),
    "all": Faults(errors=0.1, lost=0.1, truncated=0.1, slow=0.1, stale_lists=True, seed=6),
}


@pytest.mark.parametrize("case", FAULTS)
def test_faults_of_the_store_change_no_bit(server: Server, tmp_path: Path, case: str) -> None:
    """Mirror and restore through the proxy. What arrives is what was saved, or nothing."""
    faults = FAULTS[case]
    run = Run(tmp_path / "run")
    with s3.proxy(server.port, faults) as port:
        environ = server.environment(port)
        for step in (10, 20):
            run.save(step)
            status = mirrored(run, environ)
            assert status["step"] == step, status
        found = fetched(tmp_path / "through the proxy", environ)
    assert found == name(20), faults.counts
    assert content(tmp_path / "through the proxy" / found) == content(run.directory / found)
    assert content(server.data / "bucket/team/run" / found) == content(run.directory / found)
    assert sum(faults.counts.values()) > 0


def test_killed_mirror_leaves_only_whole_checkpoints(server: Server, tmp_path: Path) -> None:
    """Kill the process at moments spread over its upload. Then look from another cluster."""
    environ, run = server.environment(), Run(tmp_path / "run")
    run.save(10)
    mirrored(run, environ)
    found = []
    for number, delay in enumerate((0.6, 1.0, 1.4, 1.8, 2.2, 2.6, 3.0, 4.0)):
        run.save(20 + number)
        process = subprocess.Popen(
            [sys.executable, "-m", "ddp_trainer.checkpoint.remote", "mirror", str(run.directory),
             URL], env=environ, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        time.sleep(delay)  # The moment of the kill, not a wait.
        process.kill()
        process.wait()
        assert process.stdin
        with contextlib.suppress(OSError):
            process.stdin.close()
        here = tmp_path / f"other {number}"
        newest = fetched(here, environ)
        assert newest is not None
        assert content(here / newest) == content(run.directory / newest)
        found.append(newest)
    assert found == sorted(found), "never an older one than before"
    assert mirrored(run, environ)["step"] == 27


def test_large_file_is_uploaded_in_parts(server: Server, tmp_path: Path) -> None:
    """A file above the size of one part of an upload arrives bit for bit."""
    environ, run = server.environment(), Run(tmp_path / "run")
    run.save(10)
    folder = run.directory / name(10)
    data = torch.randint(0, 256, (70 << 20,), dtype=torch.uint8).numpy().tobytes()
    (folder / "task.bin").write_bytes(data)
    manifest = json.loads((folder / "MANIFEST.json").read_text())
    manifest["files"]["task.bin"] = {"bytes": len(data), "crc32": f"{zlib.crc32(data):08x}"}
    (folder / "MANIFEST.json").write_text(json.dumps(manifest))
    assert mirrored(run, environ)["step"] == 10
    assert fetched(tmp_path / "other", environ) == name(10)
    assert content(tmp_path / "other" / name(10)) == content(folder)
