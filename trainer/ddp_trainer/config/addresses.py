"""Addresses of object stores in settings, such as `s3://bucket/run`.

Credentials come from the environment. An address with credentials is refused, because checkpoints,
logs and trackers contain the settings.
"""

import re
from typing import NamedTuple
from urllib.parse import urlsplit


class Needed(NamedTuple):
    """What an address needs."""

    extra: str
    """Extra of this package."""
    package: str
    """Package that the extra installs."""


SCHEMES = {
    "s3": Needed("s3", "s3fs"),
    "gs": Needed("gcs", "gcsfs"),
    "gcs": Needed("gcs", "gcsfs"),
    "az": Needed("azure", "adlfs"),
    "abfs": Needed("azure", "adlfs"),
    "abfss": Needed("azure", "adlfs"),
}
"""What an address needs, by its scheme."""
_WITH_ACCOUNT = frozenset({"abfs", "abfss"})
"""Schemes with `container@account` in place of a bucket."""
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


def is_url(text: str) -> bool:
    """Return whether a text is an address and not a path."""
    return _SCHEME.match(text) is not None


def check_url(name: str, url: str) -> None:
    """Check the form of an address. The text of an error does not repeat the address.

    Args:
        name: Name of the setting, for messages.
        url: The address.

    Raises:
        ValueError: If the scheme is unknown, the bucket or the prefix is missing, or the address
            contains credentials or options.
    """
    scheme, _, rest = url.partition("://")
    if scheme not in SCHEMES or not rest:
        schemes = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        raise ValueError(f"{name} must begin with one of {schemes}")
    parts = urlsplit(url)
    has_user = "@" in parts.netloc and scheme not in _WITH_ACCOUNT
    if has_user or ":" in parts.netloc or "?" in url or "#" in url:
        raise ValueError(
            f"{name} must be scheme://bucket/prefix without credentials, options and port; pass"
            " credentials and an endpoint in the environment (in a job: env with"
            " valueFrom.secretKeyRef)"
        )
    if not parts.netloc or not parts.path.strip("/"):
        raise ValueError(f"{name} must name a bucket and a prefix, for example s3://bucket/run")
