"""Check the settings of the bundled training loop before the operator creates any pod.

The check uses the trainer's own models, which import no torch. So the operator and the ranks refuse
the same settings with the same sentence.
"""

from collections.abc import Mapping
from typing import Any

from ddp_operator.api.job import DDPJob
from ddp_operator.builders.env import workload_variables
from ddp_wire.contract import WORKER_CONTAINER

_OVERLAID = {"args", "command", "env", "envFrom", "image"}
"""Fields of the worker container with which a podTemplate can replace the loop or its settings."""


def config_error(job: DDPJob) -> str | None:
    """Return an error message about the first setting that the loop refuses, or None.

    The function skips the task's own settings, because only the task's code knows them. It also
    skips a job with a command, and a job whose podTemplate changes the program of the worker.
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
