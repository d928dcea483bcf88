"""Program that prints its resource limits, umask, priority and session."""

import os
import resource

print(resource.getrlimit(resource.RLIMIT_NOFILE), resource.getrlimit(resource.RLIMIT_CORE))
mask = os.umask(0)
os.umask(mask)
print(oct(mask), os.getpriority(os.PRIO_PROCESS, 0), len(os.sched_getaffinity(0)) > 0)
print(os.getsid(0) == os.getpid())
