"""Add and multiply the resource requests of pods."""

from collections.abc import Iterable, Mapping
from decimal import ROUND_CEILING, Decimal, InvalidOperation
from typing import Any

_BINARY = {f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGTPE", 1)}
_DECIMAL = {letter: Decimal(1000) ** power for power, letter in enumerate("kMGTPE", 1)}
_SMALL = {"m": Decimal("1e-3"), "u": Decimal("1e-6"), "n": Decimal("1e-9")}
_FACTORS = {**_BINARY, **_DECIMAL, **_SMALL}
_MILLI = Decimal("0.001")

Amounts = dict[str, Decimal]


def pod_requests(spec: Mapping[str, Any]) -> Amounts:
    """Return the amounts that the scheduler reserves for a pod, by resource.

    Containers and sidecars run together. An init container runs beside the sidecars only. Values
    that the API server would refuse are skipped.
    """
    init = _objects(spec.get("initContainers"))
    sidecars = [one for one in init if one.get("restartPolicy") == "Always"]
    running = _sum([*_objects(spec.get("containers")), *sidecars])
    for one in init:
        if one.get("restartPolicy") == "Always":
            continue
        for name, amount in _sum([one, *sidecars]).items():
            running[name] = max(running.get(name, Decimal(0)), amount)
    return running


def times(amounts: Amounts, count: int) -> dict[str, str]:
    """Return resource amounts times a factor as Kubernetes quantities, rounded up to 0.001."""
    return {name: _to_text(amount * count) for name, amount in sorted(amounts.items())}


def _objects(value: Any) -> list[Mapping[str, Any]]:
    found = value if isinstance(value, list) else []
    return [one for one in found if isinstance(one, Mapping)]


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _sum(containers: Iterable[Mapping[str, Any]]) -> Amounts:
    out: Amounts = {}
    for container in containers:
        # Without a request, the limit is the request.
        resources = _object(container.get("resources"))
        requests = {**_object(resources.get("limits")), **_object(resources.get("requests"))}
        for name, value in requests.items():
            found = amount(value)
            if found is not None:
                out[name] = out.get(name, Decimal(0)) + found
    return out


def amount(value: Any) -> Decimal | None:
    """Return the number that a quantity stands for, or None if the text is no quantity."""
    text = str(value)
    suffix = next((s for s in sorted(_FACTORS, key=len, reverse=True) if text.endswith(s)), "")
    try:
        number = Decimal(text.removesuffix(suffix))
    except InvalidOperation:
        return None
    return number * _FACTORS.get(suffix, Decimal(1)) if number.is_finite() else None


def _to_text(amount: Decimal) -> str:
    if amount == amount.to_integral_value():
        return str(int(amount))
    return f"{int((amount / _MILLI).to_integral_value(ROUND_CEILING))}m"
