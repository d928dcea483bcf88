"""Names of parameters and buffers in checkpoints."""

_COMPILED = "_orig_mod."
"""Level that torch.compile adds to the names inside a module that a task compiles itself."""


def plain_name(name: str) -> str:
    """Return the name of a parameter or buffer as if no part of the model were compiled.

    So a run can resume after its task has begun or ceased to compile a part of its model.
    """
    return name.replace(_COMPILED, "")
