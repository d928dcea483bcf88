"""Build the project's images from its Dockerfile, once per content of their inputs."""

from __future__ import annotations

import hashlib
import re
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from tests.harness import base_image, debian, machine, mounts, paths, pip_settings
from tests.harness.build_inputs import Inputs
from tests.harness.buildah import Storage
from tests.harness.errors import HarnessError
from tests.harness.locks import building
from tests.harness.run import Figures


def build_base() -> Path:
    """Build the base image unless it is in the cache; return its archive.

    Raises:
        HarnessError: The user is not root, or debootstrap or buildah failed.
    """
    return base_image.build(Figures())


def build(
    target: str,
    tag: str,
    build_args: Mapping[str, str] | None = None,
    wheels: Path | None = None,
    *,
    repository: Path = paths.REPOSITORY,
) -> Path:
    """Build one target of the Dockerfile unless it is in the cache; return its archive.

    The build context contains only files that the target copies and git does not ignore. The
    cache key therefore covers all inputs of the image.

    Args:
        target: The stage.
        tag: The image's name with a tag, which must not be `latest`.
        build_args: The build's arguments; `BASE_IMAGE` defaults to the local base image.
        wheels: A folder that the build mounts at `/wheels`.
        repository: The folder with the Dockerfile.

    Raises:
        HarnessError: The tag or the target is wrong, or a tool failed.
    """
    image = _full_name(tag)
    if wheels is not None and not wheels.is_dir():
        raise HarnessError(f"The wheels folder {wheels} does not exist.")
    machine.check()
    debian.ensure(debian.IMAGE_PACKAGES)
    base = build_base()
    arguments = {"BASE_IMAGE": base_image.IMAGE} | dict(build_args or {})
    inputs = Inputs.gather(repository, target, base, wheels)
    storage = Storage(paths.cache() / "buildah" / inputs.outside)
    return _build_once(storage, inputs, target, image, arguments)


def build_upon(
    base: Path, folder: Path, target: str, tag: str, build_args: Mapping[str, str]
) -> Path:
    """Build a Dockerfile that starts from an image of this project, as users do.

    Args:
        base: The archive of the image of this project.
        folder: The folder with the Dockerfile.
        target: The stage.
        tag: The name of the new image with a tag.
        build_args: The arguments of the build. One of them names the image of this project.

    Returns:
        The archive of the new image, from the cache if no input has changed.

    Raises:
        HarnessError: The tag or the target is wrong, or a tool failed.
    """
    inputs = Inputs.gather(folder, target, base, None)
    return _build_once(_amended(), inputs, target, _full_name(tag), build_args)


def build_again(
    target: str,
    tag: str,
    build_args: Mapping[str, str] | None = None,
    wheels: Path | None = None,
    *,
    archive: Path,
) -> None:
    """Build one target without the results of earlier builds, and write it to an archive.

    Raises:
        HarnessError: The tag or the target is wrong, or a tool failed.
    """
    base = build_base()
    arguments = {"BASE_IMAGE": base_image.IMAGE} | dict(build_args or {})
    inputs = Inputs.gather(paths.REPOSITORY, target, base, wheels)
    # Its layers must not enter the cache, because buildah takes labels from there for any
    # values of their arguments.
    storage = Storage(paths.cache() / "buildah" / "again")
    try:
        _build_in_storage(storage, inputs, target, _full_name(tag), arguments)
        storage.export(_full_name(tag), archive)
    finally:
        if storage.folder.is_dir():
            mounts.remove_tree(storage.folder)


def write_oci(archive: Path, tag: str, target: Path, *, compress: bool = True) -> None:
    """Write the image of an archive as an OCI archive.

    Args:
        archive: The archive that `build` returned.
        tag: The name of the image in it.
        target: The new file.
        compress: Whether to compress the layers, as a registry stores them.

    Raises:
        HarnessError: buildah failed.
    """
    with tempfile.TemporaryDirectory(prefix=".oci-", dir=archive.parent) as work:
        storage = Storage(Path(work))
        try:
            storage.load(archive)
            storage.export_oci(_full_name(tag), target, compress=compress)
        finally:
            mounts.unmount_below(Path(work))


