"""Compare the sizes of images with their goals."""

import csv
import re
from pathlib import PurePosixPath

from tools.release.oci_archive import OciArchive

_MB = 1_000_000
OPERATOR_REGISTRY_MB = 150
"""Maximum compressed size of the operator image in a registry, in 10^6 bytes."""
OPERATOR_OWN_MB = 50
"""Maximum size of the operator image's files above the base image, in 10^6 bytes."""
TRAINER_OWN_MB = 60
"""Maximum size of the trainer image's files above the base image and without torch's wheels, in
10^6 bytes."""
_TORCH = re.compile(r"(torch|triton|nvidia_(?!ml_py)\w+|cuda_\w+)-[^/]*\.dist-info$")


def report(name: str, image: OciArchive) -> tuple[str, bool]:
    """Return a line with the sizes of an image, and whether they meet its goals.

    Args:
        name: `operator` or `trainer-...`.
        image: The image, with compressed layers. Its first layer is the base image.
    """
    layers = image.layers()
    base, own = layers[0].unpacked / _MB, sum(layer.unpacked for layer in layers[1:]) / _MB
    registry = sum(layer.compressed for layer in layers) / _MB
    text = f"{name}: {registry:.0f} MB in a registry, {base + own:.0f} MB unpacked"
    text += f" (base image {base:.0f}, own files {own:.0f})"
    if name == "operator":
        met = registry <= OPERATOR_REGISTRY_MB and own <= OPERATOR_OWN_MB
        goal = f"{OPERATOR_REGISTRY_MB} MB in a registry, own files {OPERATOR_OWN_MB} MB"
    else:
        torch = torch_bytes(image) / _MB
        met = own <= torch + TRAINER_OWN_MB
        goal = f"own files {torch + TRAINER_OWN_MB:.0f} MB: torch's wheels + {TRAINER_OWN_MB}"
    return f"{text}; goal {'met' if met else 'MISSED'} ({goal})", met


def torch_bytes(image: OciArchive) -> int:
    """Return the unpacked size of torch's published wheels, without bytecode."""
    records = image.texts("*.dist-info/RECORD")
    return sum(
        int(size or 0)
        for path, text in records.items()
        if _TORCH.search(str(PurePosixPath(path).parent))
        for _, _, size in csv.reader(text.splitlines())
    )
