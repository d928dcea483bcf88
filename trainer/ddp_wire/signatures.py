"""Signatures of the messages between operator and agent.

Each pod has a random secret in its spec. Operator and agent sign with it by HMAC-SHA256 (RFC 2104),
so only a process that can read the pod's spec can send orders to the agent or answer in its name.
The messages are not encrypted.

A second secret is the same in all pods of a job. Their agents sign their messages to each other
with it.
"""

import hashlib
import hmac
import secrets

NONCE_HEADER = "X-DDP-Nonce"
"""Random text of a request, which the signature of its answer includes."""
SIGNATURE_HEADER = "X-DDP-Signature"
_LONGEST = 128
"""Maximum length of a received signature, in characters."""

_ID_DIGITS = 32
"""Hexadecimal digits of a signature in the id of a rendezvous: 128 bits."""


def random_text() -> str:
    """Return 128 random bits in hexadecimal, for a secret or a nonce."""
    return secrets.token_hex(16)


def sign_request(secret: str, nonce: str, method: str, target: str, body: bytes = b"") -> str:
    """Return the signature of a request. `target` is its path with the query."""
    return _sign(secret, f"request\n{nonce}\n{method}\n{target}\n", body)


def sign_answer(secret: str, nonce: str, code: int, body: bytes) -> str:
    """Return the signature of the answer to the request with this nonce."""
    return _sign(secret, f"answer\n{nonce}\n{int(code)}\n", body)


def rendezvous_id(secret: str, job_uid: str, attempt: int) -> str:
    """Return the id of an attempt's rendezvous. It cannot be guessed without the job's secret."""
    attempt_id = f"{job_uid}-{attempt}"
    if not secret:
        return attempt_id
    signature = _sign(secret, "rendezvous id\n", attempt_id.encode())
    return f"{attempt_id}-{signature[:_ID_DIGITS]}"


def rendezvous_key(secret: str, run_id: str) -> str:
    """Return the key with which the nodes of an attempt sign the state of their rendezvous."""
    return _sign(secret, "rendezvous key\n", run_id.encode()) if secret else ""


def sign_arrival(secret: str, challenge: str, body: bytes) -> str:
    """Return the signature of an agent's message to the start barrier.

    Args:
        secret: Secret of the job.
        challenge: Random text that the barrier has sent on this connection.
        body: The message.
    """
    return _sign(secret, f"arrival\n{challenge}\n", body)


def is_genuine(given: str | None, expected: str) -> bool:
    """Return whether a received signature is the expected one. Compare in constant time."""
    if given is None or len(given) > _LONGEST:
        return False
    return hmac.compare_digest(given.encode(errors="replace"), expected.encode())


def _sign(secret: str, head: str, body: bytes) -> str:
    # No field of the head can contain a line end, so no two messages have the same text.
    text = head.encode(errors="replace") + body
    return hmac.new(secret.encode(), text, hashlib.sha256).hexdigest()
