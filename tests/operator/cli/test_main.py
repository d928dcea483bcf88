"""The ddpjob command: invalid input ends with exit code 2 and one sentence."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ddp_operator.api.job import InvalidJobError
from ddp_operator.cli import entry
from ddp_operator.cli.local_checks import check_program
from ddp_operator.cli.main import main
from tests.operator.support import new_job

JOB = """
apiVersion: ddp-trainer.dev/v1alpha1
kind: DDPJob
metadata: {name: digits}
spec: {command: [python, train.py]}
"""


def write(home: Path, text: str) -> str:
    file = home / "job.yaml"
    file.write_text(text)
    return str(file)


@pytest.mark.parametrize(
    ("text", "arguments", "sentence"),
    [
        ("", [], "job.yaml: must hold exactly one DDPJob, got 0, found nothing"),
        ("a: [", [], "job.yaml: must be YAML: line 1: "),
        (JOB.replace("command", "comand"), [], "job.yaml: spec.comand: unknown field"),
        (JOB, ["--set", "nodes=none"], "job.yaml: spec.nodes: input should be a valid integer"),
        (JOB, ["--set", "nodes"], "--set: must be KEY=VALUE, got 'nodes'"),
        (JOB.replace("digits", "Digits"), [], "job.yaml: metadata.name: must be a DNS label"),
    ],
    ids=["empty", "broken YAML", "unknown field", "bad setting", "no value", "bad name"],
)
def test_invalid_input_ends_with_exit_code_2_and_one_sentence(
    tmp_path: Path, text: str, arguments: list[str], sentence: str
) -> None:
    ended = CliRunner().invoke(main, ["run", write(tmp_path, text), *arguments])
    assert ended.exit_code == 2
    assert ended.stdout == ""
    assert len(ended.stderr.splitlines()) == 1
    assert ended.stderr.startswith("ddpjob: ")
    assert sentence in ended.stderr
    assert isinstance(ended.exception, SystemExit)


def test_local_run_ignores_spec_gang_and_logs_one_line(tmp_path: Path) -> None:
    gang = JOB.replace("train.py]", "none.py], gang: {type: Volcano, queue: research}")
    ended = CliRunner().invoke(main, ["run", write(tmp_path, gang)])
    [line] = ended.stdout.splitlines()
    assert line == "spec.gang: ignored, because a local run needs no Volcano scheduler"
    assert "there is no script" in ended.stderr


def test_missing_file_is_invalid_input(tmp_path: Path) -> None:
    ended = CliRunner().invoke(main, ["run", str(tmp_path / "none.yaml")])
    assert (ended.exit_code, "cannot be read" in ended.stderr) == (2, True)


@pytest.mark.parametrize("arguments", [["run"], ["walk"], ["run", "a.yaml", "--faster"]])
def test_invalid_command_line_ends_with_exit_code_2(arguments: list[str]) -> None:
    assert CliRunner().invoke(main, arguments).exit_code == 2


def test_help_lists_the_exit_codes() -> None:
    ended = CliRunner().invoke(main, ["run", "-h"])
    assert ended.exit_code == 0
    assert "130 after Ctrl-C" in " ".join(ended.output.split())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("volumes: [{name: data, emptyDir: {}}]", "spec.volumes: data needs a cluster"),
        (
            "env: [{name: TOKEN, valueFrom: {secretKeyRef: {name: s, key: k}}}]",
            "spec.env: TOKEN has valueFrom, which needs a cluster",
        ),
        ("nodes: 200", "spec.nodes: must be at most 100 without a cluster"),
    ],
    ids=["volumes", "valueFrom", "too many nodes"],
)
def test_job_that_needs_a_cluster_is_refused_before_it_starts(
    tmp_path: Path, change: str, sentence: str
) -> None:
    file = write(tmp_path, JOB.replace("train.py]", f"train.py], {change}"))
    ended = subprocess.run(
        [sys.executable, "-m", "ddp_operator.cli.main", "run", file, "--dir", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ended.returncode == 2
    assert f"ddpjob: {sentence}" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_folder_that_cannot_be_written_is_invalid_input(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "runs"
    file = write(tmp_path, JOB.replace("[python, train.py]", "[python]"))
    ended = CliRunner().invoke(main, ["run", file, "--dir", str(folder)])
    assert ended.exit_code == 2
    requirement = "--dir: must name a folder that can be written"
    assert ended.stderr == f"ddpjob: {requirement}, got {folder}/digits: Not a directory\n"


PROGRAM = """
import os, sys, time
rank, attempt = int(os.environ["RANK"]), int(os.environ["DDP_ATTEMPT"])
print(f"rank {rank} of attempt {attempt}")
sys.stdout.buffer.write(b"caf\\xe9 " + b"x" * 200_000 + b"\\n")
time.sleep(0.5)
if attempt == 1 and rank == 1:
    raise ValueError("first try")
if attempt == 1:
    time.sleep(60)
