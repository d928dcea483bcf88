"""Define all limits and rates of the operator, with the purpose and the origin of each.

The limits protect the API server, this process with its single event loop, and all other jobs. The
load may come from a large job, from many jobs, or from agents, which the owner of a job controls.
Each limit below is one of four types:

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
    """Rate of a token bucket: the size of the bucket, which starts full, and tokens per second."""

    burst: float
    per_second: float


@dataclass(frozen=True)
class Backoff:
    """Exponential backoff: waits in seconds that double from the first to the longest wait."""

    first: float
    longest: float

    def after(self, failures: int) -> float:
        """Return the wait after a number of failures in a row. It is 0 after no failure."""
        if failures < 1:
            return 0.0
        return min(self.longest, self.first * 2.0 ** min(failures - 1, _MOST_DOUBLINGS))


# === Requests to the API server

REQUESTS_IN_FLIGHT: Final = 32
"""Maximum number of concurrent requests of this process, and of one plan. Namespaces take turns for
a free slot, so a thousand requests for one namespace delay another namespace by one request."""
PAGE: Final = 500
"""Maximum number of objects in one answer to a list. The JSON of 500 pods is some 5 MB and takes 50
ms to parse."""
FIRST_PODS: Final = 4
"""Number of concurrent pod creations for a job before the first success. Each success permits one
more. So a quota that refuses a job has to refuse only few requests."""
CREATE_CONFLICTS: Final = Backoff(first=0.05, longest=0.8)
"""Pauses between tries of a creation that fails because other writers change the same
ResourceQuota. Jitter shortens each pause by up to half."""
CREATE_TRIES: Final = 6
"""Maximum number of tries of one creation before a conflict about a ResourceQuota fails the
reconcile."""
TERMINATING_SECONDS: Final = 5.0
"""Pause of a job whose namespace is being deleted, in seconds. Kubernetes soon deletes the job too.
Without the pause, each deleted pod would cause a useless request."""
LISTS: Final = Rate(burst=8, per_second=1.0)
"""Rate of pod lists because of silent agents, for all jobs together. When a network fails,
thousands of agents become silent at once."""
LIST_OF_JOB_SECONDS: Final = 60.0
"""Minimum seconds between two pod lists of one job because of a silent agent."""
LIST_AFTER_SECONDS: Final = 2.0
"""Minimum seconds for which an agent is silent before the operator lists the job's pods. Within
this time a watch usually reports the reason, or the agent answers again."""
EVENT_READS: Final = Backoff(first=10.0, longest=300.0)
"""Waits between two reads of the Events of a waiting pod. After 10 s most pods have started and
need no request."""
WORKLOAD_READS: Final = Backoff(first=5.0, longest=60.0)
"""Waits between two reads of the Workload of a job that Kueue has not admitted. A free queue admits
a job within a second."""
REPAIRS: Final = Backoff(first=2.0, longest=300.0)
"""Waits between two repairs of a child that another writer changes after each repair."""
REPAIRS_QUIET_SECONDS: Final = 60.0
"""Seconds without a repair, counted from the end of the last wait, after which the waits start
again at the first."""

WATCH_PAUSES: Final = (1.0, 2.0, 3.0, 5.0)
"""Pauses in seconds between attempts to list or watch; the last one repeats. Kopf's default pauses
are longer and would delay the recovery after an outage."""
SILENT_SECONDS: Final = 70.0
"""Seconds without any byte after which a watch of children opens a new connection. The API server
sends a bookmark about once a minute."""

# === Status writes

STATUS_WRITES_PER_SECOND: Final = 20.0
"""Status writes per second for all jobs together, averaged over time, that change no job's course.
It is the default of `operator.statusWritesPerSecond` (decision 7)."""
PROGRESS_SHARE: Final = 0.9
"""Share of the status writes that progress may use. The rest is for other changes, and for moments
at which many jobs are due at once."""
PROGRESS_SECONDS: Final = 5.0
"""Minimum seconds between two reads of a job's progress. New progress alone does not change the
revision of an agent status."""
MINOR_WRITES: Final = Rate(burst=16, per_second=1 / PROGRESS_SECONDS)
"""Rate of status writes of one job that come without an action. A hostile agent can claim changes
without end. With many jobs, each has the rate at which a training job writes its progress."""
STARTING_WRITES: Final = Backoff(first=10.0, longest=300.0)
"""Waits between two status writes that only count pods while an attempt starts. So the number of
writes does not grow with the number of pods."""
ENDING_WRITES_SECONDS: Final = 5.0
"""Minimum seconds between two status writes while the nodes of an attempt end one after another."""

# === Attempts and pods

ATTEMPTS: Final = Rate(burst=4, per_second=1 / 30)
"""Rate at which one job may start attempts after its first one without waiting for other jobs
(decision 7)."""
SHARED_ATTEMPTS: Final = Rate(burst=32, per_second=1.0)
"""Rate of additional attempts that all jobs share. Each attempt costs a request per pod, and a
hostile agent can claim the progress and the failure that cause the next attempt."""
ATTEMPT_DELAY: Final = Backoff(first=1.0, longest=delays.LONGEST_BACKOFF_SECONDS)
"""Delays of attempts after attempts without progress, and of a pod that is recreated repeatedly for
one attempt. The first failure causes no delay. A failed agent keeps its pod for longer than the
longest delay."""
SHORTEST_TURN_SECONDS: Final = 0.5
"""Minimum seconds for which the operator creates one job's pods while other jobs wait for a
worker."""
LONGEST_TURN_SECONDS: Final = 15.0
"""Maximum seconds for which the operator creates one job's pods before it observes the job
again."""
TURN_FACTOR: Final = 5.0
"""Minimum turn as a multiple of the CPU time of the job's decision, because each turn repeats the
decision."""
WAITING_SECONDS: Final = 0.1
"""Seconds for which a job may wait for a worker before other jobs stop creating pods."""

# === Decisions and workers

LARGE_JOB: Final = 500
"""Minimum number of pods of a job for which a decision runs in a thread. On the event loop such a
long decision would delay the Lease, the health endpoint and other jobs."""
PAUSE_FACTOR: Final = 6.0
"""Pause of a job after a decision, as a multiple of the decision's CPU time. Each pod has several
events. With a decision after each event, the cost would grow with the square of the number of
pods."""
SHORTEST_PAUSE_SECONDS: Final = 0.02
"""Minimum pause of a job after a decision, in seconds. Shorter pauses would only delay small
jobs."""
RECONCILE_RETRIES: Final = Backoff(first=0.2, longest=60.0)
"""Waits between retries after a failed reconcile of a job. Jitter shortens each wait by up to a
quarter."""
EARLY_RETRY_SECONDS: Final = 1.0
"""Seconds after a failed reconcile in which even an event of the job causes no retry."""
URGENT_IN_A_ROW: Final = 16
"""Maximum number of urgent jobs in a row that are reconciled while other jobs of the namespace
wait."""

# === Agents

OPENINGS: Final = Rate(burst=100, per_second=2000.0)
"""Rate of first requests to agents. Requests to the agents of thousands of pods at once would block
the event loop."""
AGENT_ANSWERS: Final = Rate(burst=16, per_second=1.0)
"""Rate of answers that the operator reads from one agent, because a hostile agent could answer
without end (decision 7)."""
OWN_ANSWERS: Final = 1.25
"""Rate of answers of one agent without a wait for other agents, as a multiple of a training job's
normal rate. A normal agent answers once per longest wait of its requests."""
SHARED_ANSWERS: Final = Rate(burst=64, per_second=20.0)
"""Rate of additional answers that all agents share. So the cost of hostile agents does not grow
with their number."""
ANSWER_BYTES: Final = 1 << 14
"""Size of a normal answer, in bytes. A larger answer counts as several answers, because it costs
more to read."""
WAKES: Final = Rate(burst=16, per_second=0.5)
"""Rate at which one job's agents may trigger reconciles without waiting for other jobs. With many
jobs, each has its share of the status writes."""
SHARED_WAKES: Final = Rate(burst=64, per_second=20.0)
"""Rate of additional reconciles that agents trigger, shared by all jobs (decision 7)."""
WAKE_SECONDS: Final = 0.2
"""Minimum seconds between two reconciles of one job from `SHARED_WAKES`, because a thousand agent
statuses may change at once."""
AGENT_RETRIES: Final = Backoff(first=0.25, longest=5.0)
"""Waits between two requests to an agent that does not answer."""
RETRIES_PER_SECOND: Final = 50.0
"""Requests per second, averaged over time, to agents that have long been silent, except the agents
of node 0. The operator may be unable to reach the agents of many jobs."""
MOST_HELD: Final = 512
"""Maximum number of pods in a job whose agents may all hold a request open. The agents of a larger
job would all answer within one second and block the event loop (decision 7)."""
MOST_CONNECTIONS: Final = 1 << 16
"""Maximum number of connections to agents, if the limit of open files (RLIMIT_NOFILE) permits so
many. Further requests wait until a connection is free."""
FEWEST_CONNECTIONS: Final = 16
"""Minimum number of connections to agents, even if the limit of open files permits fewer."""
OTHER_FILES: Final = 128
"""Number of open files that the agent connections leave for requests to the API server, watches,
Leases and probes."""
MOST_ORDERS: Final = 64
"""Maximum number of attempt orders that are being sent. Other agents read the order from their
pod's annotation."""
MOST_INSPECTIONS: Final = 8
"""Maximum number of users' questions to ranks (`ddpjob stacks`, `ddpjob profile`) that are being
sent. Further ones are dropped, and the users ask again."""
INSPECTION_CONNECTIONS: Final = 16
"""Maximum number of connections for users' questions, so that they delay no attempt order."""
INSPECTION_SECONDS: Final = 10.0
"""Seconds after which a question is sent to no further agent, because agents of a tenant may answer
slowly."""
INSPECTIONS: Final = Rate(burst=3, per_second=0.1)
"""Questions of one job, because a tenant may ask in a loop."""
HEAD_BYTES: Final = 8 << 10
"""Maximum size of the status line and the headers in an answer of an agent."""
BODY_BYTES: Final = 256 << 10
"""Maximum size of the body of an answer of an agent."""
PIECE_BYTES: Final = 512
"""Minimum number of bytes that count for each piece of an answer, because each piece wakes the
event loop once."""
MOST_HEADERS: Final = 32
"""Maximum number of headers in an answer of an agent."""

