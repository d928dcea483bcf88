"""Tests of the warning about settings that look like credentials."""

import json
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr

from ddp_trainer.config.credentials import credentials_warning
from tests.trainer.runs import opened

TOKEN = "hf_0123456789abcdefghij"  # noqa: S105 - not a real one


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"hf_token": TOKEN}, "task.hf_token looks like a credential"),
        ({"store": {"access_key": TOKEN}}, "task.store.access_key looks like a credential"),
        ({"API_KEY": TOKEN, "password": "x" * 16}, "task.API_KEY, task.password look like cred"),
    ],
)
def test_setting_that_looks_like_a_credential_is_named(
    settings: dict[str, Any], named: str
) -> None:
    warning = credentials_warning(settings)
    assert warning is not None
    assert warning.startswith(named)
    assert TOKEN not in warning


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"pad_token": "<pad>", "eos_token": "[EOS]"},
        {"tokens": TOKEN, "max_tokens": 2048, "tokenizer": "a-long-name-of-a-tokenizer"},
        {"hf_token": None, "password": "", "secret": "two words and more"},
    ],
)
def test_setting_that_is_no_credential_causes_no_warning(settings: dict[str, Any]) -> None:
    assert credentials_warning(settings) is None


def test_masked_credential_causes_no_warning() -> None:
    class Settings(BaseModel):
        hf_token: SecretStr = SecretStr(TOKEN)

    assert credentials_warning(Settings().model_dump(mode="json")) is None


def test_run_warns_of_a_credential(capsys: pytest.CaptureFixture[str]) -> None:
    opened("sample_tasks:build_with_token", max_steps=1, task={"hf_token": TOKEN})
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    warnings = [event["message"] for event in events if event["event"] == "warning"]
    assert [text for text in warnings if text.startswith("task.hf_token looks like a credential")]
