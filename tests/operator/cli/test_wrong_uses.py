"""Wrong uses of `ddpjob`: each ends with one sentence and its exit code, never with a traceback."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from ddp_operator.cli.main import main
from tests.operator.client.jobs_api import JobsApi
from tests.operator.client.test_cluster_jobs import finish, running

JOB = """
apiVersion: ddp-trainer.dev/v1alpha1
kind: DDPJob
metadata: {name: new}
spec: {task: "a.b:c"}
"""


FILES = {
    "job.yaml": JOB,
    "empty.yaml": "",
    "broken.yaml": "a: [",
    "list.yaml": "- 1\n- 2\n",
    "other.yaml": "kind: PyTorchJob\n",
    "two.yaml": f"{JOB}---{JOB}",
    "field.yaml": JOB.replace("task", "tsak"),
    "task.yaml": JOB.replace("a.b:c", "a.b"),
    "config.yaml": JOB.replace('"a.b:c"', '"a.b:c", config: {epoch: 1}'),
    "name.yaml": JOB.replace("name: new", "name: New"),
    "both.yaml": JOB.replace('"a.b:c"', '"a.b:c", command: [x]'),
    "map.yaml": f"{JOB}---\nkind: ConfigMap\n",
    "code/train.py": "print(1)\n",
    "mount.yaml": JOB.replace('"a.b:c"', '"a.b:c", volumes: [{name: code, emptyDir: {}}]'),
    "large/data.bin": "x" * 1_000_001,
}

CLUSTER: dict[str, tuple[list[str], int, str]] = {
    "no such job, status": (["status", "digts"], 2, "there is no DDPJob 'digts' in the namespace"),
    "no such job, why": (["why", "digts"], 2, "there is no DDPJob 'digts' in the namespace"),
    "no such job, logs": (["logs", "digts"], 2, "there is no DDPJob 'digts' in the namespace"),
    "no such job, wait": (["wait", "digts"], 2, "there is no DDPJob 'digts' in the namespace"),
    "no such job, suspend": (["suspend", "digts"], 2, "there is no DDPJob 'digts'"),
    "no such job, scale": (["scale", "digts", "2"], 2, "there is no DDPJob 'digts'"),
    "no such job, delete": (["delete", "digts", "-y"], 2, "there is no DDPJob 'digts'"),
    "no such job, events": (["events", "digts"], 2, "there is no DDPJob 'digts'"),
    "another namespace": (
        ["status", "digits", "-n", "team-b"],
        2,
        "there is no DDPJob 'digits' in the namespace 'team-b'",
    ),
    "unknown context": (
        ["list", "--context", "prod"],
        3,
        "the kubeconfig has no context 'prod'; it has: fake",
    ),
    "cluster and machine": (
        ["list", "--local", "-n", "team-a"],
        2,
        "--local and --dir select this machine, -n and --context a cluster: give only one of them",
    ),
    "unknown verb": (["sbmit"], 2, "No such command 'sbmit'"),
    "verb of kubectl": (["get"], 2, "No such command 'get': use ddpjob list."),
    "no job": (["status"], 2, "Missing argument 'JOB'"),
    "two jobs": (["status", "a", "b"], 2, "Got unexpected extra argument (b)"),
    "unknown option": (["logs", "digits", "--folow"], 2, "No such option"),
    "unknown format": (["list", "-o", "xml"], 2, "Invalid value for '-o'"),
    "negative rank": (["logs", "digits", "--rank", "-1"], 2, "Invalid value for '--rank'"),
    "attempt 0": (["logs", "digits", "--attempt", "0"], 2, "Invalid value for '--attempt'"),
    "bad duration": (
        ["logs", "digits", "--since", "soon"],
        2,
        "--since: must be a duration such as 90s, 10m or 2h, got 'soon'",
    ),
    "empty duration": (["wait", "digits", "--timeout", ""], 2, "--timeout: must be a duration"),
    "unknown state": (["wait", "digits", "--for", "Ready"], 2, "Invalid value for '--for'"),
    "no nodes": (["scale", "digits", "0"], 2, "Invalid value for 'NODES'"),
    "nodes as text": (["scale", "digits", "two"], 2, "'two' is not a valid integer"),
    "delete in a script": (["delete", "digits"], 2, "delete asks on a terminal only: give --yes"),
    "timeout": (["wait", "digits", "--timeout", "0"], 124, "did not reach its end within 0 s"),
    "resume of an ended job": (["resume", "ended"], 2, "ended is Completed: create it again"),
    "missing file": (["submit", "none.yaml"], 2, "none.yaml: cannot be read: No such file"),
    "folder as file": (["submit", "code"], 2, "code: cannot be read: Is a directory"),
    "empty file": (["submit", "empty.yaml"], 2, "must hold exactly one DDPJob, got 0"),
    "broken YAML": (["submit", "broken.yaml"], 2, "broken.yaml: must be YAML: line 1"),
    "list": (["validate", "list.yaml"], 2, "must hold exactly one DDPJob, got 0, found a list"),
    "other kind": (["submit", "other.yaml"], 2, "got 0, found PyTorchJob"),
    "two jobs in a file": (["submit", "two.yaml"], 2, "must hold exactly one DDPJob, got 2"),
    "unknown field": (["submit", "field.yaml"], 2, "spec.tsak: unknown field"),
    "bad task": (["submit", "task.yaml"], 2, "spec.task: must be module:function"),
    "bad setting": (["submit", "config.yaml"], 2, 'unknown key "epoch"; did you mean "epochs"?'),
    "bad name": (["validate", "name.yaml"], 2, "metadata.name: must be a DNS label"),
    "task and command": (["validate", "both.yaml"], 2, "spec"),
    "ConfigMap without a name": (["submit", "map.yaml"], 2, "a ConfigMap must have metadata.name"),
    "bad --set": (["submit", "job.yaml", "--set", "nodes"], 2, "--set: must be KEY=VALUE"),
    "wrong type": (["validate", "job.yaml", "--set", "nodes=many"], 2, "spec.nodes"),
    "job exists": (
        ["submit", "job.yaml", "--set", "suspend=true"],
        2,
        "a DDPJob 'new' exists already in the namespace 'team-a'; delete it",
    ),
    "no folder of code": (["submit", "job.yaml", "--code", "none"], 2, "--code: must be a folder"),
    "large code": (
        ["submit", "job.yaml", "--code", "large"],
        2,
        "must have at most 500 files and 1,000,000 bytes; data.bin exceeds that",
    ),
    "mount is taken": (
        ["submit", "mount.yaml", "--code", "code"],
        2,
        "--code: the job must not have a volume 'code'",
    ),
}

MACHINE: dict[str, tuple[list[str], int, str]] = {
    "no cluster": (
        ["list"],
        3,
        "no cluster is configured: set KUBECONFIG or create ~/.kube/config; --local selects",
    ),
    "no run": (["status", "digits", "--local"], 2, "there is no run 'digits' in the folder"),
    "path as a run": (["logs", "../x", "--local"], 2, "there is no run '../x' in the folder"),
    "file as --dir": (["list", "--dir", "job.yaml"], 2, "Invalid value for '--dir'"),
}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)


def check(arguments: list[str], code: int, sentence: str) -> None:
    ended = CliRunner().invoke(main, arguments)
    assert (ended.exit_code, ended.stdout) == (code, "")
    assert ended.exception is None or isinstance(ended.exception, SystemExit)
    *usage, last = ended.stderr.splitlines()
    assert sentence in last
    # click prints its own form: how to call the verb, and the sentence.
    assert [line for line in usage if not line.startswith(("Usage:", "Try"))] in ([], [""])


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(("arguments", "code", "sentence"), CLUSTER.values(), ids=CLUSTER)
def test_wrong_use_with_a_cluster_gets_one_sentence(
    cluster: JobsApi, arguments: list[str], code: int, sentence: str
) -> None:
    cluster.put(running())
    cluster.put(running("new"))
    finish(cluster, running("ended"))
    if "wait" in arguments and code == 124:
        arguments = [*arguments, "-q"]
    check(arguments, code, sentence)


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(("arguments", "code", "sentence"), MACHINE.values(), ids=MACHINE)
def test_wrong_use_without_a_cluster_gets_one_sentence(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, sentence: str
) -> None:
    monkeypatch.setenv("KUBECONFIG", "none")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    check(arguments, code, sentence)


CONFIG = """
current-context: x
contexts: [{name: x, context: {cluster: y, user: z}}]
clusters: [{name: y, cluster: {server: "http://127.0.0.1:1"}}]
"""


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: [", "the kubeconfig kubeconfig.yaml must be YAML"),
        ("current-context: x\n", "the kubeconfig has no context 'x'; it has: none"),
        (
            "current-context: x\ncontexts: [{name: x, context: {cluster: y}}]\n",
            "the context 'x' of the kubeconfig names no cluster with a server",
        ),
        (
            f"{CONFIG}users: [{{name: z, user: {{tokenFile: gone}}}}]\n",
            "the context 'x' of the kubeconfig names a missing file: gone",
        ),
        (
            f"{CONFIG}users: [{{name: z, user: {{exec: {{command: no-such-login}}}}}}]\n",
            "the kubeconfig needs the program 'no-such-login', which is not installed",
        ),
        (
            CONFIG,
            "http://127.0.0.1:1 of the context 'x' cannot be reached: Connection refused",
        ),
    ],
    ids=["YAML", "context", "server", "file", "plugin", "unreachable"],
)
def test_unusable_kubeconfig_gets_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kubeconfig.yaml").write_text(text)
    monkeypatch.setenv("KUBECONFIG", "kubeconfig.yaml")
    check(["list"], 3, sentence)
