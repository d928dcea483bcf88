"""Tests of the images: their packages, users, settings, and equal results of equal builds."""

import json
import os
import re
from pathlib import Path

import pytest

from tests.harness import images
from tests.harness.install import REPOSITORY, VERSION
from tests.release.cyclonedx import problem_of
from tests.release.sandbox import Sandbox
from tools.release.oci_archive import OciArchive
from tools.release.sbom import bill_of_materials

pytestmark = pytest.mark.cluster

WHEELS = Path(os.environ.get("DDP_WHEELS", "../shared/wheels"))
PREFIX = "/opt/ddp-trainer/"
PACKAGES = re.compile(r"/opt/ddp-trainer/lib/python3\.\d+/site-packages/[^/]+")
"""Folders of packages that pip lists. The bill of materials also lists vendored packages."""
DIGITS = ("train", "--task=ddp_trainer.tasks.miniresnet:build", "--max_steps=3", "--device=cpu")


def archive_of(target: str) -> tuple[Path, str]:
    """Build an image as the tests on a cluster do, and return its archive and its name."""
    tag = f"{REPOSITORY}/{target}:{VERSION}"
    return images.build(target, tag, *arguments_of(target)), tag


def arguments_of(target: str) -> tuple[dict[str, str], Path | None]:
    """Return the build arguments and the wheels folder that `tests.harness.install` uses."""
    if target == "operator":
        return {}, None
    cpu = any(WHEELS.glob("torch-*+cpu-*"))
    return {"TORCH": "cpu" if cpu else "cuda"}, WHEELS if cpu else None


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Sandbox:
    return Sandbox.of(*archive_of("operator"), tmp_path_factory.mktemp("operator"))


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Sandbox:
    return Sandbox.of(*archive_of("trainer"), tmp_path_factory.mktemp("trainer"))


def listed_by_pip(sandbox: Sandbox) -> set[tuple[str, str]]:
    """Return the packages that the base image's pip lists among the image's packages."""
    done = sandbox.run("pip", "list", "--format=json")
    assert done.returncode == 0, done.stderr
    return {(entry["name"], entry["version"]) for entry in json.loads(done.stdout)}


def listed_by_bill(sandbox: Sandbox) -> set[tuple[str, str]]:
    return {
        (component["name"], component["version"])
        for component in bill_of_materials(sandbox.image)["components"]
        if component["purl"].startswith("pkg:pypi/")
        and PACKAGES.fullmatch(component["evidence"]["occurrences"][0]["location"])
    }


def test_operator_image_has_only_its_packages_and_its_sbom_lists_them(operator: Sandbox) -> None:
    listed = listed_by_bill(operator)
    assert listed == listed_by_pip(operator)
    assert {"kopf", "ddp-trainer"} <= {name for name, _ in listed}
    assert not {"rich", "Pygments", "torch", "pip"} & {name for name, _ in listed}
    debian = [c for c in bill_of_materials(operator.image)["components"] if ":deb/" in c["purl"]]
    assert "libc6" in {component["name"] for component in debian}
    assert problem_of(bill_of_materials(operator.image)) == ""


def test_operator_image_starts_as_any_user_without_unused_client_modules(
    operator: Sandbox,
) -> None:
    assert operator.settings["User"] == "1000:1000"
    assert not list(operator.root.glob(f"{PREFIX[1:]}lib/*/*/kubernetes/**/core_v1_api.py"))
    modules = "ddp_operator.app, ddp_operator.handlers, ddp_operator.check_installation"
    done = operator.run("python3", "-c", f"import {modules}")
    assert (done.returncode, done.stderr) == (0, "")
    started = operator.run("ddp-operator", DDP_OPERATOR_LEASE_NAMESPACE="")
    assert "Traceback" not in started.stderr
    assert started.stderr.startswith("ddp-operator: DDP_OPERATOR_")


def test_operator_image_names_the_missing_extra_of_ddpjob(operator: Sandbox) -> None:
    done = operator.run("ddpjob", "--help")
    assert done.returncode == 2
    assert done.stderr.startswith("ddpjob needs rich: install the extra [cli] of ddp-trainer ")


@pytest.mark.sweep
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("target", ["operator", "trainer"])
def test_equal_inputs_give_bit_identical_images(target: str, tmp_path: Path) -> None:
    archive, tag = archive_of(target)
    images.build_again(target, tag, *arguments_of(target), archive=tmp_path / "again.tar")
    images.write_oci(archive, tag, tmp_path / "one.tar", compress=False)
    images.write_oci(tmp_path / "again.tar", tag, tmp_path / "two.tar", compress=False)
    assert OciArchive(tmp_path / "two.tar").digest == OciArchive(tmp_path / "one.tar").digest


@pytest.mark.sweep
def test_trainer_image_trains_as_any_user_and_its_sbom_lists_its_packages(trainer: Sandbox) -> None:
    assert listed_by_bill(trainer) == listed_by_pip(trainer)
    assert problem_of(bill_of_materials(trainer.image)) == ""
    done = trainer.run("ddp-trainer", *DIGITS)
    assert done.returncode == 0, done.stderr
    assert "summary: " in done.stdout
    refused = trainer.run("ddp-trainer", *DIGITS, "--compile=true")
    assert refused.returncode == 2
    assert "needs a C++ compiler" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.sweep
@pytest.mark.timeout(900)
def test_trainer_image_with_compilers_runs_compiled_models(tmp_path: Path) -> None:
    sandbox = Sandbox.of(*archive_of("trainer-compiler"), tmp_path)
    done = sandbox.run("ddp-trainer", *DIGITS, "--compile=true")
    assert done.returncode == 0, done.stderr
    assert "summary: " in done.stdout
