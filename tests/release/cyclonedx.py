"""Check bills of materials with the schema of CycloneDX."""

import json
from typing import Any

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator


def problem_of(bill: dict[str, Any]) -> str:
    """Return the first violation of the schema of CycloneDX 1.6, or an empty text."""
    found = JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(bill))
    return "" if found is None else str(found)
