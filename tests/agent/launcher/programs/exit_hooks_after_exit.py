"""Program whose exit hooks must run after sys.exit."""

import atexit
import sys

atexit.register(print, "hook")
sys.exit(7)
