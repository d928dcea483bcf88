"""Entry point of `python -m ddp_agent`."""

import os

from ddp_agent.warm import start_standby_early


def main() -> None:
    """Start the standby, then import and run the agent.

    The standby goes first because its imports take longest.
    """
    standby = start_standby_early(os.environ)
    from ddp_agent.main import main  # noqa: PLC0415 (see above)

    main(standby)


if __name__ == "__main__":
    main()
