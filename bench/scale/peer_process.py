"""Run a peer operator's manager as a local process, and change the controller manager's options."""

import asyncio
import base64
import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from signal import SIGTERM

from tests.api.client import Api, eventually
from tests.harness import processes
from tests.harness.controlplane import CONTROLLER_MANAGER
from tests.harness.run import tail

_READY_SECONDS = 120.0
_END_SECONDS = 20.0
_CERTIFICATES = "k8s-webhook-server/serving-certs"
_PRIVATE_TMP = 'mount --bind "$1" /tmp && shift && exec "$@"'


@dataclass(frozen=True)
class Ports:
    """Ports of a peer operator's manager on this machine."""

    webhook: int
    metrics: int
    health: int
    status: int


@dataclass(frozen=True)
class Manager:
    """The manager process of a peer operator, with its options.

    Attributes:
        user: The user name in the audit log.
        program: Path of the binary.
        namespace: The namespace in which the manager believes it runs.
        secret: Name of the Secret with its webhook certificate.
        ports: Its ports.
        arguments: Its arguments. A configuration file is `/tmp/config.yaml`.
        config: Text of that file, or empty.
    """

    user: str
    program: Path
    namespace: str
    secret: str
    ports: Ports
    arguments: tuple[str, ...]
    config: str = ""


@asynccontextmanager
async def running(
    manager: Manager, kubeconfig: Path, folder: Path, api: Api
) -> AsyncIterator["subprocess.Popen[bytes]"]:
    """Run a manager for the time of the context, which begins when the manager is ready.

    The manager has its own /tmp, because all peers read their webhook certificate from the same
    folder there.

    Args:
        manager: The manager.
        kubeconfig: Kubeconfig of its user.
        folder: Folder for its log and its /tmp.
        api: The administrator's client.

    Raises:
        AssertionError: The manager ended early; the text has the end of its log.
        TimeoutError: It was not ready in time.
    """
    private, log_file = folder / f"{manager.user}-tmp", folder / f"{manager.user}.log"
    process = await asyncio.to_thread(_start, manager, kubeconfig, private, log_file)

    async def certificate_written() -> bool:
        return await _copy_certificate(api, manager, private / _CERTIFICATES)

    async def ready() -> bool:
        text = log_file.read_text(encoding="utf-8", errors="replace")
        assert process.poll() is None, f"{manager.user} ended:\n{tail(text)}"
        return await asyncio.to_thread(_is_ready, manager.ports.health)

    try:
        what = f"{manager.user} writes its webhook certificate"
        await eventually(certificate_written, what, _READY_SECONDS)
        await eventually(ready, f"{manager.user} is ready", _READY_SECONDS, every=0.2)
        yield process
    finally:
        await asyncio.to_thread(_stop, process)


def _start(
    manager: Manager, kubeconfig: Path, private: Path, log_file: Path
) -> "subprocess.Popen[bytes]":
    (private / _CERTIFICATES).mkdir(parents=True, exist_ok=True)
    (private / "config.yaml").write_text(manager.config, encoding="utf-8")
    command = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "sh", "-c", _PRIVATE_TMP]
    command += ["sh", str(private), str(manager.program), *manager.arguments]
    environment = {
        **os.environ,
        "KUBECONFIG": str(kubeconfig),
        "MY_POD_NAMESPACE": manager.namespace,
    }
    with log_file.open("ab") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd="/")


async def _copy_certificate(api: Api, manager: Manager, folder: Path) -> bool:
    """Copy a manager's Secret to its folder, as a kubelet does. Return whether it had data."""
    path = f"/api/v1/namespaces/{manager.namespace}/secrets/{manager.secret}"
    data = (await api.call("GET", path)).get("data") or {}
    if not {"tls.crt", "tls.key"} <= set(data):
        return False
    for name, value in sorted(data.items(), reverse=True):  # the key first
        (folder / name).write_bytes(base64.b64decode(value))
    return True


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2) as answer:
            return bool(answer.status == HTTPStatus.OK)
    except (urllib.error.HTTPError, OSError):
        return False


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def controller_manager(arguments: Sequence[str]) -> Iterator[None]:
    """Restart the controller manager with further arguments, and without them at the end.

    Nothing is restarted without arguments.
    """
    if not arguments:
        yield
        return
    original = processes.recorded(CONTROLLER_MANAGER)
    _restart(replace(original, argv=(*original.argv, *arguments)))
    try:
        yield
    finally:
        _restart(original)


def restart_controller_manager() -> None:
    """Restart the controller manager, so that its garbage collector discovers all new kinds."""
    _restart(processes.recorded(CONTROLLER_MANAGER))


def _restart(service: processes.Service) -> None:
    processes.stop(CONTROLLER_MANAGER, SIGTERM)
    service.start()


def controller_manager_pid() -> int:
    """Return the process id of the controller manager, which a shell loop restarts."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            program = (folder / "cmdline").read_bytes().split(b"\0")[0]
        except OSError:
            continue
        if program.endswith(b"/" + CONTROLLER_MANAGER.encode()):
            return int(folder.name)
    raise AssertionError("the controller manager does not run")
