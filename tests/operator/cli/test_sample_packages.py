"""Samples that need packages or code beside the trainer run with those of this machine."""

import http.client
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from sklearn.datasets import load_digits

from tests.harness import extra_packages, s3
from tests.operator.cli.test_sample_runs import SAMPLES, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # The first call installs packages.

OWN_IMAGE = SAMPLES / "own-image"
DOCKERFILE = (OWN_IMAGE / "Dockerfile").read_text(encoding="utf-8")
ADDRESS = re.compile(r"serves \S+ at port (\d+)")


@pytest.mark.parametrize(
    ("name", "steps", "newest"),
    [("lightning", 96, "newest.ckpt"), ("hugging-face", 48, "checkpoint-48/model.safetensors")],
)
def test_script_of_a_framework_reports_its_progress_and_its_checkpoint(
    tmp_path: Path, name: str, steps: int, newest: str
) -> None:
    shown = run(tmp_path, f"{name}.yaml", environ=extra_packages.environment("bench"))
    assert f"step {steps}/{steps} (100%)" in shown
    assert "Completed: all 2 ranks of attempt 1 exited with code 0" in shown
    (saved,) = tmp_path.glob(f"ddp-runs/{name}/volumes/training-shared/{name}-*/{newest}")
    assert f"checkpoint: ddp-runs/{name}/" in shown
    assert saved.is_file()


def test_data_in_a_bucket_are_read_while_the_job_trains(tmp_path: Path) -> None:
    digits = load_digits()
    records = [
        bytes([*pixels.astype(int).tolist(), int(kind)])
        for pixels, kind in zip(digits.data, digits.target, strict=True)
    ]
    with s3.server(tmp_path / "server") as server:
        for place, part in {"train/a": records[:150], "train/b": records[150:200],
                            "test/a": records[200:260]}.items():  # fmt: skip
            file = server.data / "bucket" / "digits" / place
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(b"".join(part))
        # Secrets need a cluster, so the credentials are those of the test's environment.
        path = '[{"name": "PYTHONPATH", "value": "/code"}]'
        settings = ["config.global_batch=50", "config.epochs=2", f"env={path}"]
        shown = run(tmp_path, "s3-data.yaml", *settings, environ=server.environment())
    assert "step 8/8 (100%)" in shown
    assert "test accuracy" in shown


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run of own-image.yaml with the files that the Dockerfile copies."""
    folder = tmp_path_factory.mktemp("waves")
    for source, place in re.findall(r"^COPY (\S+) (\S+)$", DOCKERFILE, re.MULTILINE):
        given, copied = OWN_IMAGE / source, folder / "image" / place.lstrip("/")
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(given, copied) if given.is_dir() else shutil.copy(given, copied)
    run(folder, "own-image.yaml", "config.epochs=4", environ=image_environment(folder))
    return folder


def image_environment(folder: Path) -> dict[str, str]:
    """Return the environment of this process with PYTHONPATH as in the image."""
    [path] = re.findall(r"^ENV PYTHONPATH=(\S+)$", DOCKERFILE, re.MULTILINE)
    return {**os.environ, "PYTHONPATH": str(folder / "image" / path.lstrip("/"))}


def test_image_of_its_own_has_the_code_of_its_job(trained: Path) -> None:
    assert list(trained.glob("ddp-runs/waves/volumes/training-shared/waves/step-*/MANIFEST.json"))


def test_packages_of_the_image_are_those_of_the_development_environment() -> None:
    given = re.findall(r"^\w\S+$", (OWN_IMAGE / "requirements.txt").read_text(), re.MULTILINE)
    locked = (SAMPLES.parents[1] / "requirements" / "dev.lock").read_text(encoding="utf-8")
    assert len(given) == 3
    assert [pin for pin in given if f"\n{pin} \\\n" not in locked] == []


def objects(kind: str) -> dict[str, Any]:
    """Return the object of a kind in serve.yaml."""
    documents = yaml.safe_load_all((SAMPLES / "serve.yaml").read_text(encoding="utf-8"))
    [found] = [one for one in documents if one["kind"] == kind]
    return dict(found)


@pytest.fixture(scope="module")
def port(trained: Path) -> Iterator[int]:
    """Export the run as serve.yaml does, and return the port of its server."""
    volume = str(trained / "ddp-runs" / "waves" / "volumes" / "training-shared")
    environ = image_environment(trained)
    [export] = objects("Job")["spec"]["template"]["spec"]["containers"]
    program, *arguments = (word.replace("/checkpoints", volume) for word in export["command"])
    assert program == "ddp-trainer"
    subprocess.run([sys.executable, "-m", "ddp_trainer", *arguments], env=environ, check=True)
    [serve] = objects("Deployment")["spec"]["template"]["spec"]["containers"]
    [variable] = serve["env"]
    code = trained / "serve.py"
    code.write_text(objects("ConfigMap")["data"]["serve.py"], encoding="utf-8")
    model = {variable["name"]: variable["value"].replace("/checkpoints", volume), "PORT": "0"}
    server = subprocess.Popen(
        [sys.executable, str(code)], env={**environ, **model}, stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout
        address = ADDRESS.match(server.stdout.readline())
        assert address
        yield int(address[1])
    finally:
        server.kill()
        server.communicate()


def answer(port: int, method: str, content: Any = None) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, "/", json.dumps(content) if content else None)
    with connection.getresponse() as response:
        found = response.status, json.loads(response.read())
    connection.close()
    return found


def test_exported_model_answers_requests(port: int, trained: Path) -> None:
    code = "import json; from waves.task import waves; x, y = waves(200, 0.3, 9).tensors; "
    code += "print(json.dumps([x.tolist(), y.tolist()]))"
    drawn = subprocess.run(
        [sys.executable, "-c", code], env=image_environment(trained), capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    x, classes = json.loads(drawn.stdout)
    assert answer(port, "GET")[0] == 200
    status, found = answer(port, "POST", {"inputs": x})
    assert status == 200
    right = sum(one == other for one, other in zip(found["classes"], classes, strict=True))
    assert right > 180
    status, refused = answer(port, "POST", {"inputs": [[1.0]]})
    assert (status, list(refused)) == (400, ["error"])
    assert answer(port, "POST", {"inputs": x[:1]})[0] == 200
