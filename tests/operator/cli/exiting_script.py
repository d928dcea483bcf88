"""A script whose rank 1 sleeps for an hour after the training."""

import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
rank = dist.get_rank()
dist.destroy_process_group()
if rank == 1:
    time.sleep(3600)
