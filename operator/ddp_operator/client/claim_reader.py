"""Read the directory of a run on a cluster with a temporary job beside its claim.

A user may create jobs and read logs, and neither run commands in pods nor mount volumes. So a
DDPJob with one process mounts the claim read-only, and prints what it reads into its log:

    ddp-reader begins
    {"checkpoints": [...]}        or the lines of a file in base64
    ddp-reader ends 0

The client reads the log while it is written, because the kubelet keeps only the newest part of a
long one, and deletes the job.
"""

import base64
import binascii
import hashlib
import secrets
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

from ddp_operator.api.base import API_VERSION, KIND
from ddp_operator.api.job import parse_job
from ddp_operator.builders.env import checkpoint_path
from ddp_operator.builders.names import claim_name
from ddp_operator.client.errors import RequestError, WaitTimeoutError
from ddp_operator.client.jobs import Job

MOST_BYTES = 100_000_000
"""Maximum size of a file that is copied through a log, in bytes."""
START_SECONDS = 300.0
"""Maximum seconds to wait for the pod of the reader."""
_MOUNT = "/mnt/run"
_VOLUME = "run"
_BEGINS, _ENDS = "ddp-reader begins", "ddp-reader ends"
_SHARED_FIELDS = ("image", "imagePullPolicy", "imagePullSecrets", "nodeSelector", "tolerations")
_SHARED_POD_FIELDS = ("securityContext", "serviceAccountName")
_LONGEST_NAME = 40
_PRINT = """
import base64, hashlib, os, sys
most, path = int(sys.argv[1]), next(filter(os.path.isfile, sys.argv[2:]))
size, digest = os.path.getsize(path), hashlib.sha256()
if size > most:
    sys.exit(
        f"{os.path.basename(path)} has {size:,} bytes, and at most {most:,} can be copied through"
        " a log: mount the claim, and name the run's directory with --run-dir"
    )
with open(path, "rb") as file:
    while piece := file.read(6144):
        digest.update(piece)
        print(base64.b64encode(piece).decode())
print("sha256", digest.hexdigest(), flush=True)
"""


@dataclass(frozen=True)
class Printed:
    """What a command has printed."""

    lines: list[str]
    code: int
    """Its exit code."""

    def error(self) -> str:
        """Return its last line, which is the sentence of an error."""
        return self.lines[-1] if self.lines else "it printed nothing"


class ClaimReader:
    """Commands beside the claim of a job."""

    def __init__(self, job: Job) -> None:
        """Create a reader.

        Args:
            job: Job whose directory is read.

        Raises:
            RequestError: The job has no checkpoints.
        """
        self._manifest, self._backend = job.manifest(), job.backend
        self._read = parse_job(self._manifest)
        claim = claim_name(self._read)
        if claim is None:
            raise RequestError(f"{job.name} has no spec.checkpoint, so it saves nothing")
        self._claim = claim
        self.directory = f"{_MOUNT}/{checkpoint_path(self._read)}"
        """The run's directory in the pod of the reader."""

    def run(self, command: str) -> Printed:
        """Run a shell command, and return what it has printed.

        Raises:
            RequestError: The reader did not start or was lost.
            ClusterError: The API server refused the request, or did not answer.
        """
        printed: list[str] = []
        for line in self._lines(command):
            if isinstance(line, int):
                return Printed(printed, line)
            printed.append(line)
        raise RequestError("the reader of the claim was lost: try again")

    def copy(self, command: str, paths: Sequence[str], output: IO[bytes]) -> None:
        """Run a shell command, and copy a file of the pod.

        Args:
            command: Command that may create the file.
            paths: Paths of which the first existing one is copied.
            output: File that takes the content.

        Raises:
            RequestError: The command fails, the file is too large, or a part of it was lost.
            ClusterError: The API server refused the request, or did not answer.
        """
        arguments = shlex.join(["python", "-c", _PRINT, str(MOST_BYTES), *paths])
        digest, last, code = hashlib.sha256(), "it printed nothing", -1
        expected = ""
        for line in self._lines(f"({command}) && {arguments}"):
            if isinstance(line, int):
                code = line
                break
            last = line
            if line.startswith("sha256 "):
                expected = line.removeprefix("sha256 ")
                continue
            try:
                piece = base64.b64decode(line, validate=True)
            except (binascii.Error, ValueError):
                continue  # A warning or the sentence of an error.
            digest.update(piece)
            output.write(piece)
        if code > 0:
            raise RequestError(last)
        if code < 0 or expected != digest.hexdigest():
            raise RequestError("a part of the copy was lost: try again")

    def _lines(self, command: str) -> Iterator[str | int]:
        """Yield what a command prints, and then its exit code, if the reader was not lost."""
        created = self._backend.create(self._reader(command))
        reader = Job(created["metadata"]["name"], self._backend)
        try:
            try:
                reader.wait("Running", timeout=START_SECONDS)
            except WaitTimeoutError as error:
                raise RequestError(f"the claim {self._claim} cannot be read: {error}") from error
            began = False
            for line in reader.logs(follow=True, ranks=[0]):
                if line.text == _BEGINS:
                    began = True
                elif began and line.text.startswith(f"{_ENDS} "):
                    yield int(line.text.removeprefix(f"{_ENDS} "))
                    return
                elif began:
                    yield line.text
        finally:
            reader.delete()

    def _reader(self, command: str) -> dict[str, Any]:
        """Return the manifest of the temporary job."""
        spec: Mapping[str, Any] = self._manifest["spec"]
        shared = {name: spec[name] for name in _SHARED_FIELDS if name in spec}
        overlay = (spec.get("podTemplate") or {}).get("spec") or {}
        pod = {name: overlay[name] for name in _SHARED_POD_FIELDS if name in overlay}
        script = f'echo "{_BEGINS}"; ({command}) 2>&1; echo "{_ENDS} $?"'
        source = {"claimName": self._claim, "readOnly": True}
        name = f"{self._read.metadata.name[:_LONGEST_NAME]}-reader-{secrets.token_hex(3)}"
        return {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": name},
            "spec": {
                **shared,
                "nodes": 1,
                "procsPerNode": 1,
                "command": ["sh", "-c", script],
                "volumes": [{"name": _VOLUME, "persistentVolumeClaim": source}],
                "volumeMounts": [{"name": _VOLUME, "mountPath": _MOUNT, "readOnly": True}],
                **({"podTemplate": {"spec": pod}} if pod else {}),
                "maxRestarts": 0,
                "activeDeadlineSeconds": 3600,
                "ttlSecondsAfterFinished": 300,
            },
        }
