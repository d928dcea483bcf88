"""Warn about settings that look like credentials, and hide credentials in messages.

Checkpoints contain the config, and log collectors keep messages.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

_NAME = re.compile(
    r"(?:.*_)?(?:token|secret|password|passwd|credentials?|api_?key|access_?key)", re.IGNORECASE
)
_VALUE = re.compile(r"[A-Za-z0-9_+/=.:-]{16,}")
"""Pattern of a credential's value: long and without spaces, unlike the value `<pad>` of
`pad_token`."""
_HOLDS_SECRET = re.compile(
    r"token|secret|passw|credential|key|connection_string|sas", re.IGNORECASE
)
"""Pattern of names of environment variables that may hold a secret."""
_SHORTEST_SECRET = 8
HIDDEN = "<hidden>"


def redacted(text: str, environ: Mapping[str, str]) -> str:
    """Return a text without the values of variables of the environment that may be secrets."""
    secrets = {
        value
        for name, value in environ.items()
        if _HOLDS_SECRET.search(name) and len(value) >= _SHORTEST_SECRET
    }
    for value in sorted(secrets, key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    return text


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
