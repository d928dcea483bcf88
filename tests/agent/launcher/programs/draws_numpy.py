"""Program that draws from NumPy's unseeded generators, which must differ by rank and attempt."""

import numpy as np

print("draw numpy", np.random.rand())
