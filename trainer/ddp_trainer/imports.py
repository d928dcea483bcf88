"""Import a function by its path."""

import importlib
from collections.abc import Callable
from typing import Any

from ddp_trainer.errors import InputError


def import_function(path: str, field: str) -> Callable[..., Any]:
    """Return the function with an import path.

    Args:
        path: Path of the form package.module:function.
        field: Name of the setting with the path, for error messages.

    Raises:
        InputError: If the path has another form, or there is no such function.
    """
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise InputError(f'{field}: "{path}" must have the form package.module:function')
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # If the user's own code imports a missing module, its traceback must stay visible.
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            raise InputError(f'{field}: there is no module "{error.name}"') from error
        raise
    function: Callable[..., Any] | None = getattr(module, name, None)
    if not callable(function):
        raise InputError(f'{field}: module "{module_name}" has no function "{name}"')
    return function
