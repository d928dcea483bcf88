"""Environment variables of other programs that the product reads or sets.

The product's own variables are declared in two classes: `ddp_wire.variables.Env` for worker pods,
and `ddp_operator.runtime.settings.Settings` for the operator. This table declares the variables of
torch, NCCL, Slurm and other programs. A test compares the table with all names in the code.
"""

from enum import StrEnum
from typing import NamedTuple

from ddp_operator.builders.network_profiles import PROFILES


class Access(StrEnum):
    """Use of a variable by the product."""

    READ = "read"
    SET = "set"
    SET_UNLESS_GIVEN = "set unless given"
    REMOVED = "removed"


class Variable(NamedTuple):
    """One variable of another program, or several variables that belong together."""

    names: tuple[str, ...]
    access: Access
    where: str
    """Process that reads or sets the variable."""
    meaning: str


_RANKS = "ranks"
_AGENT = "agent"
FOR_TORCHRUN = (
    Variable(
        ("DDP_FAILURE_FILE",),
        Access.SET,
        _AGENT,
        "Path of the file in which torchrun's wrapper describes the failure of a rank.",
    ),
    Variable(
        ("DDP_RENDEZVOUS_KEY",),
        Access.SET,
        _AGENT,
        "Key that signs the state of the rendezvous. torchrun's wrapper removes it, so ranks lack"
        " it.",
    ),
)
"""Variables that the agent passes to its torchrun process."""
VARIABLES = {
    "torchrun and torch.distributed": (
        Variable(
            ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
            Access.READ,
            _RANKS,
            "Place of a rank, and address of the store in the process of rank 0. torchrun sets"
            " them, `ddp-trainer` sets them under Slurm and for the ranks that it starts itself.",
        ),
        Variable(
            ("PET_…",),
            Access.REMOVED,
            _AGENT,
            "Defaults for the arguments of torchrun. The agent states all arguments itself.",
        ),
        Variable(
            ("TORCH_ELASTIC_SHUTDOWN_TIMEOUT",),
            Access.SET_UNLESS_GIVEN,
            _AGENT,
            "Seconds between SIGTERM and SIGKILL for the ranks: the grace period of the pod less"
            " the time for the last report.",
        ),
        Variable(
            ("TORCH_DISABLE_SHARE_RDZV_TCP_STORE",),
            Access.SET,
            _AGENT,
            "With 1 the ranks have a store of their own and do not share that of the rendezvous.",
        ),
        Variable(
            ("TORCHELASTIC_USE_AGENT_STORE",),
            Access.SET,
            _RANKS,
            "True if the launcher hosts the store, and not rank 0.",
        ),
        Variable(
            ("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",),
            Access.SET,
            _AGENT,
            "Prefix of each line of a rank: `[rank N] `.",
        ),
        Variable(
            ("TORCH_DISTRIBUTED_DEBUG",),
            Access.SET_UNLESS_GIVEN,
            _RANKS,
            "Debug level of torch, with `parallel.debug`.",
        ),
        Variable(
            ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"),
            Access.SET_UNLESS_GIVEN,
            _RANKS,
            "Number of collectives in the flight record. Only the first one is set; the second is"
            " its older name.",
        ),
        Variable(
            ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"),
            Access.SET_UNLESS_GIVEN,
            _RANKS,
            "Path prefix of flight records, by default in the folder flight-recorder of the run's"
            " directory. The second one is its older name.",
        ),
    ),
    "Network profiles": (
        Variable(
            tuple(
                dict.fromkeys(
                    name
                    for profile in PROFILES.values()
                    for name in profile.variables
                    if name != "NCCL_SOCKET_IFNAME"
                )
            ),
            Access.SET,
            "operator, for worker pods",
            "Variables of `spec.network.profile`, see"
            " [network profiles](../use/network-profiles.md). A variable of `spec.env` takes"
            " precedence.",
        ),
    ),
    "NCCL, gloo and CUDA": (
        Variable(
            ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"),
            Access.SET,
            "operator, for worker pods",
            "Network interface of the ranks: `spec.network.interface`, and that of NCCL also by a"
            " network profile. Ranks report the interface of gloo.",
        ),
        Variable(
            ("NCCL_DEBUG",),
            Access.SET_UNLESS_GIVEN,
            "operator and ranks",
            "Level of NCCL's log: `spec.network.ncclDebug`, or INFO with `parallel.debug` or to"
            " learn the transport.",
        ),
        Variable(
            ("NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"),
            Access.SET_UNLESS_GIVEN,
            _RANKS,
            "Part of NCCL's log that names the transport, and a temporary file for it. Ranks set"
            " neither of them if NCCL_DEBUG or NCCL_DEBUG_FILE is set.",
        ),
        Variable(
            ("TORCH_NCCL_ASYNC_ERROR_HANDLING",),
            Access.SET_UNLESS_GIVEN,
            _AGENT,
            "With 3 a timeout of NCCL does not lose the flight record.",
        ),
        Variable(
            ("TORCH_DIST_USE_NCCL2",),
            Access.SET_UNLESS_GIVEN,
            _RANKS,
            "With 0 torch keeps the older implementation of NCCL's process group. The trainer sets"
            " this variable from torch 2.15 on.",
        ),
        Variable(
            ("PYTORCH_NVML_BASED_CUDA_CHECK",),
            Access.SET,
            "standby",
            "With 1 torch counts GPUs by NVML and does not open the driver, which forks could not"
            " use.",
        ),
        Variable(
            ("CUDA_VISIBLE_DEVICES",),
            Access.SET,
            "`ddpjob run`, for its pods",
            "The GPUs of one pod. `ddpjob run` divides those that its own variable names, or all.",
        ),
        Variable(
            ("CUBLAS_WORKSPACE_CONFIG",),
            Access.SET_UNLESS_GIVEN,
            _RANKS,
            ":4096:8 with `deterministic`, because cuBLAS is not deterministic without it.",
        ),
    ),
    "Threads, compilers and Python": (
        Variable(
            ("OMP_NUM_THREADS",),
            Access.SET_UNLESS_GIVEN,
            "agent, `ddpjob run`, `bench`, `converge`",
            "Threads of a rank: its part of the CPU quota. `verify` always sets 1.",
        ),
        Variable(
            ("OPENBLAS_NUM_THREADS",),
            Access.SET,
            "standby",
            "With 1 OpenBLAS starts no threads, which a fork would lack.",
        ),
        Variable(
            ("CC", "CXX"),
            Access.READ,
            _RANKS,
            "Compilers that `compile` needs: C for CUDA, C++ for the CPU.",
        ),
        Variable(
            ("TMPDIR",),
            Access.READ,
            "all",
            "Directory of temporary files, and of the copies of `env.staged`. Default: /tmp.",
        ),
        Variable(
            ("PYTHONPATH",),
            Access.READ,
            "`ddpjob run`",
            "Added to the PYTHONPATH of local pods, because the agent may be in these folders.",
        ),
        Variable(
            ("PYTHONSAFEPATH",),
            Access.READ,
            "agent and ranks",
            "If it is set, modules of the working directory are not found.",
        ),
        Variable(
            ("PYTHONUNBUFFERED",),
            Access.SET,
            _AGENT,
            "With 1 the output of ranks appears at once.",
        ),
        Variable(("PATH",), Access.READ, _AGENT, "Where the program of a `command` is looked up."),
    ),
    "Slurm": (
        Variable(
            ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS"),
            Access.READ,
            "`ddp-trainer train`",
            "Place of a rank and number of ranks, if torchrun has not set them.",
        ),
        Variable(
            (
                "SLURM_TASKS_PER_NODE",
                "SLURM_STEP_TASKS_PER_NODE",
                "SLURM_NTASKS_PER_NODE",
                "SLURM_NODEID",
            ),
            Access.READ,
            "`ddp-trainer train`",
            "Number of ranks on this node.",
        ),
        Variable(
            ("SLURM_JOB_NODELIST", "SLURM_STEP_NODELIST", "SLURM_JOB_ID", "SLURM_STEP_ID"),
            Access.READ,
            "`ddp-trainer train`",
            "Address of rank 0: the first host, and a port derived from the job's number.",
        ),
        Variable(
            ("SLURMD_NODENAME", "SLURM_TOPOLOGY_ADDR", "SLURM_TOPOLOGY_ADDR_PATTERN"),
            Access.READ,
            _RANKS,
            "Host and nearest switch of a rank, where the operator's variables are absent.",
        ),
    ),
    "Kubernetes and trackers": (
        Variable(
            ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"),
            Access.READ,
            "operator, `ddpjob` in a pod",
            "Address of the API server. Kubernetes sets them.",
        ),
        Variable(
            ("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY"),
            Access.READ,
            "operator, `ddpjob`",
            "Proxy in front of the API server, in capitals or small letters.",
        ),
        Variable(
            ("KUBECONFIG",),
            Access.READ,
            "`ddpjob`",
            "Files with the clusters and accounts of the user. Default: ~/.kube/config.",
        ),
        Variable(
            ("KUBERNETES_EXEC_INFO",),
            Access.SET,
            "`ddpjob`, for the program of a kubeconfig that prints credentials",
            "Version of the answer that `ddpjob` expects, and the cluster if the program wants it.",
        ),
        Variable(
            (
                "MLFLOW_TRACKING_URI",
                "MLFLOW_EXPERIMENT_NAME",
                "WANDB_PROJECT",
                "WANDB_API_KEY",
                "WANDB_MODE",
            ),
            Access.READ,
            "rank 0, by the tracker's package",
            "Server, project and account of a tracker. Pass keys from a Secret, by `spec.env`.",
        ),
    ),
}
"""Variables by the program to which they belong."""
