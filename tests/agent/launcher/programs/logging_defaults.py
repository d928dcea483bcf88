"""Program that checks that logging is not configured."""

import logging

print(logging.root.handlers, logging.root.level, logging.lastResort.level)
logging.warning("to stderr")
