"""Base class of all configuration sections."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A frozen section that accepts neither wrong types nor unknown keys."""

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )

    def changed(self) -> set[str]:
        """Return the names of the settings that differ from their defaults."""
        fields = type(self).model_fields
        return {name for name, field in fields.items() if getattr(self, name) != field.default}


def no_effect(key: str, case: str) -> str:
    """Return an error message about a setting without effect in a case, for example `with sgd`."""
    return f'"{key}" must not be set {case}, because it has no effect'
