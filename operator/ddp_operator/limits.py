"""All limits and rates of the operator, with what each protects and where its number comes from.

They protect the API server, this process with its one event loop, and all other jobs: against a
large job, against many jobs, and against agents, which the owner of a job controls. There are four
means, and each bound below is one of them:

- a `Rate` of a token bucket (`runtime/token_bucket.py`). With a rate of each user and a shared one
  it is a fair budget (`runtime/fair_budget.py`): a user within its own rate never waits;
- a `Backoff` that doubles;
- a number of things at the same time. It may begin with few (`runtime/slow_start.py`), and users
  take turns (`cluster/kube/fair_semaphore.py`, the groups of `runtime/queue.py`, the creation of
  pods in `runtime/actions.py`, `runtime/list_turns.py`);
- a maximum size.

`docs/reference/limits.md` is generated from this module.
"""

from dataclasses import dataclass
from typing import Final

from ddp_wire import delays

_MOST_DOUBLINGS = 60


@dataclass(frozen=True)
class Rate:
    """Tokens of a full bucket, with which it begins, and new tokens per second."""

    burst: float
    per_second: float


@dataclass(frozen=True)
class Backoff:
    """Waits in seconds that double from a first to a longest one."""

    first: float
    longest: float

    def after(self, failures: int) -> float:
        """Return the wait after a number of failures in a row: 0 after none, then the first one."""
        if failures < 1:
            return 0.0
        return min(self.longest, self.first * 2.0 ** min(failures - 1, _MOST_DOUBLINGS))


# === Requests to the API server

REQUESTS_IN_FLIGHT: Final = 32
"""Concurrent requests of this process, and of one plan. Namespaces take turns for a free place, so
a thousand requests for one of them delay another one by one request."""
PAGE: Final = 500
"""Objects in one answer to a list. 500 pods have some 5 MB of JSON, which is parsed in 50 ms."""
FIRST_PODS: Final = 4
"""Concurrent creations of a job before the API server has accepted one. Each success permits one
more. So a quota that refuses a job refuses few requests."""
CREATE_CONFLICTS: Final = Backoff(first=0.05, longest=0.8)
"""Pauses of a creation while others change the same ResourceQuota. Jitter shortens each by up to
half."""
CREATE_TRIES: Final = 6
"""Requests for one creation until such a conflict is an error of the reconcile."""
TERMINATING_SECONDS: Final = 5.0
"""Pause of a job in a namespace that is being deleted. The job is deleted soon, and each deletion
of a pod is an event that would cause a request otherwise."""
LISTS: Final = Rate(burst=8, per_second=1.0)
"""Lists of pods of all jobs together, because an agent became silent. A network that is cut makes
thousands of agents silent at once."""
LIST_OF_JOB_SECONDS: Final = 60.0
"""Shortest time between two such lists of one job."""
LIST_AFTER_SECONDS: Final = 2.0
"""Shortest silence before a list. A watch usually reports within this time why an agent is silent,
and an agent whose answer was lost has answered again."""
EVENT_READS: Final = Backoff(first=10.0, longest=300.0)
"""Waits between two reads of the Events of a job's waiting pod. After 10 s most pods have started,
and need no request."""
REPAIRS: Final = Backoff(first=2.0, longest=300.0)
"""Waits between two repairs of a child that another writer changes each time it is restored."""
REPAIRS_QUIET_SECONDS: Final = 60.0
"""Time after the end of such a wait without a repair, after which the count starts again."""

WATCH_PAUSES: Final = (1.0, 2.0, 3.0, 5.0)
"""Pauses in seconds between attempts to list or watch, the last one again and again. kopf's own
pauses are longer, so that the first success after an outage would come later."""
SILENT_SECONDS: Final = 70.0
"""Time without any byte after which a watch of children opens a new connection. The API server
sends a bookmark about once a minute."""

# === Status writes

STATUS_WRITES_PER_SECOND: Final = 20.0
"""Status writes of all jobs together, in the long run, while nothing changes their course: the
default of `operator.statusWritesPerSecond` (decision 7)."""
PROGRESS_SHARE: Final = 0.9
"""Part of these writes that progress may use. A job is also written for other reasons, and the jobs
that are due do not spread evenly over time."""
PROGRESS_SECONDS: Final = 5.0
"""Shortest time between two readings of a job's progress. New progress changes no revision of an
agent's status."""
MINOR_WRITES: Final = Rate(burst=16, per_second=1 / PROGRESS_SECONDS)
"""Status writes of one job without any action. A hostile agent can claim changes without end. With
many jobs, the rate of each is that of the progress of a job that trains."""
STARTING_WRITES: Final = Backoff(first=10.0, longest=300.0)
"""Waits between two writes that only count pods while an attempt starts. So the number of writes
does not grow with the number of pods."""
ENDING_WRITES_SECONDS: Final = 5.0
"""Shortest time between two status writes while an attempt ends node by node."""

# === Attempts and pods

