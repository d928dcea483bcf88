"""Warn about settings that look like credentials, because checkpoints contain the config."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

_NAME = re.compile(
    r"(?:.*_)?(?:token|secret|password|passwd|credentials?|api_?key|access_?key)", re.IGNORECASE
)
_VALUE = re.compile(r"[A-Za-z0-9_+/=.:-]{16,}")
"""Pattern of a credential's value: long and without spaces, unlike the value `<pad>` of
`pad_token`."""


def credentials_warning(settings: Mapping[str, Any]) -> str | None:
    """Return a warning that names the settings that look like credentials, or None.

    Args:
        settings: The task's settings as JSON. A `SecretStr` is masked in this form.
    """
    found = list(_keys(settings, "task."))
    if not found:
        return None
    one = len(found) == 1
    return (
        f"{', '.join(found)} {'looks like a credential' if one else 'look like credentials'}, and"
        " config is copied to config.json, to every checkpoint and to trackers; pass it in a"
        " variable instead (in a job: env with valueFrom.secretKeyRef)"
    )


def _keys(settings: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _keys(value, f"{prefix}{key}.")
        elif isinstance(value, str) and _NAME.fullmatch(key) and _VALUE.fullmatch(value):
            yield prefix + key
