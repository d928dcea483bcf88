"""Spares a new container the import of torch's compiler, which training itself does not need.

DDP's constructor, the process group and every optimizer import `torch._dynamo`: 820 modules, two
fifths of what a standby would import, for four functions that do nothing while nothing is compiled
and a setting. `put_off` puts a module in its place that has just these. Whoever asks for anything
else gets the real module, at that moment and from then on: `torch.compile` works as ever.
"""

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

DYNAMO = "torch._dynamo"


def put_off() -> None:
    """Let `import torch._dynamo` cost nothing until it is needed. Needs torch to be imported."""
    if DYNAMO not in sys.modules and (spec := importlib.util.find_spec(DYNAMO)) is not None:
        _Later(spec).stand_in()


def load() -> None:
    """Import the real one, if it was put off."""
    module = sys.modules.get(DYNAMO)
    if isinstance(module, _Later):
        module.load()


class _Later(ModuleType):
    """`torch._dynamo` until more is asked of it than what does nothing."""

    def __init__(self, spec: ModuleSpec) -> None:
        super().__init__(DYNAMO)
        self.__spec__, self.__file__ = spec, spec.origin
        self.__path__: list[str] = []  # No submodule is found without the finder.
        self.finder = _Finder(self)
        self._not_disabled: list[Any] = []
        self.graph_break = _nothing
        self.disable = self._disable
        # What config.optimize_ddp says by default: whoever sets it has loaded the real one.
        self.utils = _Part(self, "utils", get_optimize_ddp_mode=lambda: "ddp_optimizer")
        # Asked by torch's log whenever it shows an exception, as launchers do when a peer is gone.
        verbose = os.environ.get("TORCHDYNAMO_VERBOSE", "0") == "1"
        self.config = _Part(self, "config", verbose=verbose)
        self.trace_rules = _Part(self, "trace_rules", clear_lru_cache=_nothing)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__all__":  # As `inspect` asks of every module.
            raise AttributeError(name)
        return getattr(self.load(), name)

    def stand_in(self) -> None:
        """Take the real module's place."""
        sys.modules[DYNAMO] = sys.modules["torch"]._dynamo = self  # type: ignore[attr-defined] # noqa: SLF001
        sys.meta_path.insert(0, self.finder)

    def load(self) -> ModuleType:
        """The real module, which takes this one's place wherever it is known.

        Raises:
            Exception: Whatever its import failed with; training goes on without it.
        """
        if sys.modules.get(DYNAMO) is self:
            del sys.modules[DYNAMO], sys.modules["torch"]._dynamo  # noqa: SLF001
            sys.meta_path.remove(self.finder)
            try:
                real = importlib.import_module(DYNAMO)
            except BaseException:
                self.stand_in()
                raise
            for function in self._not_disabled:
                vars(function).pop("__dynamo_disable", None)
            vars(self).update(vars(real))
        return importlib.import_module(DYNAMO)

    def _disable(self, fn: Any = None, recursive: bool = True, **options: Any) -> Any:
        """As torch calls it for its own functions, of which it keeps the result."""
        if fn is None or options != {"wrapping": False}:
            return self.load().disable(fn, recursive, **options)
        self._not_disabled.append(fn)
        return fn


def _nothing() -> None:
    """What these functions do outside of a compilation."""


class _Part:
    """A submodule of which a few things are known before it is loaded."""

    def __init__(self, package: _Later, name: str, **known: Any) -> None:
        vars(self).update(_package=package, _name=name, _known=known)

    def __getattr__(self, name: str) -> Any:
        if name in self._known and sys.modules.get(DYNAMO) is self._package:
            return self._known[name]
        return getattr(self._real(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._real(), name, value)

    def _real(self) -> Any:
        return getattr(self._package.load(), self._name)


class _Finder(MetaPathFinder):
    """Loads the real package when a submodule of it is imported."""

    def __init__(self, package: _Later) -> None:
        self._package = package

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Where a submodule is found, which the package has often imported itself by then."""
        del path, target
        if not fullname.startswith(f"{DYNAMO}."):
            return None
        self._package.load()
        if (loaded := sys.modules.get(fullname)) is None or loaded.__spec__ is None:
            return importlib.util.find_spec(fullname)
        # It would be loaded a second time if it were found there; the import puts it back.
        del sys.modules[fullname]
        return ModuleSpec(fullname, _Loaded(loaded, loaded.__spec__))


class _Loaded(Loader):
    """Hands out a module that is loaded already, as it is."""

    def __init__(self, module: ModuleType, spec: ModuleSpec) -> None:
        self._module, self._spec = module, spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module itself."""
        del spec
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing of it runs again."""
        module.__spec__ = self._spec
