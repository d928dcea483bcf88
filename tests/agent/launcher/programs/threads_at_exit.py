"""Program with a thread that must end before the exit hooks run."""

import atexit
import threading
import time

atexit.register(print, "hook")


def work():
    time.sleep(0.2)
    print("thread")


threading.Thread(target=work).start()
print("body")
