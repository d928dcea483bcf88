"""The claim on an object store: the attempt that may write to it and delete from it.

The rules are those of the fence in a run's directory (`checkpoint.fence`). The attempt that opened
the store last owns it. An older one, for example of a job in another cluster, stops to write.
"""

import contextlib
import json

from ddp_trainer.checkpoint.fence import FENCE, Claim, parse_claim, yields_to
from ddp_trainer.checkpoint.format import LARGEST_RECORD, json_bytes
from ddp_trainer.checkpoint.remote.objects import ObjectStore
from ddp_trainer.errors import FencedError


class StoreClaim:
    """One attempt's claim on an object store."""

    def __init__(self, store: ObjectStore, claim: Claim) -> None:
        """Prepare the claim without access to the store.

        Args:
            store: The store.
            claim: Content of the fence in the run's directory.
        """
        self._store = store
        self._claim = claim

    def open(self) -> None:
        """Claim the store.

        Raises:
            FencedError: If a newer attempt of the same job owns it.
            OSError: If the store fails.
        """
        held = self._held()
        if held is not None and held["job"] == self._claim["job"] != "":
            self._refuse(held)
        if held != self._claim:
            self._store.write_small(FENCE, json_bytes(self._claim))

    def check(self) -> None:
        """Check that this attempt still owns the store.

        Raises:
            FencedError: If another attempt owns it.
            OSError: If the store fails.
        """
        held = self._held()
        if held is not None:
            self._refuse(held)
        if held != self._claim:
            self._store.write_small(FENCE, json_bytes(self._claim))

    def _refuse(self, held: Claim) -> None:
        if held["attempt"] < self._claim["attempt"] and held["job"] == self._claim["job"]:
            return
        if yields_to(self._claim, held):
            other = "" if held["job"] == self._claim["job"] else " of another job"
            raise FencedError(
                f"attempt {held['attempt']}{other} owns the store now, as {FENCE} there says"
            )

    def _held(self) -> Claim | None:
        with contextlib.suppress(FileNotFoundError, ValueError, RecursionError):
            return parse_claim(json.loads(self._store.read_small(FENCE, LARGEST_RECORD)))
        return None
