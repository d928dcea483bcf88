"""Program whose ranks create a process group and destroy it."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
value = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(value)
print(value.item(), dist.get_world_size())
dist.destroy_process_group()
