"""Check the settings of the bundled training loop before any pod exists.

The trainer's own models decide, so that the operator and the ranks refuse the same settings with
the same sentence. They import no torch.
"""

from collections.abc import Mapping
from typing import Any

from ddp_operator.api.job import DDPJob
from ddp_operator.builders.env import workload_variables
from ddp_wire.contract import WORKER_CONTAINER

_OVERLAID = {"args", "command", "env", "envFrom", "image"}
"""Fields of the worker container that can replace the loop or its settings."""


def config_error(job: DDPJob) -> str | None:
    """Return one sentence about the first setting that the bundled loop refuses, or None.

    The settings of the task itself are not checked, because only its own code knows them. Neither
    is a job with a command, or one whose podTemplate changes what the worker container runs.
    """
    spec = job.spec
    if spec.task is None or _runs_something_else(job):
        return None
    # Imported here, because `ddpjob --help` needs none of the loop's models.
    from ddp_trainer.config.settings import environment_document, merge, resolve  # noqa: PLC0415

    try:
        resolve(merge(environment_document(workload_variables(job)), spec.config or {}))
    except ValueError as error:
        return f"spec.{error}"
    return None


def _runs_something_else(job: DDPJob) -> bool:
    template = job.spec.pod_template
    containers: Any = (template.spec or {}).get("containers") if template is not None else None
    return any(
        isinstance(one, Mapping) and one.get("name") == WORKER_CONTAINER and _OVERLAID & set(one)
        for one in (containers if isinstance(containers, list) else [])
    )
