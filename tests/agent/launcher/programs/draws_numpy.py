"""Unseeded generators differ between ranks and attempts."""

import numpy as np

print("draw numpy", np.random.rand())
