"""Program that reads its empty stdin and writes to stdout and stderr in order."""

import sys

print(repr(sys.stdin.read()))
print("out", file=sys.stdout)
print("err", file=sys.stderr)
sys.stdout.write("no newline")
