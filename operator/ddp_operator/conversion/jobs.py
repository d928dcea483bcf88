"""Convert a PyTorchJob of Kubeflow's Training Operator, or a TrainJob of Kubeflow Trainer.

Each converter takes the fields that it knows out of the manifest. What remains is named in a note,
so that a user sees everything that the DDPJob does not do.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from ddp_operator.api.base import API_VERSION, KIND
from ddp_operator.conversion.launchers import read_launch
from ddp_operator.conversion.pods import spec_of_pod

JSON = dict[str, Any]

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
_IMAGE_NOTE = "the image must contain the package ddp-trainer beside torch (docs/operate/images.md)"
_CHECKPOINT_NOTE = (
    "spec.checkpoint is not set: with a claim, the script can save to the directory in"
    " $DDP_CHECKPOINT_DIR and continue from there after a fault (docs/use/command-reports.md)"
)
_CLEAN = {"Running": "None", "None": "None", "All": "All"}
"""cleanPodPolicy by that of a PyTorchJob. The pods of a finished DDPJob do not run."""


class ConversionError(ValueError):
    """Error for a job that cannot be converted. The message is one sentence."""


@dataclass(frozen=True)
class Conversion:
    """A DDPJob, and what its user should look at."""

    job: JSON
    notes: list[str]
    """One clause for each thing that the conversion leaves out or decides."""


def convert(objects: Iterable[Any], command: Sequence[str] = ()) -> list[Conversion]:
    """Return a DDPJob for each job of another operator.

    Args:
        objects: The objects of a file. Training runtimes among them complete the TrainJobs.
        command: Command of each rank, in place of that of the container.

    Raises:
        ConversionError: The file holds no such job, or one that cannot be converted.
    """
    found = [one for one in objects if isinstance(one, dict)]
    runtimes = {
        str(one.get("metadata", {}).get("name")): one
        for one in found
        if one.get("kind") in {"TrainingRuntime", "ClusterTrainingRuntime"}
    }
    jobs = [deepcopy(one) for one in found if one.get("kind") in _CONVERTERS]
    if not jobs:
        kinds = ", ".join(dict.fromkeys(str(one.get("kind", "no kind"))[:80] for one in found))
        known = " or ".join(_CONVERTERS)
        raise ConversionError(f"must hold a {known}, found {kinds or 'nothing'}")
    return [_converted(job, list(command), runtimes) for job in jobs]


def _converted(job: JSON, command: list[str], runtimes: Mapping[str, JSON]) -> Conversion:
    metadata, notes = job.get("metadata") or {}, list[str]()
    name = metadata.get("name") or str(metadata.get("generateName", "job")).rstrip("-")
    labels = dict(metadata.get("labels") or {})
    queue = labels.pop(QUEUE_LABEL, None)
    try:
        spec = _CONVERTERS[job["kind"]](job.get("spec") or {}, command, runtimes, notes)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, ConversionError):
            raise ConversionError(f"{job['kind']} {name}: {error}") from error
        raise ConversionError(f"{job['kind']} {name}: a field has a wrong type") from error
    if queue:
        spec["gang"] = {"type": "Kueue", "queue": queue}
    head = {"name": name}
    head |= {"namespace": metadata["namespace"]} if metadata.get("namespace") else {}
    head |= {"labels": labels} if labels else {}
    notes += [_IMAGE_NOTE, *([] if "checkpoint" in spec else [_CHECKPOINT_NOTE])]
    return Conversion(
        {"apiVersion": API_VERSION, "kind": KIND, "metadata": head, "spec": spec}, notes
    )


def _of_pytorch_job(
    given: JSON, command: list[str], _: Mapping[str, JSON], notes: list[str]
) -> JSON:
    replicas = given.pop("pytorchReplicaSpecs", None) or {}
    master, worker = replicas.get("Master"), replicas.get("Worker")
    chosen = worker or master
    if chosen is None:
        raise ConversionError("spec.pytorchReplicaSpecs must have Master or Worker")
    if master and worker and _container_of(master) != _container_of(worker):
        notes.append("Master and Worker differ: all pods of the DDPJob are like Worker")
    nodes = sum(int(one.get("replicas", 1)) for one in (master, worker) if one)
    template = chosen.get("template") or {}
    spec: JSON = {"nodes": nodes, **spec_of_pod(template, ["pytorch"], notes)}
    policy, elastic = given.pop("runPolicy", None) or {}, given.pop("elasticPolicy", None) or {}
    ranks = given.pop("nprocPerNode", None) or elastic.pop("nProcPerNode", None)
    _set_command(spec, command or _argv(_container_of(chosen)), ranks, notes)
    _add_elastic(spec, elastic, notes)
    if chosen.get("restartPolicy") == "Never":
        spec["maxRestarts"] = 0
    elif policy.get("backoffLimit") is not None:
        spec["maxRestarts"] = int(policy["backoffLimit"])
    policy.pop("backoffLimit", None)
    if clean := policy.pop("cleanPodPolicy", None):
        spec["cleanPodPolicy"] = _CLEAN.get(clean, "None")
    for name in ("activeDeadlineSeconds", "ttlSecondsAfterFinished", "suspend"):
        if policy.get(name) is not None:
            spec[name] = policy.pop(name)
    if scheduling := policy.pop("schedulingPolicy", None):
        spec |= _priority(scheduling)
        notes.append("schedulingPolicy: set spec.gang, or gangs.default of the chart")
    _name_rest("spec.runPolicy", policy, notes)
    _name_rest("spec", given, notes)
    return spec


def _of_train_job(
    given: JSON, command: list[str], runtimes: Mapping[str, JSON], notes: list[str]
) -> JSON:
    reference = given.pop("runtimeRef", None) or {}
    trainer = given.pop("trainer", None) or {}
    runtime = runtimes.get(str(reference.get("name")))
    policy, template = _runtime(runtime)
    if runtime is None:
        notes.append(
            f"the runtime {reference.get('name')} is not in the file: what it adds to the pods is"
            " missing, as is its image unless the TrainJob sets one"
        )
    for patch in _patches(given):
        template = _merged(template, patch)
    container = _container_of({"template": template}, ["node", "trainer"])
    container |= {name: trainer.pop(name) for name in ("image", "env") if trainer.get(name)}
    if trainer.get("resourcesPerNode"):
        container["resources"] = trainer.pop("resourcesPerNode")
    if trainer.get("command"):
        container |= {"command": trainer.pop("command"), "args": []}
    if trainer.get("args"):
        container["args"] = trainer.pop("args")
    others = [
        one
        for one in (template.get("spec") or {}).get("containers") or []
        if one.get("name") != container.get("name")
    ]
    pod = {**(template.get("spec") or {}), "containers": [container, *others]}
    nodes = trainer.pop("numNodes", None) or policy.get("numNodes") or 1
    spec: JSON = {
        "nodes": int(nodes),
        **spec_of_pod({**template, "spec": pod}, ["node", "trainer"], notes),
    }
    torch = policy.get("torch") or {}
    ranks = trainer.pop("numProcPerNode", None) or torch.get("numProcPerNode")
    _set_command(spec, command or _argv(container), ranks, notes)
    _add_elastic(spec, _elastic_of_runtime(torch), notes)
    failures = given.pop("failurePolicy", None) or {}
    if failures.get("maxRestarts") is not None:
        spec["maxRestarts"] = int(failures.pop("maxRestarts"))
    for name in ("suspend", "activeDeadlineSeconds", "ttlSecondsAfterFinished"):
        if given.get(name) is not None:
            spec[name] = given.pop(name)
    if given.pop("initializer", None):
        notes.append("initializer is left out: spec.init runs steps before the ranks")
    _name_rest("spec.failurePolicy", failures, notes)
    _name_rest("spec.trainer", trainer, notes)
    _name_rest("spec", given, notes)
    return spec


def _runtime(runtime: JSON | None) -> tuple[JSON, JSON]:
    """Return the policy and the pod template of a training runtime."""
    spec = (runtime or {}).get("spec") or {}
    jobs = ((spec.get("template") or {}).get("spec") or {}).get("replicatedJobs") or []
    node = next((one for one in jobs if one.get("name") == "node"), None)
    return spec.get("mlPolicy") or {}, _pod_template(node)


def _pod_template(job: Mapping[str, Any] | None) -> JSON:
    """Return the pod template of a replicated job."""
    found: Any = job or {}
    for name in ("template", "spec", "template"):
        found = found.get(name) or {}
    template: JSON = dict(found)
    return template


def _patches(given: JSON) -> list[JSON]:
    """Return the changes of the pod template that a TrainJob asks for, of all its API versions."""
    found = []
    for patch in given.pop("runtimePatches", None) or []:
        template = (patch.get("trainingRuntimeSpec") or {}).get("template") or {}
        jobs = (template.get("spec") or {}).get("replicatedJobs") or []
        found += [_pod_template(one) for one in jobs if one.get("name") == "node"]
        found.append({"metadata": template.get("metadata") or {}})
    for override in given.pop("podTemplateOverrides", None) or []:
        if any(one.get("name") == "node" for one in override.get("targetJobs") or []):
            found.append(
                {name: override[name] for name in ("metadata", "spec") if name in override}
            )
    return found


def _merged(base: Any, change: Any) -> Any:
    """Return a manifest with changes. Lists of named items merge by name, other lists replace."""
    if isinstance(base, dict) and isinstance(change, dict):
        return {**base, **{key: _merged(base.get(key), value) for key, value in change.items()}}
    if _is_named(base) and _is_named(change):
        found = {one["name"]: one for one in base}
        for one in change:
            found[one["name"]] = _merged(found.get(one["name"]), one)
        return list(found.values())
    return change


def _is_named(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(o, dict) and "name" in o for o in value)


def _elastic_of_runtime(torch: Mapping[str, Any]) -> JSON:
    policy = torch.get("elasticPolicy") or {}
    named = {"minNodes": "minReplicas", "maxNodes": "maxReplicas", "maxRestarts": "maxRestarts"}
    return {named.get(name, name): value for name, value in policy.items()}


def _container_of(replica: Mapping[str, Any], names: Sequence[str] = ("pytorch",)) -> JSON:
    pods = ((replica.get("template") or {}).get("spec") or {}).get("containers") or [{}]
    return dict(next((one for one in pods if one.get("name") in names), pods[0]))


def _argv(container: Mapping[str, Any]) -> list[str]:
    words = [*(container.get("command") or []), *(container.get("args") or [])]
    return [str(word) for word in words] if container.get("command") else []


def _set_command(spec: JSON, argv: Sequence[str], ranks: Any, notes: list[str]) -> None:
    """Set the command of each rank, and the number of ranks per pod."""
    if not argv:
        raise ConversionError(
            "the container has no command, and a DDPJob cannot run the image's own;"
            ' give it with --command, for example --command "python /app/train.py"'
        )
    launch = read_launch(argv)
    if launch is None:
        raise ConversionError(
            "the command is a shell script, which a DDPJob would run once for each rank;"
            " give the command of one rank with --command"
        )
    spec["command"] = launch.command[:1]
    if launch.command[1:]:
        spec["args"] = launch.command[1:]
    gpus = spec.get("gpusPerNode", 0)
    number = str(launch.ranks or ranks or ("auto" if launch.by_torchrun else "1"))
    if number.isdigit():
        if int(number) != (gpus or 1):
            spec["procsPerNode"] = int(number)
    elif number == "cpu":
        notes.append("one rank for each CPU: set spec.procsPerNode")
    if not launch.by_torchrun and gpus > 1 and number == "1":
        notes.append(
            "the command was one process per pod: leave out procsPerNode if each GPU needs a rank"
        )


def _add_elastic(spec: JSON, policy: JSON, notes: list[str]) -> None:
    """Add the limits of an elastic job."""
    if not policy:
        return
    least = policy.pop("minReplicas", None)
    if least is not None:
        spec["elastic"] = {"minNodes": int(least)}
    if policy.get("maxRestarts") is not None:
        spec["maxRestarts"] = int(policy.pop("maxRestarts"))
    for name in ("rdzvBackend", "rdzvPort", "rdzvHost", "rdzvId", "rdzvConf", "standalone"):
        policy.pop(name, None)
    if policy.pop("metrics", None) or policy.get("maxReplicas"):
        scaler = "a HorizontalPodAutoscaler can change it (docs/use/elastic.md)"
        notes.append(f"nodes is {spec['nodes']}: {scaler}")
    policy.pop("maxReplicas", None)
    _name_rest("spec.elasticPolicy", policy, notes)


def _priority(scheduling: Mapping[str, Any]) -> JSON:
    name = scheduling.get("priorityClass")
    return {"priorityClassName": name} if name else {}


def _name_rest(where: str, rest: Mapping[str, Any], notes: list[str]) -> None:
    """Add a note about fields that the DDPJob does not have."""
    names = [str(name) for name, value in rest.items() if value not in (None, {}, [], "")]
    if names:
        notes.append(f"{where}: left out, as a DDPJob has no such field: {', '.join(names)}")


_CONVERTERS: dict[str, Callable[[JSON, list[str], Mapping[str, JSON], list[str]], JSON]] = {
    "PyTorchJob": _of_pytorch_job,
    "TrainJob": _of_train_job,
}
