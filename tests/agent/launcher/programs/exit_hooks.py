"""Program whose exit hooks must run, the last one first."""

import atexit

atexit.register(print, "first")
atexit.register(lambda: print("second"))
print("body")
