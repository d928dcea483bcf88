"""Program that prints its arguments and paths."""

import os
import sys

print(sys.argv[1:], os.path.basename(sys.argv[0]), os.path.basename(__file__), __name__)
print([os.path.basename(a) for a in sys.orig_argv[1:]])
print(os.path.basename(sys.path[0]))
print(os.getcwd() == os.environ.get("PWD", os.getcwd()))
