"""Program whose exit hooks must run after an exception and see the program's globals."""

import atexit

NAME = "global"
atexit.register(lambda: print("hook", NAME, __name__))
raise ValueError("no")
