"""Load a job from a file and --set: errors name the file or the setting in one sentence."""

import io
from pathlib import Path
from typing import Any

import pytest
import yaml

from ddp_operator.api.job import InvalidJobError
from ddp_operator.client.manifest import read_job_file

JOB = """
apiVersion: ddp-trainer.dev/v1alpha1
kind: DDPJob
metadata: {name: digits}
spec:
  nodes: 2
  task: ddp_trainer.tasks.miniresnet:build
  config: {epochs: 20}
"""


def load(home: Path, text: str | bytes, *settings: str) -> dict[str, Any]:
    file = home / "job.yaml"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_job_file(file).manifest(settings)


def refusal(home: Path, text: str | bytes, *settings: str) -> str:
    with pytest.raises(InvalidJobError) as caught:
        load(home, text, *settings)
    message = str(caught.value)
    assert message.splitlines() == [message]
    return message


def test_job_without_a_namespace_gets_the_default_namespace(tmp_path: Path) -> None:
    assert load(tmp_path, JOB) == {
        "apiVersion": "ddp-trainer.dev/v1alpha1",
        "kind": "DDPJob",
        "metadata": {"name": "digits", "namespace": "default"},
        "spec": {
            "nodes": 2,
            "task": "ddp_trainer.tasks.miniresnet:build",
            "config": {"epochs": 20},
        },
    }


def test_given_namespace_is_kept(tmp_path: Path) -> None:
    text = JOB.replace("{name: digits}", "{name: digits, namespace: team-a}")
    assert load(tmp_path, text)["metadata"]["namespace"] == "team-a"


def test_objects_of_other_kinds_in_the_file_are_ignored(tmp_path: Path) -> None:
    claim = "kind: PersistentVolumeClaim\nmetadata: {name: c}\n"
    assert load(tmp_path, f"{claim}---{JOB}---\n")["metadata"]["name"] == "digits"


def test_samples_in_the_repository_are_valid() -> None:
    samples = sorted((Path(__file__).parents[3] / "manifests" / "samples").glob("*.yaml"))
    jobs = [sample for sample in samples if "\nkind: DDPJob\n" in sample.read_text()]
    assert len(jobs) >= 4
    for sample in jobs:
        assert read_job_file(sample).manifest()["kind"] == "DDPJob"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "must hold exactly one DDPJob, got 0"),
        ("just text", "must hold exactly one DDPJob, got 0"),
        (f"{JOB}---{JOB}", "must hold exactly one DDPJob, got 2"),
        ("a: 1\nb: [1,", "must be YAML: line 2: "),
        ("a: \x00", "must be YAML: "),
        (b"\xff\xfe\xfa", "must be text in UTF-8"),
        (JOB.replace("nodes", "nods"), "spec.nods: unknown field"),
        (JOB.replace("{name: digits}", ""), "metadata.name: field required"),
        (JOB.replace("v1alpha1", "v1"), "manifest: apiVersion must be"),
        (JOB.replace("{epochs: 20}", "{1: 2}"), "spec.config"),
        (JOB.replace("epochs: 20", "since: 2026-03-01"), "spec.config"),
        (JOB.replace("epochs: 20", "since: 2026-03-99"), "must be YAML: "),
        (JOB.replace("{name: digits}", "digits"), "metadata: "),
    ],
    ids=[
        "empty",
        "not an object",
        "two jobs",
        "broken YAML",
        "control character",
        "not UTF-8",
        "unknown field",
        "no name",
        "another version",
        "number as key",
        "date",
        "invalid date",
        "metadata as text",
    ],
)
def test_invalid_file_is_reported(tmp_path: Path, content: str | bytes, sentence: str) -> None:
    message = refusal(tmp_path, content)
    assert message.startswith(f"{tmp_path / 'job.yaml'}: {sentence}")


def test_unreadable_file_is_reported(tmp_path: Path) -> None:
    missing = tmp_path / "missing.yaml"
    with pytest.raises(InvalidJobError) as caught:
        read_job_file(missing)
    assert str(caught.value) == f"{missing}: cannot be read: No such file or directory"
    with pytest.raises(InvalidJobError, match="cannot be read: Is a directory"):
        read_job_file(tmp_path)


@pytest.mark.parametrize(
    ("setting", "path", "value"),
    [
        ("nodes=3", ["nodes"], 3),
        ("config.epochs=5", ["config", "epochs"], 5),
        ("config.rate=0.1", ["config", "rate"], 0.1),
        ("config.name=a=b", ["config", "name"], "a=b"),
        ("config.deep.er=[1, x]", ["config", "deep", "er"], [1, "x"]),
        ("suspend=true", ["suspend"], True),
        ("checkpoint.claimName=c", ["checkpoint", "claimName"], "c"),
        ("image=registry:5000/a:1", ["image"], "registry:5000/a:1"),
    ],
)
def test_set_option_changes_a_field_of_the_spec(
    tmp_path: Path, setting: str, path: list[str], value: object
) -> None:
    found: Any = load(tmp_path, JOB, setting)["spec"]
    for name in path:
        found = found[name]
    assert found == value


