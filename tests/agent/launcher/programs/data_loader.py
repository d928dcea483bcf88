"""Program that runs loader workers by both start methods."""

import threading

import torch
from torch.utils.data import DataLoader


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return index * index


def join_queue_threads():
    """Wait for the queues' threads.

    A loader does not join its queue's thread, which frees the queue's semaphores as it ends. An
    exit in the middle of that makes the resource tracker print that a semaphore leaked.
    """
    for thread in threading.enumerate():
        if thread.name == "QueueFeederThread":
            thread.join()


if __name__ == "__main__":
    for method in ("fork", "spawn"):
        loader = DataLoader(Squares(), num_workers=1, multiprocessing_context=method)
        print([int(x) for x in loader])
        join_queue_threads()
