"""Client of the webhook to which the operator sends notifications.

Headers and signatures are those of Standard Webhooks 1.0 (https://www.standardwebhooks.com), so a
receiver can use a library of that project.
"""

import base64
import binascii
import hashlib
import hmac
from enum import StrEnum
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple

import aiohttp

from ddp_operator.limits import NOTIFICATION_TIMEOUT_SECONDS

_FEWEST_KEY_BYTES = 24
_MOST_KEYS = 4
_MOST_FILE_BYTES = 4096
_PREFIX = "whsec_"
_TRANSIENT = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS})


class KeyFileError(ValueError):
    """Error about the file of signing keys. The text is one sentence for the administrator."""


class DeliveryOutcome(StrEnum):
    """DeliveryOutcome of one try of a delivery."""

    DELIVERED = "delivered"
    """The receiver answered with a code 2xx."""
    TRANSIENT = "transient"
    """No answer, or one that a later try may change: 408, 429 or 5xx."""
    REFUSED = "refused"
    """Any other answer. A redirect is one of them, because it leads to an address that the
    administrator did not give."""


class DeliveryAnswer(NamedTuple):
    """DeliveryOutcome of one try of a delivery, with its reason."""

    outcome: DeliveryOutcome
    reason: str


def read_keys(path: Path) -> list[bytes]:
    """Return the signing keys of a file with one key per line, in base64.

    Raises:
        KeyFileError: The file has no key, or one that is too short.
    """
    try:
        with path.open("rb") as file:
            lines = file.read(_MOST_FILE_BYTES).decode("ascii").split()
    except (OSError, UnicodeDecodeError) as error:
        raise KeyFileError(f"{path} cannot be read as a file of signing keys: {error}") from error
    if not 1 <= len(lines) <= _MOST_KEYS:
        raise KeyFileError(
            f"{path} must have 1 to {_MOST_KEYS} keys, one per line, got {len(lines)}"
        )
    return [_key(path, line) for line in lines]


def _key(path: Path, line: str) -> bytes:
    try:
        key = base64.b64decode(line.removeprefix(_PREFIX), validate=True)
    except binascii.Error as error:
        raise KeyFileError(f"{path} must have keys in base64") from error
    if len(key) < _FEWEST_KEY_BYTES:
        raise KeyFileError(
            f"{path} must have keys of at least {_FEWEST_KEY_BYTES} bytes before base64, got"
            f" {len(key)}"
        )
    return key


def signature(key: bytes, message_id: str, timestamp: int, body: bytes) -> str:
    """Return the signature of a message: HMAC-SHA256 over its id, the time and the body."""
    content = b".".join((message_id.encode(), str(timestamp).encode(), body))
    return f"v1,{base64.b64encode(hmac.digest(key, content, hashlib.sha256)).decode()}"


class Webhook:
    """Sender of signed messages to one address."""

    def __init__(self, url: str, key_file: Path) -> None:
        """Create a sender without a connection.

        Args:
            url: Address of the receiver.
            key_file: File with the signing keys. It is read for each message, so that a changed
                Secret needs no restart.
        """
        self._url, self._key_file = url, key_file
        self._session: aiohttp.ClientSession | None = None

    async def send(self, message_id: str, timestamp: int, body: bytes) -> DeliveryAnswer:
        """Send a message once.

        Args:
            message_id: Id of the message, equal for all tries.
            timestamp: Time of this try, in seconds since 1970.
            body: JSON text of the message.
        """
        try:
            keys = read_keys(self._key_file)
        except KeyFileError as error:
            return DeliveryAnswer(DeliveryOutcome.TRANSIENT, str(error))
        headers = {
            "Content-Type": "application/json",
            "webhook-id": message_id,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": " ".join(signature(k, message_id, timestamp, body) for k in keys),
        }
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=NOTIFICATION_TIMEOUT_SECONDS)
            self._session = aiohttp.ClientSession(
                timeout=timeout,
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=True,  # The address may be reachable through a proxy only.
            )
        try:
            async with self._session.post(
                self._url, data=body, headers=headers, allow_redirects=False
            ) as response:
                return _answer(response.status)  # The body of the answer is not read.
        except TimeoutError:
            return DeliveryAnswer(DeliveryOutcome.TRANSIENT, "no answer in time")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            # An error of the client may quote the address, which may contain a token.
            return DeliveryAnswer(DeliveryOutcome.TRANSIENT, f"no answer: {type(error).__name__}")

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()


def _answer(code: int) -> DeliveryAnswer:
    reason = f"the receiver answered {code}"
    if HTTPStatus.OK <= code < HTTPStatus.MULTIPLE_CHOICES:
        return DeliveryAnswer(DeliveryOutcome.DELIVERED, reason)
    transient = code in _TRANSIENT or code >= HTTPStatus.INTERNAL_SERVER_ERROR
    return DeliveryAnswer(
        DeliveryOutcome.TRANSIENT if transient else DeliveryOutcome.REFUSED, reason
    )
