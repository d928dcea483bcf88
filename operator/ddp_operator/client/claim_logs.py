"""Fetch the copies of a run's logs from the claim of its job.

The agents copy the output of all ranks to the volume of the run. A temporary job packs the copies
into an archive, which is copied through its log. The ranks write the names and the content, so only
files with the names of copies are unpacked, and no more than `MOST_UNPACKED` bytes.
"""

import contextlib
import re
import shlex
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from ddp_operator.client.claim_reader import ClaimReader
from ddp_operator.client.errors import RequestError
from ddp_operator.client.jobs import Job

MOST_UNPACKED = 2_000_000_000
"""Maximum size of all copies, in bytes."""
_ARCHIVE = "/tmp/logs.tgz"  # noqa: S108 (in the container)
_COPY = re.compile(
    r"logs/attempt-\d{1,9}/node-\d{1,9}/[A-Za-z0-9_-][\w.-]*/attempt_0/\d{1,9}/std(out|err)\.log(\.old)?"
)


@contextlib.contextmanager
def copied_logs(job: Job, attempt: int | None = None) -> Iterator[Path | None]:
    """Return a directory with the copies of the logs, for `Job.logs`. It is deleted at the end.

    A local run keeps all its logs, so it gets None.

    Args:
        job: Job whose logs are copied.
        attempt: Attempt to copy. The default is all of them.

    Raises:
        RequestError: The job saves nothing, has no such copies yet, or they are too large.
        ClusterError: The API server refused the request, or did not answer.
    """
    if job.backend.volumes(job.name) is not None:
        yield None
        return
    reader = ClaimReader(job)
    with tempfile.TemporaryDirectory(prefix="ddpjob-") as folder:
        archive, unpacked = Path(folder, "logs.tgz"), Path(folder, "run")
        with archive.open("wb") as output:
            reader.copy(_pack(reader.directory, attempt), [_ARCHIVE], output)
        unpacked.mkdir()
        try:
            _unpack(archive, unpacked)
        except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
            raise RequestError(f"the copies of the logs cannot be read: {error}") from error
        yield unpacked


def _pack(directory: str, attempt: int | None) -> str:
    """Return the command that writes the archive."""
    source = "logs" if attempt is None else f"logs/attempt-{attempt}"
    path = shlex.quote(f"{directory}/{source}")
    missing = shlex.quote(f"there is no copy of a log in {directory}/{source}")
    pack = shlex.join(["python", "-m", "tarfile", "-c", _ARCHIVE, source])
    return (
        f"{{ test -d {path} || {{ echo {missing}; exit 1; }}; }}"
        f" && cd {shlex.quote(directory)} && {pack}"
    )


def _unpack(archive: Path, target: Path) -> None:
    """Unpack the regular files that have names of copies."""
    left = MOST_UNPACKED
    with tarfile.open(archive) as packed:
        for member in packed:
            if not member.isfile() or _COPY.fullmatch(member.name) is None:
                continue
            left -= member.size
            if left < 0:
                raise RequestError(
                    f"the copies of the logs have more than {MOST_UNPACKED:,} bytes: select one"
                    " with --attempt, or mount the claim and name the directory with --run-dir"
                )
            content = packed.extractfile(member)
            path = target / member.name
            path.parent.mkdir(parents=True, exist_ok=True)
            if content is not None:
                with content, path.open("xb") as output:
                    shutil.copyfileobj(content, output)
