"""Unseeded generators differ between ranks and attempts."""

import random

print("draw random", random.random())