print("last line of", rank, end="")
"""


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["-v"]], ids=["rank 0", "all ranks"])
def test_output_of_a_users_command_is_shown_in_all_attempts(
    tmp_path: Path, options: list[str]
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    job = JOB.replace("[python, train.py]", f"[python, {program}], nodes: 2, standby: false")
    command = [sys.executable, "-m", "ddp_operator.cli.main", "run", write(tmp_path, job)]
    done = subprocess.run(
        [*command, "--dir", str(tmp_path / "runs"), *options],
        capture_output=True,
        check=False,
        timeout=120,
    )
    lines = done.stdout.decode().splitlines()
    assert done.returncode == 0, done.stdout[-2000:]
    prefixes = {0: "[rank 0] ", 1: "[rank 1] "} if options else {0: ""}
    for rank, prefix in prefixes.items():
        assert [f"{prefix}rank {rank} of attempt {n}" in lines for n in (1, 2)] == [True, True]
        assert f"{prefix}last line of {rank}" in lines
        assert any(line.startswith(f"{prefix}caf\ufffd xxx") for line in lines)
    assert any("rank 1 of attempt" in line for line in lines) is bool(options)


def test_installation_without_the_extra_cli_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    with pytest.raises(SystemExit) as ended:
        entry.main()
    assert ended.value.code == 2
    how = "install the extra [cli] of ddp-trainer (in a clone: pip install '.[cli]')"
    assert capsys.readouterr().err == f"ddpjob needs rich: {how}\n"


def test_help_imports_none_of_the_slow_packages() -> None:
    slow = {"aiohttp", "asyncio", "kubernetes", "pydantic", "rich", "torch", "yaml"}
    program = (
        "import sys\n"
        "from ddp_operator.cli.entry import main\n"
        "sys.argv = ['ddpjob', *sys.argv[1:]]\n"
        "try:\n    main()\n"
        "finally:\n    print('loaded', *sys.modules)\n"
    )
    for arguments in (["--help"], ["run", "--help"], ["report", "--help"]):
        command = [sys.executable, "-c", program, *arguments]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        loaded = shown.splitlines()[-1].split()
        assert loaded[0] == "loaded"
        assert slow & set(loaded) == set()


@pytest.mark.slow
def test_local_run_imports_no_client_of_the_api_server() -> None:
    program = "import ddp_operator.cli.local_run, sys; print('kubernetes' in sys.modules)"
    command = [sys.executable, "-c", program]
    assert subprocess.run(command, capture_output=True, check=True).stdout == b"False\n"


PLAINLY_WRONG = {
    "setting": (
        "{task: 'a.b:c', config: {epoch: 1}}",
        'spec.config: unknown key "epoch"; did you mean "epochs"?',
    ),
    "program": (
        "{command: [nosuchprogram]}",
        "spec.command: there is no program 'nosuchprogram' on this machine",
    ),
    "script": (
        "{command: [python, nofile.py]}",
        "spec.command: there is no script 'nofile.py' on this machine",
    ),
    "script in args": (
        "{command: [python3], args: [nofile.py]}",
        "spec.command: there is no script 'nofile.py' on this machine",
    ),
}


@pytest.mark.parametrize(("spec", "sentence"), PLAINLY_WRONG.values(), ids=PLAINLY_WRONG)
def test_job_that_cannot_run_is_refused_before_any_process_starts(
    tmp_path: Path, spec: str, sentence: str
) -> None:
    file = write(tmp_path, JOB.replace("{command: [python, train.py]}", spec))
    ended = CliRunner().invoke(main, ["run", file, "--dir", str(tmp_path / "runs")])
    assert ended.exit_code == 2
    assert ended.stderr.startswith(f"ddpjob: {sentence}")
    assert not (tmp_path / "runs").exists()


def program_error(mounts: list[dict[str, str]], **spec: Any) -> str | None:
    """Return why a job with a volume mounted at these paths cannot run, or None."""
    volumes = [{"name": "code", "configMap": {"name": "c"}}]
    job = new_job(**spec, volumes=volumes, volumeMounts=mounts)
    try:
        check_program(job, {"PATH": "/bin"})
    except InvalidJobError as error:
        return str(error)
    return None


IN_THE_POD: dict[str, dict[str, Any]] = {
    "script below a mount": {"command": ["python", "/code/a.py"]},
    "program below a mount": {"command": ["/code/program"]},
    "module": {"command": ["python", "-m", "package"]},
    "variable": {"command": ["$(HOME)/program"]},
    "PATH of the job": {"command": ["nosuch"], "env": [{"name": "PATH", "value": "/x"}]},
}


@pytest.mark.parametrize("spec", IN_THE_POD.values(), ids=IN_THE_POD)
def test_program_that_may_exist_in_the_pod_is_not_checked(spec: dict[str, Any]) -> None:
    assert program_error([{"name": "code", "mountPath": "/code"}], **spec) is None
    if spec["command"][-1].startswith("/code"):
        assert "there is no" in str(program_error([{"name": "code", "mountPath": "/b"}], **spec))
