"""Unseeded generators differ between ranks and attempts."""

import torch

print("draw torch", torch.rand(1).item())