ATTEMPTS: Final = Rate(burst=4, per_second=1 / 30)
"""Attempts of one job after its first that wait for no other job (decision 7)."""
SHARED_ATTEMPTS: Final = Rate(burst=32, per_second=1.0)
"""Further attempts, of all jobs together. Each costs a request per pod, and a hostile agent can
claim both the progress and the failure that lead to the next one."""
ATTEMPT_DELAY: Final = Backoff(first=1.0, longest=delays.LONGEST_BACKOFF_SECONDS)
"""Delays of attempts while attempts end without progress, and of a pod that is created again and
again for one attempt. The first failure causes none. A failed agent keeps its pod for longer than
the longest one."""
SHORTEST_TURN_SECONDS: Final = 0.5
"""Shortest time for which one job's pods are created while other jobs wait for a worker."""
LONGEST_TURN_SECONDS: Final = 15.0
"""Longest time for which one job's pods are created before the job is observed again."""
TURN_FACTOR: Final = 5.0
"""Shortest turn, as a multiple of the CPU time of the job's decision, which each turn repeats."""
WAITING_SECONDS: Final = 0.1
"""Wait of a job for a worker, after which other jobs end their turns to create pods."""

# === Decisions and workers

LARGE_JOB: Final = 500
"""Number of pods from which a decision runs in a thread. It takes so long that it would delay the
Lease, the health endpoint and other jobs on the event loop."""
PAUSE_FACTOR: Final = 6.0
"""Pause of a job after a decision, as a multiple of the CPU time of the decision. Each of a
thousand pods has several events, and a decision after each would cost the square of their
number."""
SHORTEST_PAUSE_SECONDS: Final = 0.02
"""Shortest such pause. Shorter ones would only delay small jobs."""
RECONCILE_RETRIES: Final = Backoff(first=0.2, longest=60.0)
"""Waits after failed reconciles of a job. Jitter shortens each by up to a quarter."""
EARLY_RETRY_SECONDS: Final = 1.0
"""Time after a failure in which not even an event of the job causes the next try."""
URGENT_IN_A_ROW: Final = 16
"""Urgent jobs that are reconciled in a row while other jobs of the namespace wait."""

# === Agents

OPENINGS: Final = Rate(burst=100, per_second=2000.0)
"""First requests to agents. The agents of thousands of pods at once would block the event loop."""
AGENT_ANSWERS: Final = Rate(burst=16, per_second=1.0)
"""Answers of one agent. A hostile one could answer without end (decision 7)."""
OWN_ANSWERS: Final = 1.25
"""Answers of one agent that wait for no other agent, as a multiple of those of a job that trains.
Such an agent answers once per longest wait of its requests."""
SHARED_ANSWERS: Final = Rate(burst=64, per_second=20.0)
"""Further answers of all agents together. So the cost of hostile agents does not grow with their
number."""
ANSWER_BYTES: Final = 1 << 14
"""Size of an ordinary answer. A larger one counts as several, because it costs as much to read."""
WAKES: Final = Rate(burst=16, per_second=0.5)
"""Wakes of one job by its agents that wait for no other job. If there are many jobs, the rate of
each is its share of the status writes."""
SHARED_WAKES: Final = Rate(burst=64, per_second=20.0)
"""Wakes beyond the rate of each job, for all jobs together (decision 7)."""
WAKE_SECONDS: Final = 0.2
"""Shortest time between two wakes of one job from `SHARED_WAKES`, in seconds. A thousand statuses
may change at once."""
AGENT_RETRIES: Final = Backoff(first=0.25, longest=5.0)
"""Waits between two requests to an agent that does not answer."""
RETRIES_PER_SECOND: Final = 50.0
"""Requests to agents that have not answered for long, except those of node 0, in the long run. The
pods of many jobs may have no agent that the operator can reach."""
MOST_HELD: Final = 512
"""Maximum number of pods of a job whose agents may all hold a request. The agents of a larger job
would all answer within the same second, and block the event loop (decision 7)."""
MOST_CONNECTIONS: Final = 1 << 16
"""Maximum number of connections to agents, if the limit of open files (RLIMIT_NOFILE) permits so
many. Further requests wait for one of them."""
FEWEST_CONNECTIONS: Final = 16
"""Minimum number of connections to agents, even if the limit of open files permits fewer."""
OTHER_FILES: Final = 128
"""Open files that are left to requests to the API server, watches, Leases and probes."""
MOST_ORDERS: Final = 64
"""Maximum number of orders in flight. Other agents read the order from their pod's annotation."""
HEAD_BYTES: Final = 8 << 10
"""Maximum size of the status line and the headers in an answer of an agent."""
BODY_BYTES: Final = 256 << 10
"""Maximum size of the body of an answer of an agent."""
PIECE_BYTES: Final = 512
"""Minimum size charged per piece of an answer. Each piece wakes the event loop once."""
MOST_HEADERS: Final = 32
"""Maximum number of headers in an answer of an agent."""
