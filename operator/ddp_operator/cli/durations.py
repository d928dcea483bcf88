"""Parse durations in options."""

import re
from datetime import timedelta

from ddp_operator.client.errors import RequestError

_PATTERN = re.compile(r"(\d{1,6})(ms|s|m|h|d)?")
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_MOST_DAYS = 36_500
"""Maximum duration. A much longer one would lead to a time before the first year."""
_SHOWN = 40
"""Maximum characters of a duration in an error."""


def parse_duration(text: str, option: str) -> timedelta:
    """Return the duration that an option names: `90s`, `10m`, `1h30m`, or seconds as a number.

    Raises:
        RequestError: The text is no duration, or one of more than 36,500 days.
    """
    seconds, end = 0.0, 0
    for found in _PATTERN.finditer(text.strip()):
        if found.start() != end:
            break
        seconds += int(found[1]) * _SECONDS[found[2] or "s"]
        end = found.end()
    if not text.strip() or end != len(text.strip()):
        sentence = f"{option}: must be a duration such as 90s, 10m or 2h, got {text!r}"
        raise RequestError(sentence)
    if seconds > _MOST_DAYS * _SECONDS["d"]:
        raise RequestError(f"{option}: must be at most {_MOST_DAYS}d, got {text[:_SHOWN]!r}")
    return timedelta(seconds=seconds)
