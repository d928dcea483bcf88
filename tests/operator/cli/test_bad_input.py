"""Input with mistakes in values: each ends with one sentence and exit code 2."""

from datetime import timedelta
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from ddp_operator.cli.main import main
from ddp_operator.client import RequestError, connect
from ddp_operator.client.bundle import write_bundle
from ddp_operator.client.checkpoints import WHOLE, RunCheckpoints, download
from tests.operator.cli.test_wrong_uses import JOB
from tests.operator.client.jobs_api import JobsApi, PodLog
from tests.operator.client.test_cluster_jobs import running


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "flowers.py").write_text("def build(cfg, env): ...\n")
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def refused(*arguments: str) -> str:
    """Return the sentence of a command that ends with exit code 2."""
    ended = run(*arguments)
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert isinstance(ended.exception, SystemExit)
    (line,) = ended.stderr.splitlines()
    return line


@pytest.mark.parametrize("text", ["999999d", "1h999999d", "999999d" * 2000, "36501d"])
@pytest.mark.parametrize(("verb", "option"), [("logs", "--since"), ("wait", "--timeout")])
@pytest.mark.usefixtures("cluster")
def test_duration_beyond_a_century_is_refused(verb: str, option: str, text: str) -> None:
    assert f"{option}: must be at most 36500d" in refused(verb, "digits", option, text)


def test_age_before_the_first_year_is_refused_by_the_client(cluster: JobsApi) -> None:
    cluster.put(running())
    with pytest.raises(RequestError, match="since: must be an age of less than"):
        connect().get("digits").logs(since=timedelta(days=999_999))


def test_output_without_a_name_is_refused(cluster: JobsApi, tmp_path: Path) -> None:
    cluster.put(running())
    for verb in ("report", "support-bundle"):
        assert "the output must be the path of a file" in refused(verb, "digits", "-o", "")
    (tmp_path / "logs").mkdir()
    assert "the output must be the path of a file" in refused("report", str(tmp_path), "-o", "")
    with pytest.raises(RequestError, match="the output must be the path of a file"):
        write_bundle(connect().get("digits"), Path("/"))


@pytest.mark.parametrize("path", ["job.yaml/x", "none/x", "y" * 300])
@pytest.mark.parametrize("verb", ["report", "support-bundle"])
def test_output_that_cannot_be_written_is_named(cluster: JobsApi, verb: str, path: str) -> None:
    cluster.put(running())
    sentence = refused(verb, "digits", "-o", path)
    assert sentence.startswith(f"ddpjob: {path}: cannot be written: ")


class OneCheckpoint:
    """A run with one checkpoint, whose weights are empty."""

    def inspect(self, *, quick: bool) -> RunCheckpoints:
        del quick
        return RunCheckpoints("run", [{"name": "a", "step": 1, "state": WHOLE}], "a")

    def copy_weights(self, name: str, target: Path) -> None:
        del name
        target.write_bytes(b"")


@pytest.mark.parametrize("path", ["job.yaml/x", "none/x", "y" * 300])
def test_download_that_cannot_be_written_is_named(path: str) -> None:
    with pytest.raises(RequestError, match=f"^{path}: cannot be written: "):
        download(OneCheckpoint(), None, Path(path))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--name", "a: b"),
        ("--name", "}{"),
        ("--name", "x}, spec: {nodes: 9"),
        ("--name", ""),
        ("--name", "null"),
        ("--name", "\udcff"),
        ("--claim", "}{"),
        ("--claim", "a: b"),
        ("--claim", ""),
        ("--claim", "x, claimTemplate: y"),
        ("--claim", "#"),
        ("--claim", "a\nb"),
    ],
)
def test_value_of_init_is_taken_as_text(option: str, value: str) -> None:
    ended = run("init", "flowers:build", option, value)
    if value == "null":  # A valid name, which YAML reads as no value without quotes.
        assert yaml.safe_load(ended.stdout)["metadata"] == {"name": "null"}
        return
    field = "metadata.name" if option == "--name" else "spec.checkpoint.claimName"
    assert field in refused("init", "flowers:build", option, value)


@pytest.mark.parametrize("value", ["true", "123", "1e3", "1.5", "null", "data-1", "0x1f"])
def test_claim_of_init_stays_text(value: str) -> None:
    ended = run("init", "flowers:build", "--claim", value)
    assert yaml.safe_load(ended.stdout)["spec"]["checkpoint"] == {"claimName": value}


@pytest.mark.parametrize("name", ["a, b.py", "a: b.py", "[a].py", "a #b.py", "'a'.py", "\u65e5.py"])
def test_script_of_init_may_have_any_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("print(1)\n")
    ended = run("init", name, "--name", "digits")
    assert yaml.safe_load(ended.stdout)["spec"]["command"] == ["python", f"/code/{name}"]


@pytest.mark.parametrize("status", ["abc", "5", "[a]", "2026-01-01"])
@pytest.mark.parametrize("verb", ["validate", "submit", "run"])
@pytest.mark.usefixtures("cluster")
def test_status_that_is_no_object_is_refused(tmp_path: Path, verb: str, status: str) -> None:
    (tmp_path / "job.yaml").write_text(f"{JOB}status: {status}\n")
    assert "job.yaml: status: must be an object" in refused(verb, "job.yaml")


BAD_YAML = [
    "!!timestamp abc",
    "!!bool 3",
    "!!int ''",
    "!!float ''",
    "!!int 1:x",
    "!!float x",
    "!!binary abc",
    "!!set 1",
    "!!omap 1",
    "!!timestamp [1]",
    "9" * 5000,
    "1" + ":1" * 400 + ".5",
    '"\\UFFFFFFFF"',
    '"\\U00110000"',
    "%YAML 1." + "9" * 5000 + "\n--- a",
]
"""YAML with values that the constructors of PyYAML refuse with errors of many types."""


@pytest.mark.parametrize("value", BAD_YAML)
def test_yaml_value_that_cannot_be_read_is_refused(tmp_path: Path, value: str) -> None:
    sentence = refused("validate", "job.yaml", "--set", f"config.a={value}")
    assert sentence.startswith("ddpjob: --set config.a: must be a YAML value, got ")
    text = value if value.startswith("%") else f"a: {value}"
    (tmp_path / "bad.yaml").write_text(f"{text}\n")
    assert "bad.yaml: must be YAML: " in refused("validate", "bad.yaml")


def test_bad_value_is_named_with_its_line_and_type(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("a: 1\nb: [2, !!timestamp abc]\n")
    sentence = refused("validate", "bad.yaml")
    assert sentence == "ddpjob: bad.yaml: must be YAML: line 2: the value is no timestamp"


def test_output_that_the_terminal_cannot_encode_is_shown_escaped(cluster: JobsApi) -> None:
    cluster.put(running())
    cluster.logs["digits-0"] = log = PodLog()
    log.add(0, "[rank 0] \u65e5")
    ended = CliRunner(charset="latin-1").invoke(main, ["logs", "digits"])
    assert (ended.exit_code, ended.stdout) == (0, "[rank 0] \\u65e5\n")
