"""Program whose exception hook must be called."""

import sys

sys.excepthook = lambda kind, value, trace: print("hook", kind.__name__, value)
raise KeyError("k")
