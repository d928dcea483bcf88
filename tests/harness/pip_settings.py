"""Pass the machine's pip settings to image builds without leaving them in the image."""

from __future__ import annotations

import configparser
import os
from pathlib import Path
from typing import Final

# Path of the machine's certificates in the build. The base image has a file at this path too.
CERTIFICATES: Final = "/etc/ssl/certs/ca-certificates.crt"
# Settings about the package index. Others (caches, wheel folders) are specific to this machine.
_INDEX_SETTINGS: Final = (
    "default-timeout",
    "extra-index-url",
    "find-links",
    "index-url",
    "no-index",
    "proxy",
    "retries",
    "timeout",
    "trusted-host",
)
_CERTIFICATE_VARIABLES: Final = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
_FILES: Final = (
    "/etc/xdg/pip/pip.conf",
    "/etc/pip.conf",
    "~/.pip/pip.conf",
    "~/.config/pip/pip.conf",
)


def configuration() -> str:
    """Return a pip.conf with this machine's index settings; empty if it has none."""
    settings = {name: value for name, value in _settings().items() if name in _INDEX_SETTINGS}
    links = [part for part in settings.get("find-links", "").split() if "://" in part]
    settings["find-links"] = "\n    ".join(links)
    if certificates() is not None:
        settings["cert"] = CERTIFICATES
    lines = [f"{name} = {value}" for name, value in sorted(settings.items()) if value]
    return "\n".join(["[global]", *lines, ""]) if lines else ""


def certificates() -> Path | None:
    """Return the certificates that this machine's pip is configured to trust, if any."""
    named = [os.environ.get(variable, "") for variable in _CERTIFICATE_VARIABLES]
    candidates = [_settings().get("cert", ""), *named]
    files = (Path(candidate) for candidate in candidates if candidate)
    return next((file for file in files if file.is_file()), None)


def _settings() -> dict[str, str]:
    """Return pip's settings on this machine. The environment overrides files."""
    found: dict[str, str] = {}
    for name in (*_FILES, os.environ.get("PIP_CONFIG_FILE", "")):
        parser = configparser.ConfigParser(interpolation=None)
        if name:
            parser.read(Path(name).expanduser(), encoding="utf-8")
        for section in ("global", "install"):
            if parser.has_section(section):
                found.update(
                    {key.replace("_", "-"): value for key, value in parser[section].items()}
                )
    for key, value in os.environ.items():
        if key.startswith("PIP_"):
            found[key.removeprefix("PIP_").lower().replace("_", "-")] = value
    return found
