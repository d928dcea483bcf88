"""Run the command line as `python -m ddp_trainer`."""

import sys

from ddp_trainer.commands.main import main

if __name__ == "__main__":
    sys.exit(main())
