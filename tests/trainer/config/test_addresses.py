"""Tests of addresses of object stores in settings."""

from typing import Any

import pytest

from ddp_trainer.config.addresses import check_url, is_url
from ddp_trainer.config.credentials import redacted
from ddp_trainer.config.settings import resolve
from ddp_trainer.errors import InputError

HIDDEN = "wJalrXUtnFEMI"


@pytest.mark.parametrize(
    "url",
    [
        "s3://bucket/run",
        "gs://bucket/team/run/",
        "gcs://bucket/run",
        "az://container/run",
        "abfs://container@account.dfs.core.windows.net/run",
        "abfss://container@account.dfs.core.windows.net/run",
    ],
)
def test_address_of_a_prefix_is_accepted(url: str) -> None:
    assert is_url(url)
    check_url("mirror", url)


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("/mnt/run", "mirror must begin with one of s3://"),
        ("http://host/run", "mirror must begin with one of s3://"),
        ("file:///etc", "mirror must begin with one of s3://"),
        (f"s3://key:{HIDDEN}@bucket/run", "without credentials, options and port"),
        (f"s3://bucket/run?secret={HIDDEN}", "without credentials, options and port"),
        (f"s3://bucket/run#{HIDDEN}", "without credentials, options and port"),
        (f"abfs://container:{HIDDEN}@account/run", "without credentials, options and port"),
        ("s3://bucket:9000/run", "without credentials, options and port"),
        ("s3://bucket", "must name a bucket and a prefix"),
        ("s3://bucket/", "must name a bucket and a prefix"),
        ("s3:///run", "must name a bucket and a prefix"),
        ("s3://", "mirror must begin with one of s3://"),
    ],
)
def test_other_address_is_refused_without_repeating_it(url: str, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        resolve({"checkpoint": {"directory": "/run", "mirror": url}})
    assert sentence in str(caught.value)
    assert HIDDEN not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"checkpoint": {"mirror": "s3://bucket/run"}}, "requires checkpoint.directory"),
        ({"checkpoint": {"directory": "/run", "mirror_keep": 5}}, '"mirror_keep" must not be set'),
        ({"init_from": f"s3://user:{HIDDEN}@bucket/run"}, "init_from must be scheme://bucket"),
    ],
)
def test_setting_that_cannot_work_is_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        resolve(settings)
    assert sentence in str(caught.value)
    assert HIDDEN not in str(caught.value)


def test_path_is_no_address() -> None:
    assert not is_url("/mnt/run")
    assert not is_url("model.safetensors")
    assert resolve({"init_from": "/mnt/run"}).init_from == "/mnt/run"


def test_values_of_secret_variables_are_hidden() -> None:
    environ = {
        "AWS_SECRET_ACCESS_KEY": HIDDEN,
        "AZURE_STORAGE_CONNECTION_STRING": f"Key={HIDDEN}xyz",
        "AWS_DEFAULT_REGION": "us-east-1",
        "SHORT_TOKEN": "abc",
    }
    text = f"denied: Key={HIDDEN}xyz, {HIDDEN} in us-east-1, abc"
    assert redacted(text, environ) == "denied: <hidden>, <hidden> in us-east-1, abc"
