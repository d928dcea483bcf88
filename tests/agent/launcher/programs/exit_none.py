"""Program that calls sys.exit without a code."""

import sys

print("end")
sys.exit()
