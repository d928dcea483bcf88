"""Open the store at an address, by the package that its scheme needs."""

import os
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec

from ddp_trainer.checkpoint.remote.objects import ObjectStore
from ddp_trainer.config.addresses import SCHEMES, check_url
from ddp_trainer.errors import InputError


def open_url(url: str, environ: Mapping[str, str] = os.environ) -> ObjectStore:
    """Return the store at an address. The credentials come from the environment.

    Raises:
        InputError: If the address is invalid, or its package is not installed.
    """
    try:
        check_url("the address", url)
    except ValueError as error:
        raise InputError(f"checkpoint: {error}") from None
    needed = SCHEMES[url.partition("://")[0]]
    if find_spec(needed.package) is None:
        raise InputError(
            f"checkpoint: {url} needs the package {needed.package}, which is not installed; add"
            f" ddp-trainer[{needed.extra}] to the image"
        )
    url_to_fs = import_module("fsspec.core").url_to_fs
    filesystem, root = url_to_fs(url, use_listings_cache=False, skip_instance_cache=True)
    return ObjectStore(filesystem, str(root).rstrip("/"), environ=environ)
