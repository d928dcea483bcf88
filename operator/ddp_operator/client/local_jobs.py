"""The runs of `ddpjob run` in one folder of this machine."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from ddp_operator.api.job import DDPJob, parse_job
from ddp_operator.client.backend import FinishedJob, Json
from ddp_operator.client.errors import NoSuchJobError, RequestError
from ddp_operator.client.follow import JobFollower
from ddp_operator.client.local_logs import LogFile
from ddp_operator.client.local_stacks import read_local_stacks
from ddp_operator.client.log_lines import LogLine, LogParser, Wanted, in_order, wanted_lines
from ddp_operator.client.rank_stacks import RankStack
from ddp_operator.client.run_events import history_files, read_lines
from ddp_operator.client.run_folder import (
    JOB_FILE,
    folder_of,
    is_running,
    load_events,
    load_job,
    owner,
    run_directory_of,
)
from ddp_operator.report.rows import ENDS, state_of
from ddp_wire.contract import PROFILE_REQUEST, PROFILES
from ddp_wire.files import replace_file

MANIFEST_FILE = "submitted.yaml"
"""Name of the file with the objects from which `submit` started a run."""
OUTPUT_FILE = "run.log"
"""Name of the file with the output of a run that `submit` started."""
_START_SECONDS = 60.0
_STOP_SECONDS = 60.0
_POLL_SECONDS = 0.1
_CLUSTER_ONLY = "change the manifest, and run it again with the same --dir"


class LocalJobs:
    """The runs in one folder. A run is a process of its own, which `submit` starts."""

    def __init__(self, home: Path, *, options: str) -> None:
        """Open a folder of runs, which need not exist yet.

        Args:
            home: Folder that `--dir` of `ddpjob run` names.
            options: Options of `ddpjob` that select the folder, with a leading space.
        """
        self._home, self._options = home, options

    @property
    def place(self) -> str:
        """Return the folder in words."""
        return f"folder {self._home}"

    @property
    def options(self) -> str:
        """Return the options of `ddpjob` that select the folder."""
        return self._options

    def volumes(self, name: str) -> Path:
        """Return the folder that has the claims of a run as folders."""
        return self._folder(name) / "volumes"

    def notes(self) -> list[str]:
        """Return nothing, because all files of a folder can be read."""
        return []

    @property
    def lost_lines(self) -> bool:
        """Return false, because all files of a folder can be read."""
        return False

    def read(self, name: str) -> Json:
        """Return the DDPJob object of a run."""
        folder = self._folder(name)
        earlier = load_job(folder)
        if earlier is None or earlier.job is None:
            problem = "is damaged" if (folder / JOB_FILE).exists() else "does not exist"
            sentence = f"there is no run {name!r} in the folder {self._home}"
            raise NoSuchJobError(f"{sentence}: {JOB_FILE} {problem}")
        if is_running(folder) or state_of(earlier.job) in {*ENDS, "Suspended"}:
            return earlier.manifest
        # Imported here, because most commands do not need the operator's decisions.
        from ddp_operator.client.earlier_run import KILLED, stopped  # noqa: PLC0415

        status = stopped(earlier.manifest, earlier.written, KILLED)
        shown = status.model_dump(mode="json", by_alias=True, exclude_none=True)
        return {**earlier.manifest, "status": shown}

    def read_all(self, *, everywhere: bool = False) -> list[Json]:
        """Return the DDPJob objects of all runs in the folder."""
        del everywhere
        found = []
        for path in sorted(self._home.glob(f"*/{JOB_FILE}")):
            try:
                found.append(self.read(path.parent.name))
            except NoSuchJobError:
                continue
        return found

    def finished(self, *, everywhere: bool = False) -> list[FinishedJob]:
        """Return nothing: the folder itself keeps the runs that have ended."""
        del everywhere
        return []

    def create(self, manifest: Json, config_maps: Sequence[Json] = ()) -> Json:
        """Start a run in the background. Return its job."""
        name = manifest["metadata"]["name"]
        folder = self._folder(name)
        if is_running(folder):
            raise RequestError(f"{name} already runs in the folder {self._home}")
        if any(one.get("binaryData") for one in config_maps):
            raise RequestError("--code: must have text files only for a local run")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            text = yaml.safe_dump_all([*config_maps, manifest], sort_keys=False)
            (folder / MANIFEST_FILE).write_text(text, encoding="utf-8")
        except OSError as error:
            sentence = f"the folder {folder} cannot be written: {error.strerror}"
            raise RequestError(sentence) from error
        return self._start(name)

    def _start(self, name: str) -> Json:
        """Start the run of a submitted manifest, and wait until it has a status."""
        folder = self._folder(name)
        before = _version(folder)
        command = [sys.executable, "-m", "ddp_operator.cli.main", "run"]
        with (folder / OUTPUT_FILE).open("ab") as output:
            begin = output.tell()
            process = subprocess.Popen(
                [*command, str(folder / MANIFEST_FILE), "--dir", str(self._home)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        end = time.monotonic() + _START_SECONDS
        while time.monotonic() < end:
            if _version(folder) != before:
                return self.read(name)
            if (code := process.poll()) is not None:
                text = (folder / OUTPUT_FILE).read_bytes()[begin:].decode("utf-8", "replace")
                last = text.strip().splitlines()[-1:] or ["it printed nothing"]
                if code == 0:  # Its training was complete before.
                    return self.read(name)
                raise RequestError(last[0].removeprefix("ddpjob: "))
            time.sleep(_POLL_SECONDS)
        raise RequestError(f"{name} has not started within {_START_SECONDS:.0f} s")

    def set_spec(self, name: str, fields: Mapping[str, Any]) -> Json:
        """Suspend a run, or start it again. Other fields cannot be changed while it runs."""
        if fields.keys() != {"suspend"}:
            raise RequestError(f"a local run cannot be changed: {_CLUSTER_ONLY}")
        folder = self._folder(name)
        if fields["suspend"]:
            self._signal(name)
        elif not is_running(folder):
            if not (folder / MANIFEST_FILE).exists():
                raise RequestError(
                    f"{name} was started with `ddpjob run`: run the same command again to resume"
                )
            return self._start(name)
        return self.read(name)

    def _signal(self, name: str) -> None:
        """Tell the process of a run to save a checkpoint and to stop."""
        process = owner(self._folder(name))
        if process is None:
            return
        try:
            os.kill(process, signal.SIGTERM)
        except OSError as error:
            sentence = f"the process {process} of {name} cannot be stopped: {error.strerror}"
            raise RequestError(sentence) from error

    def scale(self, name: str, nodes: int) -> None:
        """Refuse another number of nodes."""
        self.read(name)
        raise RequestError(f"a local run cannot be scaled to {nodes} nodes: {_CLUSTER_ONLY}")

    def delete(self, name: str) -> None:
        """Stop a run, and remove its status and its logs. Its checkpoints stay."""
        self.read(name)
        self._signal(name)
        folder, end = self._folder(name), time.monotonic() + _STOP_SECONDS
        while is_running(folder):
            if time.monotonic() > end:
                raise RequestError(f"{name} has not stopped within {_STOP_SECONDS:.0f} s")
            time.sleep(_POLL_SECONDS)
        for path in folder.iterdir():
            if path.name == "volumes":
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()

    def lines(self, name: str, wanted: Wanted, *, follow: bool) -> Iterator[LogLine]:
        """Yield the output of a run. Its logs have no times, so attempts order the lines."""
        self.read(name)
        folder = self._folder(name)
        if not follow:
            found: list[LogLine] = []
            for path in _logs(folder):
                found += map(LogParser(path.stem).parse, read_lines([path]))
            return wanted_lines(in_order(found), wanted)
        files: dict[str, LogFile] = {}

        def open_log(pod: str, _: datetime | None) -> LogFile:
            path = folder / "logs" / f"{pod}.log"
            return files.setdefault(pod, LogFile(path, lambda: self._is_over(name)))

        def pods() -> list[str]:
            return [path.stem for path in _logs(folder)]

        return wanted_lines(JobFollower(open_log, pods, lambda: self._is_over(name)), wanted)

    def _is_over(self, name: str) -> bool:
        """Return whether no process writes more output."""
        return not is_running(self._folder(name))

    def history(self, name: str) -> Iterator[bytes]:
        """Yield the lines of the run's events."""
        self.read(name)
        return read_lines(history_files(self._folder(name)))

    def events(self, name: str) -> list[Json]:
        """Return the Events of a run, oldest first."""
        self.read(name)
        return load_events(self._folder(name))

    def stacks(self, job: DDPJob) -> list[RankStack]:
        """Return the stacks of the ranks that answered, in the order of the ranks."""
        return read_local_stacks(job.metadata.uid, job.spec.ranks_per_node)

    def request_profile(self, job: DDPJob, steps: int) -> str:
        """Request a trace of updates of rank 0. Return where it will be."""
        if job.spec.task is None:
            raise RequestError("only the bundled loop writes traces, and the job has a command")
        name = job.metadata.name
        directory = run_directory_of(job, self.volumes(name))
        try:
            request = json.dumps({"from": 0, "steps": steps})
            replace_file(directory / PROFILE_REQUEST, request)
        except OSError as error:
            sentence = f"{directory / PROFILE_REQUEST}: {error.strerror or error}"
            raise RequestError(sentence) from error
        return f"rank 0 writes the trace of {steps} updates to {directory / PROFILES}"

    def _folder(self, name: str) -> Path:
        return folder_of(self._home, name)


def _logs(folder: Path) -> list[Path]:
    return sorted((folder / "logs").glob("*.log"))


def _version(folder: Path) -> tuple[str, datetime]:
    """Return the attempt and the time of the newest status in a folder."""
    earlier = load_job(folder)
    if earlier is None or earlier.job is None:
        return "", datetime.fromtimestamp(0, UTC)
    return str(parse_job(earlier.manifest).status.attempt), earlier.written
