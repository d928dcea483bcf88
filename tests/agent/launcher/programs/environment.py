"""Program that prints torchrun's environment variables."""

import os

names = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "OMP_NUM_THREADS",
    "PYTHONUNBUFFERED",
)
print({name: os.environ.get(name) for name in names})
