"""Standard streams: nothing to read, output in order."""

import sys

print(repr(sys.stdin.read()))
print("out", file=sys.stdout)
print("err", file=sys.stderr)
sys.stdout.write("no newline")
