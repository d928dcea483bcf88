"""Make torchrun's rendezvous load only data that an agent of the same job has signed.

torch stores the pickled state of the rendezvous in a store. The store accepts every client that
reaches its port, and each node unpickles the state. So an attacker could execute code on all nodes.
torch has no setting that prevents this (docs/operate/network-policy.md).

Process: launcher.
"""

import hashlib
import hmac
import pickle
from typing import Any

from torch.distributed.elastic.rendezvous import RendezvousStateError, dynamic_rendezvous

_SIGNATURE_BYTES = hashlib.sha256().digest_size


class SignedPickle:
    """Replacement for the two functions of `pickle` that torch's rendezvous uses, with an HMAC."""

    PickleError = pickle.PickleError

    def __init__(self, key: str) -> None:
        self._key = key.encode()

    def dumps(self, state: Any) -> bytes:
        """Return the signature and the pickled state."""
        body = pickle.dumps(state)
        return self._sign(body) + body

    def loads(self, data: bytes) -> Any:
        """Return the state after a check of its signature.

        Raises:
            RendezvousStateError: The state is not signed with the key.
        """
        signature, body = data[:_SIGNATURE_BYTES], data[_SIGNATURE_BYTES:]
        if not hmac.compare_digest(signature, self._sign(body)):
            raise RendezvousStateError(
                "the state of the rendezvous is not signed by an agent of this job, so something"
                " else writes into torchrun's store"
            )
        return pickle.loads(body)  # noqa: S301 (an agent of this job has signed it)

    def _sign(self, body: bytes) -> bytes:
        return hmac.digest(self._key, body, "sha256")


def require_signatures(key: str) -> None:
    """Make the rendezvous of this process sign its data and refuse unsigned data."""
    dynamic_rendezvous.pickle = SignedPickle(key)  # type: ignore[attr-defined, assignment]