# === Notifications

NOTIFICATION_QUEUE: Final = 1000
"""Maximum number of notifications that wait for the receiver. Further ones are dropped, because a
receiver that is away must not fill the memory of the operator."""
NOTIFICATIONS_IN_FLIGHT: Final = 4
"""Number of notifications that are sent at the same time."""
NOTIFICATION_TIMEOUT_SECONDS: Final = 10.0
"""Maximum seconds for one try, from the connection to the head of the answer."""
NOTIFICATION_RETRIES: Final = Backoff(first=1.0, longest=60.0)
"""Waits between two tries of a notification."""
NOTIFICATION_SECONDS: Final = 900.0
"""Maximum age of a notification, in seconds. Older ones are given up, and an operator that starts
announces the ends of jobs that are not older."""
NOTIFICATION_MEMORY: Final = 10_000
"""Number of ids that the operator remembers, so that it announces nothing twice."""

# === The list of finished jobs

FINISHED_JOBS: Final = 100
"""Number of finished jobs that a namespace keeps in its ConfigMap. The oldest one is dropped."""
FINISHED_LIST_BYTES: Final = 256 << 10
"""Maximum size of the ConfigMap's entries together, a quarter of what a ConfigMap may hold."""
FINISHED_JOB_BYTES: Final = 8 << 10
"""Maximum length of an entry that is read, in characters. Users may edit the ConfigMap."""
