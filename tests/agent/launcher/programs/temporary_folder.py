"""Program whose temporary folder must be removed at exit."""

import os
import tempfile
import atexit

folder = tempfile.TemporaryDirectory()
atexit.register(lambda: print("exists", os.path.exists(folder.name)))
