"""The content of `state.json` stays readable by this release and by earlier ones.

`saved_states.json` holds states that the code before `SavedState` wrote, each with the arguments of
the run. Add no states of newer code: the file represents checkpoints that exist on volumes.
"""

import json
import zlib
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from ddp_trainer.checkpoint.format import MANIFEST
from ddp_trainer.saved_state import SavedState
from tests.trainer.rank_processes import Launcher

RECORDED: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "saved_states.json").read_text(encoding="utf-8")
)
OF_THE_MOMENT = {"seconds", "source", "versions"}
"""Keys whose values depend on time, on the files of the tests or on packages."""
ADDED_LATER = {
    "order_version": 1,
    "compression_on": False,
    "optimizer": None,
    "live_buffers": None,
    "nonfinite": {"updates": 0, "rollbacks": 0},
    "source": None,
    "data": None,
}
"""Keys that the first release did not write, with the value that an absent key has."""


def state_of(name: str) -> dict[str, Any]:
    state: dict[str, Any] = RECORDED[name]["state"]
    return state


def exact(document: Any) -> str:
    """Return a text that shows each value and its type, so that 1 differs from 1.0."""
    return json.dumps(document, sort_keys=True)


def written(directory: Path) -> dict[str, Any]:
    text = (max(directory.glob("step-*")) / "state.json").read_text()
    state: dict[str, Any] = json.loads(text)
    return state


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_state_of_a_run_is_read_and_written_without_a_change(name: str) -> None:
    recorded = state_of(name)
    document = SavedState.model_validate(recorded).document()
    assert list(document) == list(recorded)
    assert exact(document) == exact(recorded)


@pytest.mark.parametrize("name", RECORDED)
def test_state_of_the_first_release_has_defaults(name: str) -> None:
    first = {key: value for key, value in state_of(name).items() if key not in ADDED_LATER}
    assert exact(SavedState.model_validate(first).document()) == exact(first | ADDED_LATER)


def test_unknown_keys_of_a_newer_release_are_ignored() -> None:
    recorded = state_of("plain")
    newer = recorded | {"phase": "warm-up", "nonfinite": recorded["nonfinite"] | {"skipped": 3}}
    assert exact(SavedState.model_validate(newer).document()) == exact(recorded)


def test_saved_settings_of_another_release_are_kept() -> None:
    recorded = state_of("plain")
    newer = recorded | {"config": recorded["config"] | {"colour": {"hue": 0.5}}}
    assert exact(SavedState.model_validate(newer).document()) == exact(newer)


@pytest.mark.parametrize("key", sorted(state_of("plain").keys() - ADDED_LATER))
def test_saved_value_of_a_wrong_type_is_refused(key: str) -> None:
    with pytest.raises(ValidationError):
        SavedState.model_validate(state_of("plain") | {key: [[]]})


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name != "plain" else ()) for name in RECORDED],
)
def test_run_writes_the_same_state_as_the_previous_release(
    launcher: Launcher, tmp_path: Path, name: str
) -> None:
    recipe, folder = RECORDED[name], {"DDP_CHECKPOINT_DIR": str(tmp_path / "run")}
    gang = launcher.train(*recipe["arguments"], world=recipe["world"], **folder)
    assert set(gang.wait()) == {0}, gang.err(0)
    now, recorded = written(tmp_path / "run"), state_of(name)
    assert list(now) == list(recorded)
    for key, value in recorded.items():
        if key == "config":
            assert now[key]["seed"] == value["seed"]
            assert now[key]["optimizer"]["name"] == value["optimizer"]["name"]
        elif key in OF_THE_MOMENT:
            assert type(now[key]) is type(value)
        else:
            assert exact(now[key]) == exact(value), key


def test_run_resumes_from_a_state_of_the_previous_release(
    launcher: Launcher, tmp_path: Path
) -> None:
    arguments, folder = RECORDED["plain"]["arguments"], {"DDP_CHECKPOINT_DIR": str(tmp_path)}
    assert launcher.train(*arguments, world=None, **folder).wait() == [0]
    plant_state(max(tmp_path.glob("step-*")), state_of("plain"))
    resumed = launcher.train(*arguments, "--max_steps=4", world=None, **folder)
    assert resumed.wait() == [0], resumed.err(0)
    assert [event["step"] for event in resumed.events("resume")] == [3]
    (summary,) = resumed.events("summary")
    assert (summary["steps"], summary["samples"]) == (4, 40)


def plant_state(checkpoint: Path, state: dict[str, Any]) -> None:
    """Replace `state.json`, and its entry in the manifest."""
    content = json.dumps(state, indent=1).encode()
    (checkpoint / "state.json").write_bytes(content)
    manifest = json.loads((checkpoint / MANIFEST).read_text())
    entry = {"bytes": len(content), "crc32": f"{zlib.crc32(content):08x}"}
    manifest["files"]["state.json"] = entry
    (checkpoint / MANIFEST).write_text(json.dumps(manifest))
