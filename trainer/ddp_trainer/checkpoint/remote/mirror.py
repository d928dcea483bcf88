"""Copy committed checkpoints of a run's directory to an object store, behind the training.

The mirror runs in a process of its own with low priority, so that training never waits for it. It
copies the newest checkpoint that the store lacks, and skips older ones. After an error it tries
again, with growing waits, for as long as the run lasts. It deletes old copies only right after it
has committed a newer one, so the newest whole copy always stays.
"""

import contextlib
import errno
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from ddp_trainer.checkpoint.fence import Claim, holder
from ddp_trainer.checkpoint.format import BrokenCheckpointError, CheckpointName
from ddp_trainer.checkpoint.remote.claim import StoreClaim
from ddp_trainer.checkpoint.remote.copying import (
    Pace,
    copy_checkpoint,
    entries_of,
    read_manifest,
)
from ddp_trainer.checkpoint.remote.objects import ObjectStore
from ddp_trainer.checkpoint.store.directory import DirectoryStore
from ddp_trainer.checkpoint.volume import Sleep
from ddp_trainer.errors import FencedError

POLL_SECONDS = 1.0
"""Seconds between two looks at the run's directory."""
LONGEST_WAIT = 60.0
"""Maximum seconds between two tries after an error."""
_LARGEST_POWER = 6


@dataclass(frozen=True, slots=True)
class MirrorStatus:
    """How far the store is behind the run's directory."""

    step: int | None = None
    """Updates in the newest copy. None without a copy."""
    behind_steps: int = 0
    """Updates between the newest copy and the newest checkpoint."""
    behind_seconds: float = 0.0
    """Seconds since the oldest checkpoint newer than the newest copy was seen; 0 if there is
    none."""
    copied_bytes: int = 0
    """Bytes of all copies of this attempt."""
    failures: int = 0
    """Number of failed tries since the newest copy."""
    error: str = ""
    """The newest error since the newest copy."""
    ended: bool = False
    """Whether the mirror has stopped, because another attempt owns the store."""

    def document(self) -> dict[str, Any]:
        """Return the status as JSON."""
        return asdict(self)


