"""Program that draws from Python's unseeded generators, which must differ by rank and attempt."""

import random

print("draw random", random.random())