def test_set_option_works_without_a_spec(tmp_path: Path) -> None:
    bare = yaml.safe_dump({**yaml.safe_load(JOB), "spec": None})
    assert load(tmp_path, bare, "task=flowers:build")["spec"] == {"task": "flowers:build"}


def test_last_of_two_set_options_for_one_field_wins(tmp_path: Path) -> None:
    assert load(tmp_path, JOB, "nodes=3", "nodes=4")["spec"]["nodes"] == 4


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("nodes", "--set: must be KEY=VALUE, got 'nodes'"),
        ("=3", "--set: must be KEY=VALUE, got '=3'"),
        ("nodes.x=3", "--set nodes.x: spec.nodes must be an object"),
        ("config.epochs.x=3", "--set config.epochs.x: spec.config.epochs must be an object"),
        ("config.a=[1,", "--set config.a: must be a YAML value, got '[1,'"),
        ("config.a=2026-03-99", "--set config.a: must be a YAML value, got '2026-03-99'"),
    ],
)
def test_invalid_set_option_is_reported(tmp_path: Path, setting: str, sentence: str) -> None:
    assert refusal(tmp_path, JOB, setting) == sentence


def test_set_option_that_violates_the_schema_names_the_field(tmp_path: Path) -> None:
    assert "spec.nodes: input should be" in refusal(tmp_path, JOB, "nodes=0")
    assert "spec.nods: unknown field" in refusal(tmp_path, JOB, "nods=2")


FOUND = {
    "another kind": ("kind: PyTorchJob\n", "got 0, found PyTorchJob"),
    "a list": ("- a\n- b\n", "got 0, found a list"),
    "two other kinds": ("kind: A\n---\nkind: B\n---\nkind: A\n", "got 0, found A, B"),
    "no kind": ("a: 1\n", "got 0, found an object without kind"),
    "nothing": ("", "got 0, found nothing"),
    "two jobs": (f"{JOB}---{JOB}", "got 2"),
}


@pytest.mark.parametrize(("text", "found"), FOUND.values(), ids=FOUND)
def test_file_without_exactly_one_job_is_refused_with_the_kinds_that_it_holds(
    tmp_path: Path, text: str, found: str
) -> None:
    assert refusal(tmp_path, text).endswith(f"job.yaml: must hold exactly one DDPJob, {found}")


def test_job_is_also_read_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    claimed = f"kind: ConfigMap\nmetadata: {{name: code}}\ndata: {{a.py: x}}\n---{JOB}"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(claimed.encode())))
    given = read_job_file(Path("-"))
    assert given.manifest(["nodes=3"])["spec"]["nodes"] == 3
    assert given.config_maps() == {"code": {"a.py": "x"}}
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
    with pytest.raises(InvalidJobError, match=r"^standard input: must hold exactly one DDPJob"):
        read_job_file(Path("-")).manifest()


def laughs(last: str) -> str:
    """Return a job whose `config` is small as YAML text, but huge once its aliases are expanded."""
    lines = ["k0: &k0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"k{i}: &k{i} [{', '.join([f'*k{i - 1}'] * 9)}]" for i in range(1, 8)]
    return JOB.replace("{epochs: 20}", last) + "---\n" + "\n".join(lines) + "\n"


HOSTILE = {
    "billion laughs": (laughs("{}"), "must hold at most 100,000 values, aliases included"),
    "a value in itself": (JOB.replace("{epochs", "&c {x: *c, epochs"), "aliases included"),
    "merges": (
        "k0: &k0 {a: 1, b: 2}\n"
        + "".join(f"k{i}: &k{i} {{<<: [{', '.join([f'*k{i - 1}'] * 9)}]}}\n" for i in range(1, 8)),
        "aliases included",
    ),
    "deep": (JOB.replace("20}", "[" * 20_000 + "]" * 20_000 + "}"), "must be nested at most 100"),
    "large": (b"#" * (1 << 22) + b"#", "must have at most 4 MiB"),
}


@pytest.mark.parametrize(("text", "sentence"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_file_is_refused_at_once(tmp_path: Path, text: str | bytes, sentence: str) -> None:
    assert sentence in refusal(tmp_path, text)


def test_damaged_config_map_is_refused_with_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    for damaged in ("kind: ConfigMap", "kind: ConfigMap\nmetadata: {name: a}\ndata: [1]"):
        file.write_text(damaged)
        with pytest.raises(InvalidJobError, match=r"a ConfigMap must have metadata\.name"):
            read_job_file(file).config_maps()


def test_values_of_a_wrong_format_are_refused_with_a_sentence(tmp_path: Path) -> None:
    assert refusal(tmp_path, JOB, "task=mytask").endswith(
        "spec.task: must be module:function, for example my_package.flowers:build, got 'mytask'"
    )
    assert refusal(tmp_path, JOB, "checkpoint.claimName=../x").endswith(
        "spec.checkpoint.claimName: must be the name of a claim: lowercase letters, digits, '-' and"
        " '.', got '../x'"
    )