class Mirror:
    """The mirror of one attempt."""

    def __init__(
        self,
        source: DirectoryStore,
        target: ObjectStore,
        *,
        keep: int,
        pace: Pace = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Sleep = time.sleep,
    ) -> None:
        """Prepare the mirror, without access to the store.

        Args:
            source: The run's directory, which this attempt owns.
            target: The object store.
            keep: Number of newest copies to keep; at least 1.
            pace: Function that limits the rate.
            clock: Monotonic clock in seconds.
            sleep: Function that waits between two tries of a request.
        """
        self._source, self._target = source, target
        self._keep, self._pace = keep, pace
        self._clock, self._sleep = clock, sleep
        self._own: Claim | None = None
        self._claim: StoreClaim | None = None
        self._copied: set[str] = set()
        self._seen: dict[CheckpointName, float] = {}
        self.status = MirrorStatus()

    @property
    def complete(self) -> bool:
        """Whether the store has the newest checkpoint, or the mirror has stopped."""
        return self.status.ended or (self._claim is not None and not self.status.behind_steps)

    def turn(self) -> float:
        """Copy the newest checkpoint if the store lacks it.

        Returns:
            Seconds until the next turn.
        """
        try:
            newest = self._look()
            if self._claim is None:
                self._claim_store()
                newest = self._look()
            if newest is not None and str(newest) not in self._copied:
                self._copy(newest)
        except FencedError as error:
            self.status = replace(self.status, ended=True, error=str(error))
        except (OSError, BrokenCheckpointError) as error:
            failures = self.status.failures + 1
            self.status = replace(self.status, failures=failures, error=_text(error))
            return float(min(LONGEST_WAIT, 2 ** min(failures, _LARGEST_POWER)))
        else:
            self.status = replace(self.status, failures=0, error="")
        return POLL_SECONDS

    def _claim_store(self) -> None:
        """Claim the store, and delete what earlier attempts left unfinished."""
        self._own = holder(self._source.directory)
        if self._own is None:
            raise FencedError("the run's directory has no owner")
        claim = StoreClaim(self._target, self._own)
        claim.open()
        both = set(self._source.list()) & self._target.reindex()
        self._copied = {name for name in both if self._is_same(name)}
        self._claim = claim
        self._sweep()

    def _is_same(self, name: str) -> bool:
        """Return whether both places have the same checkpoint of a name."""
        with contextlib.suppress(FileNotFoundError, BrokenCheckpointError):
            return read_manifest(self._source, name) == read_manifest(self._target, name)
        return False

    def _look(self) -> CheckpointName | None:
        """Return the newest checkpoint of the directory. Measure how far the store is behind."""
        parsed = sorted(filter(None, map(CheckpointName.parse, self._source.list())))
        names = [name for name in parsed if not name.suffix]
        now = self._clock()
        copied = [name for name in names if str(name) in self._copied]
        newest_copy = copied[-1] if copied else None
        missing = [name for name in names if newest_copy is None or name > newest_copy]
        self._seen = {name: self._seen.get(name, now) for name in missing} | {
            name: at for name, at in self._seen.items() if newest_copy is None or name > newest_copy
        }
        step = newest_copy.step if newest_copy else self.status.step
        newest = names[-1] if names else None
        self.status = replace(
            self.status,
            step=step,
            behind_steps=newest.step - (step or 0) if missing and newest else 0,
            behind_seconds=now - min(self._seen.values()) if self._seen else 0.0,
        )
        return newest

    def _copy(self, name: CheckpointName) -> None:
        """Copy one checkpoint, then delete old copies."""
        try:
            size = copy_checkpoint(
                self._source,
                self._target,
                str(name),
                may_commit=self._check,
                pace=self._pace,
                sleep=self._sleep,
            )
        except FileExistsError:
            self._check_same(name)
            size = 0
        except FileNotFoundError:
            # Retention deleted it before all files were open. A newer one exists.
            if str(name) in self._source.list():
                raise
            return
        self._copied.add(str(name))
        self._look()
        self.status = replace(self.status, copied_bytes=self.status.copied_bytes + size)
        self._delete_old(name)

    def _check_same(self, name: CheckpointName) -> None:
        """Check that the store's checkpoint of this name is the same.

        Raises:
            BrokenCheckpointError: If it is another one. It stays, because it is whole.
            OSError: If its manifest is damaged. Then it was deleted, and another try copies it.
        """
        found = read_manifest(self._target, str(name))
        if found == read_manifest(self._source, str(name)):
            self._target.committed(str(name))
            return
        try:
            entries_of(found)
        except BrokenCheckpointError as error:
            self._check()
            self._target.delete(str(name))
            raise OSError(errno.EIO, f"the store had a damaged manifest of {name}") from error
        raise BrokenCheckpointError(f"the store has another checkpoint named {name}")

    def _delete_old(self, copied: CheckpointName) -> None:
        """Keep the newest copies up to the given one. Never touch newer ones.

        A newer one in the store belongs to a run that went further from an earlier checkpoint.
        """
        listed = sorted(filter(None, map(CheckpointName.parse, self._target.list())))
        known = [name for name in listed if name <= copied]
        if copied not in known:
            return  # The list is stale.
        for name in known[: -self._keep]:
            self._check()
            self._target.delete(str(name))
        self._sweep()

    def _sweep(self) -> None:
        """Delete what this attempt and earlier ones left unfinished."""
        for name in self._target.unfinished():
            if CheckpointName.parse(name) is not None:
                self._check()
                self._target.delete(name)

    def _check(self) -> None:
        """Check that this attempt owns the directory and the store.

        Raises:
            FencedError: If another attempt owns one of them.
        """
        if holder(self._source.directory) != self._own:
            raise FencedError("another attempt owns the run's directory")
        if self._claim is not None:
            self._claim.check()


def _text(error: Exception) -> str:
    strerror = error.strerror if isinstance(error, OSError) else None
    return strerror or str(error)
