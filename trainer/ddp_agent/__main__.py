"""`python -m ddp_agent`."""

import os

from ddp_agent.warm import head_start


def main() -> None:
    """Start the standby, and only then import the agent: the standby takes longest to be ready."""
    standby = head_start(os.environ)
    from ddp_agent.main import main  # noqa: PLC0415 (see above)

    main(standby)


if __name__ == "__main__":
    main()
