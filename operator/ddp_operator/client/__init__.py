"""Jobs from Python: submit, wait, logs, metrics, on a cluster or on this machine.

`ddpjob` is written on this package.
"""

from ddp_operator.client.claim_logs import copied_logs as copied_logs
from ddp_operator.client.client import Client as Client
from ddp_operator.client.client import connect as connect
from ddp_operator.client.client import local as local
from ddp_operator.client.errors import ClusterError as ClusterError
from ddp_operator.client.errors import NoSuchJobError as NoSuchJobError
from ddp_operator.client.errors import RequestError as RequestError
from ddp_operator.client.errors import WaitTimeoutError as WaitTimeoutError
from ddp_operator.client.jobs import Job as Job
from ddp_operator.client.log_lines import LogLine as LogLine
from ddp_operator.client.rank_stacks import RankStack as RankStack
