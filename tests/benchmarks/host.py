"""How much of this machine the machine had: a virtual one may lose its cores to its neighbours."""

from pathlib import Path


class Host:
    """Counts what the host takes away, from when it was made."""

    def __init__(self, stat: Path = Path("/proc/stat")) -> None:
        """`stat` is the kernel's account of CPU time."""
        self._stat = stat
        self._before = self._read()

    def taken(self) -> float:
        """Share of the cores' time, idle time left out, that the host took: from 0 to 1."""
        wanted, stolen = (now - then for now, then in zip(self._read(), self._before, strict=True))
        return stolen / wanted if wanted else 0.0

    def _read(self) -> tuple[int, int]:
        """Ticks in which there was something to run, and those that were stolen (proc(5))."""
        user, nice, system, _, _, *rest = map(int, self._stat.read_text().split()[1:9])
        interrupts, soft, stolen = rest
        return user + nice + system + interrupts + soft + stolen, stolen
