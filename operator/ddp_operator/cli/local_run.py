"""Run one job for `ddpjob run`, with the operator's own controller and with processes as pods."""

import asyncio
import os
import signal
import sys
import time
import uuid
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from ddp_operator.api.gang import GangType
from ddp_operator.api.job import DDPJob, parse_job
from ddp_operator.api.status import ConditionType, DDPJobStatus
from ddp_operator.builders import names
from ddp_operator.builders.pod import build_pod
from ddp_operator.cli.endings import (
    finished_sentence,
    interrupt_sentence,
    stop_sentence,
    volume_sentence,
)
from ddp_operator.cli.local_checks import check_program, without_cluster_fields
from ddp_operator.cli.rank_output import RankOutput
from ddp_operator.cli.view import View, goodput_line, print_facts, summary_lines
from ddp_operator.client.earlier_run import DEFAULTS, finished_before, first_state, stopped
from ddp_operator.client.run_folder import add_event, load_job, locked, save_job
from ddp_operator.cluster.base import Key, Manifest
from ddp_operator.cluster.local.cluster import LocalCluster, check_runs_locally
from ddp_operator.cluster.local.share import too_few, visible_gpus
from ddp_operator.cluster.local.volumes import ConfigMaps
from ddp_operator.reconcile.lifecycle import is_finished
from ddp_operator.reconcile.plan import Event
from ddp_operator.reconcile.terminations import VOLUME_FAILED
from ddp_operator.runtime.agent_watcher import AgentWatcher
from ddp_operator.runtime.cache import Cache
from ddp_operator.runtime.controller import Controller
from ddp_operator.runtime.queue import WorkQueue
from ddp_operator.runtime.workers import WorkerActivity, work
from ddp_wire.contract import ExitCode

STOPPED = "the user stopped the run"
INTERRUPTED = 130
"""Exit code of a run that Ctrl-C stopped, by the shell's convention (128 + SIGINT)."""


