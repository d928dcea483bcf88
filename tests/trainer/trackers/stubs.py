"""Stub modules of MLflow and Weights & Biases that record their calls.

Each function accepts only the parameters that the real one had when signatures.json was recorded.
"""

import inspect
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

RECORDED: dict[str, list[str]] = json.loads(
    Path(__file__).with_name("signatures.json").read_text(encoding="utf-8")
)["parameters"]

Calls = list[tuple[str, dict[str, Any]]]


def stub(calls: Calls, name: str, result: Callable[[dict[str, Any]], Any]) -> Callable[..., Any]:
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(n, kind, default=None) for n in RECORDED[name]]
    signature = inspect.Signature(parameters)

    def call(*arguments: Any, **named: Any) -> Any:
        given = dict(signature.bind(*arguments, **named).arguments)
        calls.append((name, given))
        return result(given)

    return call


def install(monkeypatch: Any) -> Calls:
    """Install both stubs. Return the list of their calls."""
    calls: Calls = []
    mlflow: Any = ModuleType("mlflow")

    def run(given: dict[str, Any]) -> Any:
        run_id = given["run_id"] or f"new-{sum(name == 'mlflow.start_run' for name, _ in calls)}"
        return SimpleNamespace(info=SimpleNamespace(run_id=run_id))

    mlflow.start_run = stub(calls, "mlflow.start_run", run)
    for name in ("log_metrics", "log_params", "end_run"):
        setattr(mlflow, name, stub(calls, f"mlflow.{name}", lambda _: None))
    wandb: Any = ModuleType("wandb")
    methods = {n: stub(calls, f"wandb.Run.{n}", lambda _: None) for n in ("log", "finish")}
    wandb.init = stub(calls, "wandb.init", lambda _: SimpleNamespace(**methods))
    wandb.Settings = lambda console: SimpleNamespace(console=console)
    for module in (mlflow, wandb):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return calls
