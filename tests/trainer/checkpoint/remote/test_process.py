"""Tests of the processes that access a store, without a store."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ddp_trainer.checkpoint.remote import process
from ddp_trainer.checkpoint.remote.mirror import MirrorStatus
from ddp_trainer.errors import InputError
from tests.trainer.checkpoint.remote.memory import URL, Run


def test_missing_package_is_one_sentence(tmp_path: Path) -> None:
    """The development environment has no client of S3."""
    with pytest.raises(InputError) as caught:
        process.fetch(URL, tmp_path, None, claim=False)
    assert str(caught.value) == (
        f"checkpoint: cannot read {URL}: {URL} needs the package s3fs, which is not installed; add"
        " ddp-trainer[s3] to the image"
    )


def test_mirror_that_cannot_work_warns_once_and_does_not_delay_the_end(tmp_path: Path) -> None:
    run = Run(tmp_path)
    mirror = process.MirrorProcess(run.directory, URL, keep=3, rate=None)
    warning = mirror.finish(60)
    assert warning is not None
    assert "s3fs" in warning
    assert "the newest checkpoint was not copied" in warning


def test_process_ends_with_its_standard_input(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ddp_trainer.checkpoint.remote", "mirror", str(tmp_path), URL]
    done = subprocess.run(
        command, input="", capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stderr == ""


class FakeMirror(process.MirrorProcess):
    """A mirror whose status the test sets."""

    def __init__(self) -> None:
        self._url, self._warned, self._alarmed = URL, "", False
        self._command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
        self._status, self._received = MirrorStatus(), 0.0
        self._start()

    def see(self, **fields: Any) -> str | None:
        self._status, self._received = MirrorStatus(**fields), time.monotonic()
        return self.warning()


def test_each_problem_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    mirror = FakeMirror()
    try:
        assert mirror.see(step=10) is None
        away = {"step": 10, "behind_steps": 5, "behind_seconds": 9.0, "error": "503 Slow Down"}
        assert mirror.see(**away) == (
            f"checkpoint.mirror {URL}: 503 Slow Down; the store is 5 updates and 9 s behind, and it"
            " tries again"
        )
        assert mirror.see(**away) is None
        assert mirror.see(step=15) is None
        assert mirror.see(**away) is not None
        assert mirror.see(step=15) is None
        late = {"step": 10, "behind_steps": 5, "behind_seconds": 1000.0}
        assert mirror.see(**late) == (
            f"checkpoint.mirror {URL}: the store is 5 updates and 1000 s behind"
        )
        assert mirror.see(**late) is None
        lag = mirror.lag()
        assert lag is not None
        assert lag[0] == 10
        assert lag[1] == pytest.approx(1000, abs=5)
        monkeypatch.setattr(process, "RESTART_SECONDS", 0.0)
        mirror._process.kill()
        mirror._process.wait()
        assert mirror.see() == (
            "checkpoint.mirror: its process ended with exit code -9; it was restarted"
        )
        assert mirror._process.poll() is None
    finally:
        mirror.close()


def test_status_survives_unknown_lines() -> None:
    document = MirrorStatus(step=3).document()
    assert MirrorStatus(**json.loads(json.dumps(document))) == MirrorStatus(step=3)