class LocalRun:
    """One run of a job on this machine."""

    def __init__(
        self,
        manifest: Manifest,
        config_maps: ConfigMaps,
        home: Path,
        console: Console,
        *,
        verbose: bool,
    ) -> None:
        """Create a run of a job. It continues the last run of the job in `home`."""
        manifest = _with_uid(manifest)
        metadata = manifest["metadata"]
        self._key: Key = (metadata["namespace"], metadata["name"])
        self._home, self._console = home, console
        self._manifest = manifest
        self._first = first_state(manifest, load_job(home), home)
        self._cache, self._queue = Cache(), WorkQueue[Key]()
        self._view = View(metadata["name"], console)
        self._finished = asyncio.Event()
        self._interrupts = 0
        self._volume_failure: str | None = None
        self._ended_pods: dict[str, Manifest] = {}
        self._status = DDPJobStatus()
        self._job = job = parse_job(manifest)
        gpus = visible_gpus(os.environ)
        self._cluster = LocalCluster(
            home, self._on_job, self._on_child, self._on_event, config_maps, gpus=gpus
        )
        ranks = job.spec.nodes * job.spec.ranks_per_node
        if sentence := too_few(gpus, ranks, per_node=job.spec.gpus_per_node):
            self._view.print_line(sentence)
        self._shown = _shown_ranks(job, verbose=verbose)
        per_node = job.spec.ranks_per_node
        by_node = [range(i * per_node, (i + 1) * per_node) for i in range(job.pods)]
        if job.spec.may_leave_nodes_out:  # Any node may have any rank.
            by_node = [range(ranks)] * job.pods
        logs = {
            self._cluster.log_file(names.pod_name(job, index)): of_node
            for index, of_node in enumerate(by_node)
            if any(rank in self._shown for rank in of_node)
        }
        self._output = RankOutput(logs, self._view.output, all_ranks=verbose)

    async def run(self) -> int:
        """Run the job. Return the exit code of the command."""
        self._handle_interrupts()
        self._output.start()
        watcher = AgentWatcher(self._cluster, self._queue.add)
        controller = Controller(
            self._cluster,
            self._cache,
            DEFAULTS,
            lambda: datetime.now(UTC),
            agents=watcher,
            monotonic=time.monotonic,
        )
        worker = asyncio.ensure_future(work(self._queue, controller, WorkerActivity()))
        finished = asyncio.ensure_future(self._finished.wait())
        try:
            self._cluster.put_job(self._first)
            await asyncio.wait([worker, finished], return_when=asyncio.FIRST_COMPLETED)
        finally:
            worker.cancel()
            finished.cancel()
            await watcher.close()
            await self._cluster.close()
            await asyncio.to_thread(self._output.close)
            self._view.close()
        return self._conclude()

    def _on_job(self, job: Manifest) -> None:
        self._queue.add(self._cache.put_job(job))
        save_job(self._home, job)
        parsed = parse_job(job)
        self._status = parsed.status
        suspended = self._status.is_true(ConditionType.SUSPENDED)
        if suspended and not parsed.spec.suspend:
            return  # The end of the earlier run, which this one resumes.
        self._view.status(self._status)
        self._stop_on_full_disk()
        self._check_end()

    def _on_child(self, kind: str, child: Manifest, gone: bool) -> None:
        if gone:
            self._cache.drop_child(kind, child)
            if kind == "Pod":
                self._ended_pods[child["metadata"]["name"]] = child
        else:
            self._cache.put_child(kind, child)
        self._queue.add(self._key)
        self._check_end()

    def _on_event(self, event: Event) -> None:
        shown = {"type": event.type, "reason": event.reason, "message": event.message}
        add_event(self._home, self._manifest, shown)
        if event.reason not in {"Completed", "Failed"}:  # `_conclude` prints these.
            self._view.event(event)

    def _check_end(self) -> None:
        """Finish the run when the job has finished or is suspended and no pod runs."""
        running = [
            pod
            for pod in self._cache.children("Pod", self._key)
            if pod["status"]["phase"] not in {"Succeeded", "Failed"}
        ]
        ended = is_finished(self._status) or self._status.is_true(ConditionType.SUSPENDED)
        if ended and not running:
            self._finished.set()

    def _stop_on_full_disk(self) -> None:
        """Suspend the job when its volume fails, because a retry would use the same disk."""
        failure = self._status.last_failure
        old = self._first["status"].get("attempt", 0)
        if failure is None or failure.reason != VOLUME_FAILED or failure.attempt <= old:
            return
        if self._volume_failure is None:
            self._volume_failure = failure.message
            asyncio.get_running_loop().call_soon(self._suspend)

    def _suspend(self) -> None:
        spec = {**self._manifest["spec"], "suspend": True}
        self._cluster.put_job({**self._manifest, "spec": spec})

    def _handle_interrupts(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._interrupt)

    def _interrupt(self) -> None:
        """Suspend the job at the first interrupt. Kill its pods at the second."""
        if self._finished.is_set():
            self._output.abandon()
            return
        self._interrupts += 1
        if self._interrupts == 1:
            self._view.print_line(interrupt_sentence(self._job), "yellow")
            self._suspend()
        else:
            self._output.abandon()
            self._cluster.kill()
            self._finished.set()

    def _conclude(self) -> int:
        logs = self._home / "logs"
        if self._volume_failure is not None and not is_finished(self._status):
            self._save_end()
            sentence = volume_sentence(self._volume_failure, self._home)
            self._view.print_line(f"{sentence} Logs: {logs}", "red")
            return ExitCode.FAILED
        if self._interrupts and not is_finished(self._status):
            self._save_end()
            sentence = stop_sentence(self._job, self._status, at_once=self._interrupts > 1)
            self._view.print_line(f"{sentence} Logs: {logs}")
            self._print_goodput()
            return INTERRUPTED
        summary = self._status.condition(ConditionType.SUCCEEDED)
        reason = summary.reason if summary else "Failed"
        message = summary.message if summary else ""
        if self._status.is_true(ConditionType.SUCCEEDED):
            self._view.print_line(f"{reason}: {message}", "green")
            print_facts(self._console, summary_lines(self._status, logs))
            return ExitCode.OK
        failure = self._status.last_failure
        if failure is not None and failure.reason == "BadInput":
            self._view.print_line(f"{reason}: {message}", "red")
            return ExitCode.BAD_INPUT
        if failure is not None and failure.traceback and failure.rank not in self._shown:
            self._console.print(failure.traceback, markup=False, highlight=False, soft_wrap=True)
        self._view.print_line(f"{reason}: {message}; logs: {logs}", "red")
        self._print_goodput()
        return ExitCode.FAILED

    def _save_end(self) -> None:
        """Store the status of the stopped run, whose pods no longer exist."""
        job = self._cache.job(self._key)
        if job is not None:
            why = "the user stopped the run at once" if self._interrupts > 1 else STOPPED
            if self._volume_failure is not None:
                why = "the disk failed"
            pods = self._ended_pods.values()
            self._status = stopped(job, datetime.now(UTC), why, pods)
            status = self._status.model_dump(mode="json", by_alias=True, exclude_none=True)
            save_job(self._home, {**job, "status": status})

    def _print_goodput(self) -> None:
        line = goodput_line(self._status)
        if line is not None:
            print_facts(self._console, [line])


