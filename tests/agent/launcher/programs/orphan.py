"""Program that leaves an orphan. PID 1 of the container must reap the orphan."""

import os
import subprocess
import sys
import time

CODE = "import os; print(os.spawnlp(os.P_NOWAIT, 'true', 'true'))"
orphan = int(subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True).stdout)
deadline = time.monotonic() + 10
while os.path.exists(f"/proc/{orphan}") and time.monotonic() < deadline:
    time.sleep(0.01)
print("reaped", not os.path.exists(f"/proc/{orphan}"))
