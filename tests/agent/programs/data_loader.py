"""Loader workers run, by both start methods."""

import torch
from torch.utils.data import DataLoader


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return index * index


if __name__ == "__main__":
    for method in ("fork", "spawn"):
        loader = DataLoader(Squares(), num_workers=1, multiprocessing_context=method)
        print([int(x) for x in loader])