def _shown_ranks(job: DDPJob, *, verbose: bool) -> range:
    """Return the ranks whose output the user sees. A task shows a progress line instead."""
    if verbose:
        return range(job.spec.nodes * job.spec.ranks_per_node)
    return range(0 if job.spec.command is None else 1)


async def run_locally(
    manifest: Manifest,
    config_maps: ConfigMaps,
    home: Path,
    console: Console,
    *,
    verbose: bool = False,
) -> int:
    """Run one job on this machine. Return the exit code of the command.

    If the job has a command, the output of rank 0 is shown; with `verbose`, the output of all
    ranks.

    Raises:
        InvalidJobError: A setting of the bundled loop is wrong, or the program does not exist.
        ClusterError: The job needs a feature that only a cluster has, or `home` cannot be used, or
            another process runs the job there.
    """
    manifest = without_cluster_fields(manifest)
    job = parse_job(manifest)
    if (gang := job.spec.gang) is not None:
        manifest = _without_gang(manifest)
        job = parse_job(manifest)
        if gang.type is not GangType.NONE:
            sentence = f"spec.gang: ignored, because a local run needs no {gang.type} scheduler"
            console.print(sentence, markup=False, highlight=False, soft_wrap=True)
    check_runs_locally(build_pod(job, job.pods - 1, 1, DEFAULTS), config_maps)
    check_program(job, os.environ)
    with locked(home):
        done = finished_before(_with_uid(manifest), load_job(home))
        if done is not None and await _is_whole(done, console):
            _print_finished(done, home, console)
            return ExitCode.OK
        return await LocalRun(manifest, config_maps, home, console, verbose=verbose).run()


def _without_gang(manifest: Manifest) -> Manifest:
    """Return the job without a gang, because its local pods always start together."""
    spec = {name: value for name, value in manifest["spec"].items() if name != "gang"}
    return {**manifest, "spec": spec}


def _with_uid(manifest: Manifest) -> Manifest:
    """Return the job with a fixed uid, so that a second run finds the checkpoints of the first."""
    metadata = manifest["metadata"]
    key = f"{metadata['namespace']}/{metadata['name']}"
    uid = str(uuid.uuid5(uuid.NAMESPACE_URL, key))
    return {**manifest, "metadata": {**metadata, "uid": uid}}


async def _is_whole(job: DDPJob, console: Console) -> bool:
    """Return whether the job's newest checkpoint passes the trainer's integrity checks."""
    checkpoint = job.status.last_checkpoint
    if checkpoint is None:
        return False
    check = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "ddp_trainer.checkpoint", checkpoint.path),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, error = await check.communicate()
    if check.returncode:
        print_facts(console, [error.decode(errors="replace").strip()])
    return check.returncode == 0


def _print_finished(job: DDPJob, home: Path, console: Console) -> None:
    summary, checkpoint = job.status.condition(ConditionType.SUCCEEDED), job.status.last_checkpoint
    view = View(job.metadata.name, console)
    view.close()
    if summary is not None:
        view.print_line(f"{summary.reason}: {summary.message}", "green")
    if checkpoint is not None:
        view.print_line(finished_sentence(checkpoint.step, home))
    print_facts(console, summary_lines(job.status, home / "logs"))
