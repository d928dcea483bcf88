"""Entry point of `python -m ddp_agent`, the command that the operator writes into each pod.

Process: agent (main thread, before all other imports).
"""

import os
import signal

from ddp_wire.exit_codes import ExitCode


def main() -> None:
    """Read and remove the secrets from the environment, start the standby, then run the agent.

    The standby starts before the agent's own imports, because its imports take longest.
    """
    # Linux ignores signals of PID 1 that have no handler. Without one, a pod that is deleted while
    # the agent imports its modules would stay, with its GPUs, for its whole grace period.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(ExitCode.PREEMPTED))
    from ddp_wire.secret_variables import AGENT_SECRETS, take  # noqa: PLC0415 (after the handlers)

    secrets = take(AGENT_SECRETS)
    from ddp_wire.processes import raise_open_file_limit  # noqa: PLC0415 (likewise)

    raise_open_file_limit()
    from ddp_agent.processes.warm import start_standby_early  # noqa: PLC0415 (after the handlers)

    standby = start_standby_early(os.environ)
    from ddp_agent.main import main  # noqa: PLC0415 (after the start of the standby)

    main(standby, secrets)


if __name__ == "__main__":
    main()
