"""Program that fails. Its traceback must contain only frames of the program."""

import sys


def inner():
    raise RuntimeError("deep")


try:
    inner()
except RuntimeError:
    import traceback

    frames = traceback.extract_tb(sys.exc_info()[2])
    print([f.name for f in frames])
