"""sys.exit with a text prints it."""

import sys

sys.exit("the reason")
