"""Program that calls sys.exit with a text, which Python prints."""

import sys

sys.exit("the reason")
