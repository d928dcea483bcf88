"""Settings of torch's flight recorder and debug levels, which the user may override."""

from pathlib import Path

import pytest

from ddp_trainer.config import RunConfig
from ddp_trainer.config.settings import resolve
from ddp_trainer.ranks import flight_recorder

OLDER_NCCL = {flight_recorder.NEW_NCCL: "0"}
RECORDING = OLDER_NCCL | {flight_recorder.RECORD_SIZE: flight_recorder.RECORDED}


def config(debug: str = "off", directory: str | None = None) -> RunConfig:
    found: RunConfig = resolve(
        {"parallel": {"debug": debug}, "checkpoint": {"directory": directory}}
    )
    return found


def test_environment_overrides_the_debug_level() -> None:
    environ: dict[str, str] = {}
    flight_recorder.configure(config(), environ, nccl=True)
    assert environ == RECORDING
    flight_recorder.configure(config("detail"), environ, nccl=True)
    assert environ == RECORDING | {"TORCH_DISTRIBUTED_DEBUG": "DETAIL", "NCCL_DEBUG": "INFO"}
    environ = {"NCCL_DEBUG": "WARN"}
    flight_recorder.configure(config("info"), environ, nccl=True)
    assert environ == RECORDING | {"TORCH_DISTRIBUTED_DEBUG": "INFO", "NCCL_DEBUG": "WARN"}


@pytest.mark.parametrize("variable", [flight_recorder.RECORD_SIZE, flight_recorder.OLD_RECORD_SIZE])
def test_flight_recorder_size_that_the_user_sets_takes_precedence(variable: str) -> None:
    environ = {variable: "9"}
    flight_recorder.configure(config(), environ, nccl=True)
    assert environ == OLDER_NCCL | {variable: "9"}


def test_flight_recorder_has_another_size_with_gloo() -> None:
    environ: dict[str, str] = {}
    flight_recorder.configure(config(), environ, nccl=False)
    assert environ == {}


@pytest.mark.parametrize("variable", [None, flight_recorder.PREFIX, flight_recorder.OLD_PREFIX])
def test_nccl_dumps_to_the_run_directory_unless_overridden(
    tmp_path: Path, variable: str | None
) -> None:
    environ = {variable: "/tmp/mine-"} if variable else {}
    flight_recorder.configure(config(directory=str(tmp_path / "run")), environ, nccl=True)
    expected = "/tmp/mine-" if variable else f"{tmp_path}/run/flight-recorder/rank-"
    assert environ == RECORDING | {
        flight_recorder.PREFIX: expected,
        flight_recorder.OLD_PREFIX: expected,
    }
    assert (tmp_path / "run" / flight_recorder.FOLDER).is_dir() == (variable is None)
