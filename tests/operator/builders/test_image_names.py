"""Names of images by digest, from the forms that runtimes report."""

import pytest

from ddp_operator.builders.image_names import image_by_digest, repository

A = f"sha256:{'a' * 64}"


@pytest.mark.parametrize(
    ("image", "full"),
    [
        ("python", "docker.io/library/python"),
        ("python:3.11", "docker.io/library/python"),
        ("docker.io/python:3.11", "docker.io/library/python"),
        ("index.docker.io/team/trainer", "docker.io/team/trainer"),
        ("team/trainer:1", "docker.io/team/trainer"),
        ("localhost/trainer:1", "localhost/trainer"),
        ("registry:5000/team/trainer", "registry:5000/team/trainer"),
        (f"registry.example/team/trainer:1@{A}", "registry.example/team/trainer"),
        (f"docker-pullable://team/trainer@{A}", "docker.io/team/trainer"),
    ],
)
def test_repository_of_an_image_is_its_full_name(image: str, full: str) -> None:
    assert repository(image) == full


@pytest.mark.parametrize(
    ("image", "image_id", "pinned"),
    [
        # containerd and CRI-O, after a pull
        ("team/trainer:1", f"docker.io/team/trainer@{A}", f"team/trainer@{A}"),
        ("registry:5000/trainer:1", f"registry:5000/trainer@{A}", f"registry:5000/trainer@{A}"),
        # cri-dockerd
        ("python:3.11", f"docker-pullable://python@{A}", f"python@{A}"),
        # an image by digest, whose id may name another manifest of the same content
        (f"team/trainer:1@{A}", f"docker.io/team/trainer@sha256:{'b' * 64}", f"team/trainer@{A}"),
        # imported on the node, by name of the import or by the local id
        ("trainer:1", f"docker.io/library/import-2026-11-25@{A}", None),
        ("trainer:1", A, None),
        ("trainer:1", f"docker://{A}", None),
        # the same content in another repository, from which the job may not be allowed to pull
        ("team/trainer:1", f"docker.io/other/trainer@{A}", None),
        # no container yet
        ("team/trainer:1", "", None),
        ("", "", None),
    ],
)
def test_image_id_is_used_only_if_it_has_the_repository_of_the_image(
    image: str, image_id: str, pinned: str | None
) -> None:
    assert image_by_digest(image, image_id) == pinned
