"""Collect what helps to find a problem of a job in one archive, without its secrets."""

import contextlib
import io
import json
import platform
import tarfile
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from ddp_operator.client.errors import ClusterError, RequestError
from ddp_operator.client.jobs import Job
from ddp_operator.client.redaction import redact, redact_text
from ddp_operator.report.story import tell
from ddp_wire.plain_text import plain_text

LOG_BYTES = 4 << 20
"""Maximum size of the output of the ranks in an archive, in bytes. The newest lines stay."""
_README = """\
Collected by `ddpjob support-bundle` from the job {name} ({place}) at {time}.

job.json     the DDPJob with its status
story.txt    what `ddpjob status` shows
why.txt      what `ddpjob why` shows
events.json  the Events about the job
output.log   the end of the output of all ranks
metrics.json the reports of the run
missing.txt  what could not be read

Values of variables, passwords, tokens and keys are replaced by REDACTED. Read the files before you
pass them on: a program can print secrets in forms that nobody can recognize.
"""


def write_bundle(job: Job, output: Path) -> list[str]:
    """Write the archive of a job. Return what could not be read, as sentences.

    Raises:
        NoSuchJobError: There is no such job.
        ClusterError: The job cannot be read.
        RequestError: The archive cannot be written.
    """
    now = datetime.now(UTC)
    found, model, place = job.manifest(), job.read(), job.backend.place
    story = (f"{fact.label:12}{fact.text}" for fact in tell(model, now, place=place))
    heading = _README.format(name=job.name, place=place, time=f"{now:%Y-%m-%d %H:%M:%S} UTC")
    files = {
        "README.txt": heading,
        "job.json": _json(redact(found)),
        "story.txt": redact_text("\n".join(story) + "\n"),
        "why.txt": redact_text(f"{job.why().paragraph}\n"),
        "versions.json": _json(_versions()),
    }
    missing: list[str] = []
    parts: dict[str, Callable[[], str]] = {
        "events.json": lambda: _json(redact(job.events())),
        "output.log": lambda: "".join(_newest(_output(job))),
        "metrics.json": lambda: _json(job.metrics()),
    }
    for name, read in parts.items():
        try:
            files[name] = read()
        except (ClusterError, RequestError) as error:
            missing.append(f"{name}: {error}")
        missing += [f"{name}: {note}" for note in job.backend.notes()]
    files["missing.txt"] = "".join(f"{redact_text(one)}\n" for one in missing)
    _write(output, f"{job.name}-support", files)
    return missing


def _output(job: Job) -> Iterator[str]:
    for line in job.logs():
        clock = line.time.isoformat(timespec="milliseconds") if line.time is not None else "-"
        who = line.pod if line.rank is None else f"rank {line.rank}"
        text = redact_text(plain_text(line.text))
        yield f"{clock} attempt {line.attempt or '-'} [{who}] {text}\n"


def _newest(lines: Iterator[str]) -> list[str]:
    """Return the last lines that together have at most `LOG_BYTES` bytes."""
    found, left = list(lines), LOG_BYTES
    for number, line in enumerate(reversed(found)):
        left -= len(line.encode())
        if left < 0:
            return [f"({len(found) - number:,} earlier lines)\n", *found[len(found) - number :]]
    return found


def _versions() -> dict[str, str]:
    return {
        "ddp-trainer": metadata.version("ddp-trainer"),
        "python": platform.python_version(),
        "system": platform.platform(),
    }


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, default=str) + "\n"


def _write(path: Path, folder: str, files: Mapping[str, str]) -> None:
    """Write the archive in one step. Only the user can read it."""
    if not path.name:
        raise RequestError("the output must be the path of a file")
    pending = path.with_name(f".{path.name}.tmp")
    try:
        pending.touch(mode=0o600)
        with tarfile.open(pending, "w:gz") as archive:
            for name, text in files.items():
                data = text.encode("utf-8", "replace")
                entry = tarfile.TarInfo(f"{folder}/{name}")
                entry.size, entry.mode = len(data), 0o600
                archive.addfile(entry, io.BytesIO(data))
        pending.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            pending.unlink()
        raise RequestError(f"{path}: cannot be written: {error.strerror}") from error
