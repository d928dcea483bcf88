"""Program that causes one warning twice. Python must show it once."""

import warnings

for _ in range(2):
    warnings.warn("careful", UserWarning)
