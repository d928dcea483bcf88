"""Program that draws from torch's unseeded generators, which must differ by rank and attempt."""

import torch

print("draw torch", torch.rand(1).item())
