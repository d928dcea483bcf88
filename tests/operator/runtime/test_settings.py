"""Operator settings: an invalid one is reported in one sentence."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ddp_operator.runtime.settings import PREFIX, Settings, SettingsError

IMAGE = {
    "DDP_OPERATOR_TRAINER_IMAGE": "registry.example/ddp-trainer:1",
    "DDP_OPERATOR_LEASE_NAMESPACE": "ddp-system",
}


def test_only_image_and_lease_namespace_are_required() -> None:
    settings = Settings.from_environment(IMAGE)
    assert settings.trainer_image == "registry.example/ddp-trainer:1"
    assert settings.pod_template == "scheduling"
    assert "prometheus.io/*" in settings.pod_template_annotations
    assert settings.namespaces == ()
    assert settings.agent_clients is None
    assert settings.gpu_product_label == "nvidia.com/gpu.product"
    assert settings.watch_nodes is False
    assert settings.workers == 8
    assert settings.resync_seconds == 600
    assert settings.status_writes_per_second == 20
    assert settings.health_port == 8080
    assert settings.log_level == "INFO"
    assert settings.image_pull_policy == "IfNotPresent"
    assert settings.log_format == "text"
    assert settings.identity == socket.gethostname()
    assert settings.lease_name == "ddp-trainer-operator"
    assert (settings.lease_seconds, settings.renew_seconds, settings.retry_seconds) == (15, 10, 2)


def test_every_setting_is_read_from_its_variable() -> None:
    given = {
        "trainer_image": "mine:1",
        "image_pull_policy": "Always",
        "worker_user": "assigned",
        "shared_memory": "16Gi",
        "host_ports": "20000-29999",
        "checkpoint_claims": "True",
        "finished_jobs": "True",
        "gpu_product_label": "cloud.google.com/gke-accelerator",
        "agent_clients": "()",
        "pod_template": "full",
        "pod_template_annotations": "('a.example/b', 'c/*')",
        "gang_types": "(<GangType.NATIVE: 'Native'>, <GangType.VOLCANO: 'Volcano'>)",
        "gang_default": "Volcano",
        "gang_queue": "research",
        "coscheduling_scheduler": "batch-scheduler",
        "namespaces": "('team-a', 'team-b')",
        "watch_nodes": "True",
        "workers": "2",
        "resync_seconds": "30",
        "status_writes_per_second": "5.0",
        "health_port": "9090",
        "webhook_url": "https://hooks.example.com/ddp",
        "webhook_key_file": "/etc/keys",
        "log_level": "DEBUG",
        "log_format": "json",
        "identity": "ddp-trainer-5f7",
        "leader_election": "True",
        "lease_namespace": "ddp-system",
        "lease_name": "other",
        "lease_seconds": "30",
        "renew_seconds": "20.0",
        "retry_seconds": "1.5",
    }
    variables = {PREFIX + k.upper(): v for k, v in given.items()}
    variables |= {PREFIX + "AGENT_CLIENTS": "[]", PREFIX + "NAMESPACES": "team-a,team-b"}
    variables |= {PREFIX + "POD_TEMPLATE_ANNOTATIONS": "a.example/b,c/*"}
    variables |= {PREFIX + "GANG_TYPES": "Native,Volcano"}
    settings = Settings.from_environment(variables)
    assert {k: str(v) for k, v in settings.model_dump().items()} == given


def test_agent_clients_are_peers_of_a_network_policy() -> None:
    text = '[{"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "prometheus"}}}]'
    peers = Settings.from_environment({**IMAGE, PREFIX + "AGENT_CLIENTS": text}).agent_clients
    assert peers is not None
    assert [peer.to_manifest() for peer in peers] == json.loads(text)
    for wrong in ("[{}]", '[{"podSelectr": {}}]', "prometheus"):
        with pytest.raises(SettingsError, match="DDP_OPERATOR_AGENT_CLIENTS: "):
            Settings.from_environment({**IMAGE, PREFIX + "AGENT_CLIENTS": wrong})


def test_lease_namespace_is_not_needed_without_leader_election() -> None:
    single = {PREFIX + "TRAINER_IMAGE": "mine:1", PREFIX + "LEADER_ELECTION": "false"}
    assert Settings.from_environment(single).lease_namespace is None
    assert Settings.from_environment({**IMAGE, **single}).lease_namespace is None


def test_other_variables_are_ignored() -> None:
    assert Settings.from_environment({**IMAGE, "WORKERS": "many", "PATH": "/bin"}).workers == 8


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "DDP_OPERATOR_TRAINER_IMAGE: Field required"),
        ({**IMAGE, "DDP_OPERATOR_WORKERS": "0"}, "DDP_OPERATOR_WORKERS: Input should be"),
        ({**IMAGE, "DDP_OPERATOR_WORKERS": "many"}, "DDP_OPERATOR_WORKERS: Input should be"),
        ({**IMAGE, "DDP_OPERATOR_HEALTH_PORT": "70000"}, "DDP_OPERATOR_HEALTH_PORT: Input should"),
        ({**IMAGE, "DDP_OPERATOR_RESYNC_SECONDS": "1"}, "DDP_OPERATOR_RESYNC_SECONDS: Input"),
        (
            {**IMAGE, "DDP_OPERATOR_STATUS_WRITES_PER_SECOND": "0"},
            "DDP_OPERATOR_STATUS_WRITES_PER_SECOND: Input should be greater",
        ),
        ({**IMAGE, "DDP_OPERATOR_POD_TEMPLATE": "some"}, "DDP_OPERATOR_POD_TEMPLATE: Input should"),
        (
            {**IMAGE, "DDP_OPERATOR_HOST_PORTS": "20000-20010"},
            "DDP_OPERATOR_HOST_PORTS: Value error, must be FIRST-LAST with at least 66 ports",
        ),
        ({**IMAGE, "DDP_OPERATOR_LOG_LEVEL": "LOUD"}, "DDP_OPERATOR_LOG_LEVEL: String should"),
        ({**IMAGE, "DDP_OPERATOR_LOG_FORMAT": "xml"}, "DDP_OPERATOR_LOG_FORMAT: String should"),
        ({**IMAGE, "DDP_OPERATOR_GANG_TYPES": "Slurm"}, "DDP_OPERATOR_GANG_TYPES: Input should be"),
        (
            {**IMAGE, "DDP_OPERATOR_GANG_TYPES": "None"},
            "DDP_OPERATOR_GANG_TYPES: Value error, must not contain None",
        ),
        (
            {**IMAGE, "DDP_OPERATOR_GANG_DEFAULT": "Volcano"},
            "DDP_OPERATOR_GANG_DEFAULT: Value error, must be None or a type that",
        ),
        (
            {"DDP_OPERATOR_TRAINER_IMAGE": "mine:1"},
            "DDP_OPERATOR_LEASE_NAMESPACE: Value error, must be set unless",
        ),
        (
            {**IMAGE, "DDP_OPERATOR_RENEW_SECONDS": "15"},
            "DDP_OPERATOR_RENEW_SECONDS: Value error, must be less than DDP_OPERATOR_LEASE_SECONDS",
        ),
        (
            {**IMAGE, "DDP_OPERATOR_RETRY_SECONDS": "11"},
            "DDP_OPERATOR_RETRY_SECONDS: Value error, must be less than DDP_OPERATOR_RENEW_SECONDS",
        ),
        (
            {**IMAGE, "DDP_OPERATOR_WEBHOOK_URL": "ftp://hooks.example.com"},
            "DDP_OPERATOR_WEBHOOK_URL: String should match",
        ),
        (
            {**IMAGE, "DDP_OPERATOR_WEBHOOK_URL": "https://hooks.example.com"},
            "DDP_OPERATOR_WEBHOOK_KEY_FILE: Value error, must be set if DDP_OPERATOR_WEBHOOK_URL",
        ),
    ],
    ids=[
        "no image",
        "no workers",
        "workers not a number",
        "port out of range",
        "resync interval too short",
        "no status writes",
        "podTemplate policy",
        "too few host ports",
        "log level",
        "log format",
        "unknown gang type",
        "gang type None",
        "gang default that is not offered",
        "no lease namespace",
        "renew longer than lease",
        "retry longer than renew",
        "webhook without http",
        "webhook without keys",
    ],
)
def test_invalid_setting_gives_one_sentence_with_name_and_value(
    given: dict[str, str], sentence: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.from_environment(given)
    message = str(caught.value)
    assert message.startswith(sentence)
    assert message.splitlines() == [message]
    wrong = given.get(message.partition(":")[0])
    assert message.endswith(f"got {wrong!r}")


@pytest.mark.slow
def test_process_exits_with_the_sentence_and_no_traceback() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "ddp_operator.app"],
        env={"PATH": "/usr/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith("ddp-operator: DDP_OPERATOR_TRAINER_IMAGE: ")
    assert "Traceback" not in ended.stderr


def test_list_of_annotations_can_be_empty() -> None:
    settings = Settings.from_environment({**IMAGE, PREFIX + "POD_TEMPLATE_ANNOTATIONS": ","})
    assert settings.pod_template_annotations == ()


@pytest.mark.slow
def test_process_exits_with_one_sentence_about_its_signing_keys(tmp_path: Path) -> None:
    given = {**IMAGE, PREFIX + "WEBHOOK_URL": "https://hooks.example.com"}
    ended = subprocess.run(
        [sys.executable, "-m", "ddp_operator.app"],
        env={"PATH": "/usr/bin", **given, PREFIX + "WEBHOOK_KEY_FILE": str(tmp_path / "keys")},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"ddp-operator: {tmp_path}/keys cannot be read as a file of")
    assert len(ended.stderr.splitlines()) == 1
