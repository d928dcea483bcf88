"""Remove secrets from objects and logs before they leave the machine of a user."""

import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "REDACTED"
"""Text in place of a secret."""
_PLAIN_VARIABLE = re.compile(
    r"^(NCCL_|TORCH_NCCL_|GLOO_|OMP_|MKL_|CUDA_|UCX_|FI_|PYTHONPATH$|PYTHONUNBUFFERED$)"
)
"""Pattern of variables whose values are no secrets and explain a failure."""
_SECRET_NAME = re.compile(r"(?i)(token|passw|secret|credential|api.?key|access.?key|private.?key)")
_NAMES = frozenset({"imagePullSecrets", "secretName"})
"""Fields with the name of a Secret, which is no secret."""
_IN_TEXT = (
    re.compile(
        r"(?i)((?:token|passw(?:or)?d|secret|api[_-]?key|access[_-]?key)[\"']?\s*[=:]\s*[\"']?)"
        r"([^\s\"',;&]+)"
    ),
    re.compile(r"(?i)((?:bearer|basic)\s+)([A-Za-z0-9+/=._~-]{8,})"),
    re.compile(r"(://[^/\s:@]*:)([^@\s/]+)(?=@)"),
    re.compile(r"()\b((?:AKIA|ASIA)[A-Z0-9]{16}|gh[pousr]_[A-Za-z0-9]{20,}|hf_[A-Za-z0-9]{20,})\b"),
)
"""Patterns of secrets in texts: what stays, and what is hidden."""
_DROPPED = ("managedFields", "kubectl.kubernetes.io/last-applied-configuration")


def redact_text(text: str) -> str:
    """Return a text in which passwords, tokens and keys are hidden."""
    for pattern in _IN_TEXT:
        text = pattern.sub(lambda found: f"{found[1]}{HIDDEN}", text)
    return text


def redact(value: Any, name: str = "") -> Any:
    """Return an object without the values of variables and of fields that may be secrets.

    Args:
        value: Part of an object.
        name: Name of the field that holds it.
    """
    if isinstance(value, Mapping):
        if _is_variable(value):
            return {**value, "value": _shown(str(value["name"]), str(value["value"]))}
        return {key: redact(one, str(key)) for key, one in value.items() if key not in _DROPPED}
    if isinstance(value, list):
        return [redact(one, name) for one in value]
    if isinstance(value, str):
        return HIDDEN if name not in _NAMES and _SECRET_NAME.search(name) else redact_text(value)
    return value


def _is_variable(value: Mapping[str, Any]) -> bool:
    return value.keys() == {"name", "value"}


def _shown(name: str, value: str) -> str:
    return redact_text(value) if _PLAIN_VARIABLE.match(name) else HIDDEN
