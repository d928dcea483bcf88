"""Adapters of MLflow and Weights & Biases. The user must install these packages.

The packages' own environment variables select server, project and account: `MLFLOW_TRACKING_URI`,
`MLFLOW_EXPERIMENT_NAME`, `WANDB_PROJECT`, `WANDB_API_KEY`, `WANDB_MODE`.
"""

import importlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_LONGEST_PARAMETER = 500
"""Maximum length of a parameter that every version of MLflow accepts, in characters."""
_PARAMETERS_AT_ONCE = 100
"""Maximum number of parameters that MLflow accepts in one request."""


class Mlflow:
    """An MLflow run. Every attempt continues the same run."""

    def __init__(self, run_id: str | None, name: str, config: Mapping[str, Any]) -> None:
        """Start the run, or continue it.

        Args:
            run_id: Id of the run to continue. None creates a new run.
            name: Name of a new run.
            config: Settings of a new run, as JSON.
        """
        self._mlflow: Any = importlib.import_module("mlflow")
        started = self._mlflow.start_run(run_id=run_id, run_name=None if run_id else name)
        self.run_id: str = started.info.run_id
        """Id with which another attempt continues this run."""
        if run_id is None:
            self._log_config(config)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Send the values of a step."""
        allowed = {re.sub(r"[^\w\-./ ]", "_", name): value for name, value in values.items()}
        self._mlflow.log_metrics(allowed, step=step)

    def close(self, *, complete: bool) -> None:
        """End the run. A stopped run has the status KILLED until another attempt continues it."""
        self._mlflow.end_run(status="FINISHED" if complete else "KILLED")

    def _log_config(self, config: Mapping[str, Any]) -> None:
        settings = [(name, str(value)[:_LONGEST_PARAMETER]) for name, value in flat(config)]
        for start in range(0, len(settings), _PARAMETERS_AT_ONCE):
            self._mlflow.log_params(dict(settings[start : start + _PARAMETERS_AT_ONCE]))


class Wandb:
    """A Weights & Biases run. Every attempt continues the same run."""

    def __init__(self, run_id: str, name: str, config: Mapping[str, Any], directory: Path) -> None:
        """Start the run, or continue it.

        Args:
            run_id: Id of the run, chosen by the caller.
            name: Name of the run.
            config: Settings of this attempt, as JSON. They may change from attempt to attempt.
            directory: Folder for the files that the package `wandb` writes.
        """
        wandb: Any = importlib.import_module("wandb")
        self._run = wandb.init(
            id=run_id,
            resume="allow",
            name=name,
            config=dict(config),
            allow_val_change=True,
            dir=str(directory),
            # The output of the process belongs to the logs of the job.
            settings=wandb.Settings(console="off"),
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Send the values of a step."""
        self._run.log(dict(values), step=step)

    def close(self, *, complete: bool) -> None:
        """Send all pending values, and end the run until another attempt continues it."""
        self._run.finish(exit_code=0 if complete else 1)


def flat(config: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Return all settings with dotted names, such as `optimizer.lr`."""
    found: list[tuple[str, Any]] = []
    for name, value in config.items():
        if isinstance(value, Mapping) and value:
            found += flat(value, f"{prefix}{name}.")
        else:
            found.append((f"{prefix}{name}", value))
    return found
