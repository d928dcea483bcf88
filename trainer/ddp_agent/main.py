"""Create the agent's components: configuration, loop, HTTP server, barrier, signal handlers.

Process: agent (main thread).
"""

import logging
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from ddp_agent import logs
from ddp_agent.agent import Agent
from ddp_agent.clock import Clock, Ticker
from ddp_agent.config import AgentConfig, BadEnvironmentError
from ddp_agent.network.barriers import Barriers
from ddp_agent.network.server import AgentServer
from ddp_agent.network.unread_status import UnreadStatusNotifier
from ddp_agent.orders import AttemptOrders
from ddp_agent.processes.attempt_process import AttemptStarter
from ddp_agent.processes.inspections import Questions
from ddp_agent.processes.launch import TORCHRUN_PREFIX
from ddp_agent.processes.records import RecordsFolder
from ddp_agent.processes.warm import Standby
from ddp_agent.status.gpus import GpuReader, gpu_handles
from ddp_agent.status.metrics import AgentCollector
from ddp_agent.status.termination import write_termination_message
from ddp_agent.status.xids import XidCounter
from ddp_agent.status_writer import StatusWriter
from ddp_wire.contract import ExitCode
from ddp_wire.exposition import render
from ddp_wire.processes import adopt_orphans

_log = logging.getLogger("ddp_agent")


def main(standby: Standby | None = None, secrets: Mapping[str, str] | None = None) -> None:
    """Run the attempts of this node, and exit with the code of the last one.

    Args:
        standby: Standby that was started early, which the agent uses.
        secrets: Variables that `secret_variables.take` has removed from the environment.
    """
    logs.configure()
    config = _read_config(standby, secrets or {})
    if ignored := sorted(name for name in os.environ if name.startswith(TORCHRUN_PREFIX)):
        _log.warning("the agent sets all arguments of torchrun and ignores %s", ", ".join(ignored))
    adopt_orphans()
    with tempfile.TemporaryDirectory(prefix="ddp-agent-") as scratch:
        ticker = Ticker(Clock())
        orders = AttemptOrders(config.job_uid, config.pod_info_dir)
        inspections = Questions(config, ticker.clock)
        writer = StatusWriter(config, ticker.clock)
        xids = XidCounter(gpu_handles)
        starter = _starter(config, ticker, standby, xids)
        with _requiring_port(config.barrier_port, starter):
            barriers = Barriers(config, writer.cell.count_unread)
        notifier = UnreadStatusNotifier(config, writer.cell)
        agent = Agent(
            config,
            Path(scratch),
            ticker=ticker,
            orders=orders,
            writer=writer,
            starter=starter,
            barriers=barriers,
            inspections=inspections,
            on_members=notifier.follow,
        )
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: orders.stop())
        gpus = GpuReader(lambda: xids.counts)
        collector = AgentCollector(config, writer.cell.current, gpus.read)
        with _requiring_port(config.port, starter):
            server = AgentServer(
                config.bind,
                config.port,
                writer.cell,
                orders,
                agent.is_alive,
                inspect=inspections.accept,
                render_metrics=partial(render, collector),
                secret=config.secret,
            )
        server.start()
        xids.start()
        notifier.start()
        code: int = ExitCode.FAILED
        try:
            code = agent.run()
        finally:
            write_termination_message(config.termination_log, writer.status)
            server.close()
    sys.exit(code)


def _read_config(standby: Standby | None, secrets: Mapping[str, str]) -> AgentConfig:
    """Return the configuration. End the process with a message if a variable is wrong."""
    try:
        return AgentConfig.from_environment({**os.environ, **secrets})
    except BadEnvironmentError as error:
        if standby is not None:
            standby.close()
        sys.exit(logs.format_line(str(error), logging.CRITICAL))


def _starter(
    config: AgentConfig, ticker: Ticker, standby: Standby | None, xids: XidCounter
) -> AttemptStarter:
    records = RecordsFolder(config.job_uid, config.node_index)
    return AttemptStarter(config, ticker, standby, xids=lambda: xids.counts, records=records)


@contextmanager
def _requiring_port(port: int, starter: AttemptStarter) -> Iterator[None]:
    """End the process with a message if the code in the context finds a port in use."""
    try:
        yield
    except OSError as error:
        starter.close()
        sys.exit(logs.format_line(f"port {port} must be free: {error}", logging.CRITICAL))


if __name__ == "__main__":
    main()
