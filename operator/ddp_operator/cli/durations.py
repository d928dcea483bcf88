"""Parse durations in options."""

import re
from datetime import timedelta

from ddp_operator.client.errors import RequestError

_PATTERN = re.compile(r"(\d{1,6})(ms|s|m|h|d)?")
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}


def parse_duration(text: str, option: str) -> timedelta:
    """Return the duration that an option names: `90s`, `10m`, `1h30m`, or seconds as a number.

    Raises:
        RequestError: The text is no duration.
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
    return timedelta(seconds=seconds)
