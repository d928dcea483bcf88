"""Putting off torch's compiler: never needed to train, and whole as soon as it is asked for."""

import subprocess
import sys
from pathlib import Path

import pytest

TRAIN = """
import sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from ddp_agent import dynamo

dynamo.put_off()
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(3, 2))

def step(kind):
    optimizer = kind(model.parameters(), lr=0.1)
    optimizer.zero_grad()
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})

for kind in (torch.optim.SGD, torch.optim.AdamW, torch.optim.Adam):
    step(kind)
"""


def python(script: str, tmp_path: Path) -> str:
    """Output of a script in an interpreter of its own, which ends well."""
    file = tmp_path / "script.py"
    file.write_text(script, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(file), str(tmp_path / "store")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_training_does_not_need_it(tmp_path: Path) -> None:
    names = "[n for n in sys.modules if n.startswith('torch._dynamo')]"
    # torch's rendezvous looks through the stack, and thereby through all modules.
    looks = "import inspect\ninspect.stack()"
    # What a launcher logs when the store of its peer is gone.
    logs = "logging.getLogger('torch.distributed').warning('gone', exc_info=OSError('gone'))"
    script = f"{TRAIN}\n{looks}\nimport logging\n{logs}\nprint({names})"
    assert python(script, tmp_path) == "['torch._dynamo']\n"


ASKS = (
    "torch._dynamo.config.cache_size_limit",
    "torch._dynamo.config.verbose = True; assert torch._dynamo.config.verbose",
    "torch._dynamo.utils.counters",
    "torch._dynamo.disable(step)",
    "torch.compiler.disable(step)",
    "import torch._dynamo.utils",
    "from torch._dynamo import config; config.patch(verbose=True)",
    "from torch._dynamo.backends import registry",
    "import torch._dynamo.backends.tvm",
    "from torch._dynamo import *",
    "dynamo.load()",
)


@pytest.mark.slow
def test_whoever_asks_for_more_gets_all_of_it(tmp_path: Path) -> None:
    script = f"""
import importlib
import os
import sys
import torch
from ddp_agent import dynamo

dynamo.put_off()
weight = torch.nn.Parameter(torch.ones(1))

def step():
    optimizer = torch.optim.AdamW([weight])
    optimizer.zero_grad()
    weight.grad = torch.ones(1)
    optimizer.step()
    optimizer.state_dict()

step()

def asks(statement):
    before, config = torch._dynamo, torch._dynamo.config
    exec(statement)
    importlib.import_module("torch._dynamo.backends.tvm")
    assert type(torch._dynamo).__name__ == "module"
    assert torch._dynamo is sys.modules["torch._dynamo"]
    for name, module in sys.modules.items():
        if name.startswith("torch._dynamo."):
            parent, _, child = name.rpartition(".")
            known = vars(sys.modules[parent]).get(child)
            assert not isinstance(known, type(sys)) or known is module, name
            assert module.__spec__.name == name and "_Loaded" not in str(module.__spec__), name
    assert before.utils is torch._dynamo.utils is sys.modules["torch._dynamo.utils"]
    assert before.config is torch._dynamo.config is sys.modules["torch._dynamo.config"]
    assert config.cache_size_limit == torch._dynamo.config.cache_size_limit
    assert config.verbose is torch._dynamo.config.verbose
    assert before.disable is torch._dynamo.disable
    step()
    function = torch.optim.Optimizer.state_dict.__wrapped__
    assert vars(function)["__dynamo_disable"] is not function

for statement in {ASKS}:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            asks(statement)
            code = 0
        except BaseException as error:
            print(statement, repr(error), flush=True)
        os._exit(code)
    if os.waitpid(pid, 0)[1] == 0:
        print("whole", flush=True)
"""
    assert python(script, tmp_path) == "whole\n" * len(ASKS)


@pytest.mark.slow
def test_what_is_compiled_afterwards_trains_alike(tmp_path: Path) -> None:
    script = f"""{TRAIN}
model.zero_grad()
model(torch.ones(4, 3)).sum().backward()
plain = [p.grad.clone() for p in model.parameters()]
compiled = torch.compile(model, backend="aot_eager")
model.zero_grad()
compiled(torch.ones(4, 3)).sum().backward()
assert all(torch.equal(a, p.grad) for a, p in zip(plain, model.parameters(), strict=True))
optimizer = torch.optim.AdamW(model.parameters())
torch.compile(optimizer.step, backend="aot_eager")()
print(torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0)
"""
    assert python(script, tmp_path) == "True\n"


def test_a_second_time_changes_nothing(tmp_path: Path) -> None:
    script = f"{TRAIN}\nbefore = torch._dynamo\ndynamo.put_off()\nprint(torch._dynamo is before)"
    assert python(script, tmp_path) == "True\n"


def test_the_bundled_trainer_does_not_need_it_either(tmp_path: Path) -> None:
    script = f"""
import os
import sys
import torch
from ddp_agent import dynamo
from ddp_trainer.commands.main import main

dynamo.put_off()
os.environ.update(
    RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", MASTER_ADDR="127.0.0.1",
    MASTER_PORT="0", DDP_CHECKPOINT_DIR={str(tmp_path)!r},
)
assert main(["train", "--task=ddp_trainer.tasks.miniresnet:build", "--max_steps=2"]) == 0
print([n for n in sys.modules if n.startswith('torch._dynamo')], "sympy" in sys.modules)
"""
    assert python(script, tmp_path).splitlines()[-1] == "['torch._dynamo'] False"


def test_a_compiler_that_cannot_be_imported_does_not_stop_the_training(tmp_path: Path) -> None:
    script = f"""{TRAIN}
sys.modules["sympy"] = None  # What imports it fails.
for _ in range(2):
    try:
        torch._dynamo.config.cache_size_limit
    except ImportError as error:
        print("sympy" in str(error))
step(torch.optim.AdamW)
"""
    assert python(script, tmp_path) == "True\nTrue\n"
