"""Program whose child must inherit only the three standard streams."""

import subprocess
import sys

code = "import os; print(sorted(int(n) for n in os.listdir('/proc/self/fd'))[:3]); print(os.fstat(2) is not None)"
print(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout)
code = "import os; print([n for n in range(3, 200) if os.path.exists(f'/proc/self/fd/{n}')][1:])"
print(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout)