def amend(archive: Path, original: str, tag: str, script: str) -> Path:
    """Run a shell script in an image, and return the archive of the result under another name.

    Args:
        archive: The archive of the original image.
        original: The name of the image in it.
        tag: The name of the new image.
        script: Commands that root runs in the image.

    Raises:
        HarnessError: The script or buildah failed.
    """
    key = hashlib.sha256(f"{archive.name} {tag} {script}".encode()).hexdigest()[:12]
    amended = archive.parent / f"{_slug(tag)}-{key}.tar"
    with building(archive.parent / f"{_slug(tag)}.lock", tag):
        if not amended.is_file():
            storage = _amended()
            storage.load(archive)
            with tempfile.TemporaryDirectory(prefix="ddp-trainer-image-") as work:
                lines = [f"FROM {original} AS amended", "USER root", f"RUN {script}", "USER 1000"]
                Path(work, "Dockerfile").write_text("\n".join(lines), encoding="utf-8")
                storage.build(
                    context=Path(work), target="amended", image=tag, build_args={}, mounts=[]
                )
            _export(storage, tag, amended)
    return amended


def _amended() -> Storage:
    """Return the storage of images that start from one of this project."""
    return Storage(paths.cache() / "buildah" / "amended")


def _build_once(
    storage: Storage, inputs: Inputs, target: str, image: str, arguments: Mapping[str, str]
) -> Path:
    """Build one target unless its archive is in the cache; return the archive."""
    key = inputs.key([image, target, *(f"{k}={v}" for k, v in sorted(arguments.items()))])
    folder = paths.cache() / "images"
    archive = folder / f"{_slug(image)}-{key}.tar"
    if not archive.is_file():
        with building(folder / f"{_slug(image)}.lock", image):
            if not archive.is_file():
                start = time.monotonic()
                _build_in_storage(storage, inputs, target, image, arguments)
                _export(storage, image, archive)
                Figures().note(f"build {target}", time.monotonic() - start, image)
    return archive


def _build_in_storage(
    storage: Storage, inputs: Inputs, target: str, image: str, arguments: Mapping[str, str]
) -> None:
    with tempfile.TemporaryDirectory(prefix="ddp-trainer-image-") as work:
        context = Path(work, "context")
        inputs.copy_to(context)
        storage.load(inputs.base)
        storage.build(
            context=context,
            target=target,
            image=image,
            build_args=arguments,
            mounts=_mounts(Path(work), inputs.wheels),
        )


def _export(storage: Storage, image: str, archive: Path) -> None:
    """Write an image to an archive, and delete the archives of its older builds."""
    fresh = archive.with_suffix(".part")
    storage.export(image, fresh)
    for older in archive.parent.glob(f"{_slug(image)}-{'?' * 12}.tar"):
        older.unlink()
    fresh.rename(archive)


def _mounts(work: Path, wheels: Path | None) -> list[str]:
    """Return the files of this machine that the build mounts. None of them stays in the image."""
    mounts: list[str] = []
    configuration = pip_settings.configuration()
    if configuration:
        (work / "pip.conf").write_text(configuration, encoding="utf-8")
        mounts.append(f"{work / 'pip.conf'}:/etc/pip.conf:ro")
    certificates = pip_settings.certificates()
    if certificates is not None:
        mounts.append(f"{certificates.resolve()}:{pip_settings.CERTIFICATES}:ro")
    if wheels is not None:
        mounts.append(f"{wheels.resolve()}:/wheels:ro")
    return mounts


def _full_name(tag: str) -> str:
    """Return the name with a registry, as containerd stores it."""
    name, _, version = tag.rpartition(":")
    if not name or "/" in version or version == "latest":
        raise HarnessError(f"An image needs a tag other than latest, for example {tag}:test.")
    registry = name.split("/")[0] if "/" in name else ""
    known = registry == "localhost" or re.search(r"[.:]", registry)
    return tag if known else f"localhost/{tag}"


def _slug(image: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", image.removeprefix("localhost/"))
