"""Entry point of the agent: wires configuration, loop, server and signals."""

import logging
import signal
import sys
import tempfile
from pathlib import Path

from ddp_agent.agent import Agent
from ddp_agent.config import AgentConfig, BadEnvironmentError
from ddp_agent.server import AgentServer
from ddp_agent.warm import Standby
from ddp_wire.contract import TERMINATION_MESSAGE_BYTES, AgentStatus, ExitCode
from ddp_wire.processes import adopt_orphans

_log = logging.getLogger("ddp_agent")


def main(standby: Standby | None = None) -> None:
    """Run the attempts of this node and exit as the last one did.

    A standby that was begun already forks them.
    """
    logging.basicConfig(level=logging.INFO, format="ddp-agent: %(message)s", stream=sys.stderr)
    try:
        config = AgentConfig.from_environment()
    except BadEnvironmentError as error:
        if standby is not None:
            standby.close()
        sys.exit(f"ddp-agent: {error}")
    adopt_orphans()
    with tempfile.TemporaryDirectory(prefix="ddp-agent-") as scratch:
        agent = Agent(config, Path(scratch), standby=standby)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: agent.terminate())
        server = AgentServer(config.bind, config.port, agent)
        server.start()
        code: int = ExitCode.FAILED
        try:
            code = agent.run()
        finally:
            leave_word(config.termination_log, agent.status())
            server.close()
    sys.exit(code)


def leave_word(path: Path, status: AgentStatus) -> None:
    """Write the last state where the kubelet picks it up, cut to what the kubelet keeps."""
    try:
        path.write_text(fitting(status).to_json(), encoding="utf-8")
    except OSError as error:
        _log.warning("the termination message could not be written to %s: %s", path, error)


def fitting(status: AgentStatus) -> AgentStatus:
    """The status with as much left out as it takes to fit a termination message.

    First what the operator does not read there, then metrics, then the head of the traceback, then
    the end of the message.
    """
    slim = status.model_copy(update={"command": [], "ranks": status.ranks[:1]})
    if _over(slim) > 0:
        ranks = [beat.model_copy(update={"progress": None}) for beat in slim.ranks]
        progress = slim.progress and slim.progress.model_copy(update={"metrics": {}})
        slim = slim.model_copy(update={"ranks": ranks, "progress": progress})
    failure = slim.failure
    while failure is not None and (failure.traceback or failure.message) and _over(slim) > 0:
        # A character takes up to six bytes as JSON: cut by few enough to keep what fits.
        cut = max(1, _over(slim) // 6)
        if failure.traceback:
            failure = failure.model_copy(update={"traceback": failure.traceback[cut:]})
        else:
            failure = failure.model_copy(update={"message": failure.message[:-cut]})
        slim = slim.model_copy(update={"failure": failure})
    if _over(slim) > 0:
        slim = slim.model_copy(update={"ranks": [], "progress": None, "checkpoint": None})
    return slim


def _over(status: AgentStatus) -> int:
    return len(status.to_json().encode()) - TERMINATION_MESSAGE_BYTES


if __name__ == "__main__":
    main()
