"""Fork one attempt from a real standby and print the outcome as JSON.

    python probe.py HOME

The script runs under torch's CUDA build, beside the recording driver. The attempt is a script that
writes what it finds, and then lets torch ask the driver for GPUs.
"""

import json
import os
import sys
import time
from pathlib import Path

from ddp_agent.config import AgentConfig
from ddp_agent.members import members_of
from ddp_agent.processes import warm
from ddp_agent.processes.launch import prepare
from ddp_wire.contract import Env
from ddp_wire.orders import Order

RANKS = 2
SCRIPT = """
import json, os, pathlib, torch
facts = {
    "pid": os.getpid(),
    "bad_fork": torch.cuda._is_in_bad_fork(),
    "nvml_check": os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK"),
}
here = pathlib.Path(__file__).parent
(here / ("rank-" + os.environ["RANK"])).write_text(json.dumps(facts))
torch._C._cuda_getDeviceCount()
"""


def main(home: Path) -> None:
    """Start the standby, fork, and wait for the end of the attempt."""
    script = home / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")
    given = os.environ | {
        Env.JOB_UID: "uid-1",
        Env.NODE_INDEX: "0",
        Env.NODES: "1",
        Env.PROCS_PER_NODE: str(RANKS),
        Env.RENDEZVOUS_HOST: "127.0.0.1",
        Env.RENDEZVOUS_PORT_BASE: "29400",
        Env.POD_ADDRESS: "127.0.0.1",
        Env.COMMAND: json.dumps(["python", str(script)]),
    }
    standby = warm.Standby(warm.standby_environment({str(k): v for k, v in given.items()}))
    try:
        assert standby.wait_ready()
        made = AgentConfig.from_environment(given)
        launch = prepare(made, members_of(made, Order(1)), home, given)
        pid = standby.fork(launch.arguments, launch.environment)
        while (code := standby.exit_code(pid)) is None:
            time.sleep(0.05)
        ranks = [json.loads((home / f"rank-{rank}").read_text()) for rank in range(RANKS)]
        print(json.dumps({"standby": standby.pid, "ranks": ranks, "code": code}))
    except warm.StandbyUnusableError as error:
        print(json.dumps({"standby": standby.pid, "unusable": str(error)}))
    finally:
        standby.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
