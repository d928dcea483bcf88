"""Tests that the operator's tests use the allocator settings of the image."""

from pathlib import Path

from tests.api.operator_process import ALLOCATOR

DOCKERFILE = Path(__file__).parents[2] / "Dockerfile"


def test_operator_process_uses_the_allocator_settings_of_its_image() -> None:
    stages = DOCKERFILE.read_text().split("FROM ")
    operator = next(stage for stage in stages if stage.startswith("base AS operator\n"))
    for name, value in ALLOCATOR.items():
        assert f"{name}={value}" in operator
