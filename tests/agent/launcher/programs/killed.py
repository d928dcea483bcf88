"""Program that a signal kills."""

import os
import signal

os.kill(os.getpid(), signal.SIGKILL)
