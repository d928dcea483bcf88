"""Measure CPU steal: the time that the hypervisor gives to other virtual machines."""

from pathlib import Path


class Host:
    """CPU steal of this machine since this object was created."""

    def __init__(self, stat: Path = Path("/proc/stat")) -> None:
        """Read the counters. `stat` is the kernel's file of CPU times."""
        self._stat = stat
        self._before = self._read()

    def steal_fraction(self) -> float:
        """Return the steal time as a fraction of the busy time, from 0 to 1."""
        wanted, stolen = (now - then for now, then in zip(self._read(), self._before, strict=True))
        return stolen / wanted if wanted else 0.0

    def _read(self) -> tuple[int, int]:
        """Return the busy ticks including steal, and the steal ticks (proc(5))."""
        user, nice, system, _, _, *rest = map(int, self._stat.read_text().split()[1:9])
        interrupts, soft, stolen = rest
        return user + nice + system + interrupts + soft + stolen, stolen
