"""The client of the webhook, with a real receiver: signatures, outcomes, and what it never does."""

import asyncio
import base64
import hashlib
import hmac
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import pytest
from aiohttp import web

from ddp_operator.cluster import webhook
from ddp_operator.cluster.webhook import (
    DeliveryOutcome,
    KeyFileError,
    Webhook,
    read_keys,
    signature,
)

KEY = base64.b64encode(bytes(range(32))).decode()
BODY = b'{"type":"ddpjob.completed"}'
PAGE = Path(__file__).parents[3] / "docs/operate/notifications.md"


@dataclass
class Receiver:
    """Receiver of a webhook that answers with a code."""

    code: int = 204
    headers: dict[str, str] = field(default_factory=dict)
    silent: bool = False
    requests: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    url: str = ""

    async def answer(self, request: web.Request) -> web.Response:
        lower = {name.lower(): value for name, value in request.headers.items()}
        self.requests.append((request.path, lower, await request.read()))
        if self.silent:
            await asyncio.Event().wait()
        return web.Response(status=self.code, headers=self.headers)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    found = Receiver()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", found.answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    found.url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
    yield found
    await runner.cleanup()


@pytest.fixture
async def sender(receiver: Receiver, tmp_path: Path) -> AsyncIterator[Webhook]:
    (tmp_path / "keys").write_text(f"whsec_{KEY}\n")
    client = Webhook(receiver.url, tmp_path / "keys")
    yield client
    await client.close()


def test_signature_is_that_of_standard_webhooks() -> None:
    """The example is that of the project's own libraries."""
    key = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    body = b'{"test": 2432232314}'
    found = signature(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body)
    assert found == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


async def test_message_arrives_signed_with_its_id_and_time(
    receiver: Receiver, sender: Webhook
) -> None:
    assert (await sender.send("msg_1", 1700000000, BODY)).outcome is DeliveryOutcome.DELIVERED
    ((path, headers, body),) = receiver.requests
    assert (path, body, headers["content-type"]) == ("/hook", BODY, "application/json")
    assert (headers["webhook-id"], headers["webhook-timestamp"]) == ("msg_1", "1700000000")
    content = b"msg_1.1700000000." + BODY
    expected = base64.b64encode(hmac.digest(base64.b64decode(KEY), content, hashlib.sha256))
    assert headers["webhook-signature"] == f"v1,{expected.decode()}"


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (200, DeliveryOutcome.DELIVERED),
        (204, DeliveryOutcome.DELIVERED),
        (400, DeliveryOutcome.REFUSED),
        (404, DeliveryOutcome.REFUSED),
        (408, DeliveryOutcome.TRANSIENT),
        (429, DeliveryOutcome.TRANSIENT),
        (500, DeliveryOutcome.TRANSIENT),
        (503, DeliveryOutcome.TRANSIENT),
    ],
)
async def test_answer_decides_whether_to_try_again(
    receiver: Receiver, sender: Webhook, code: int, outcome: DeliveryOutcome
) -> None:
    receiver.code = code
    assert (await sender.send("msg_1", 1, BODY)).outcome is outcome


async def test_redirect_is_not_followed(receiver: Receiver, sender: Webhook) -> None:
    """It could lead to an address inside the cluster that the administrator did not give."""
    receiver.code, receiver.headers = 307, {"Location": receiver.url.replace("/hook", "/secret")}
    assert (await sender.send("msg_1", 1, BODY)).outcome is DeliveryOutcome.REFUSED
    assert [path for path, _, _ in receiver.requests] == ["/hook"]


async def test_receiver_that_does_not_answer_is_left_in_time(
    receiver: Receiver, sender: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook, "NOTIFICATION_TIMEOUT_SECONDS", 0.05)
    receiver.silent = True
    answer = await sender.send("msg_1", 1, BODY)
    assert answer == (DeliveryOutcome.TRANSIENT, "no answer in time")


async def test_error_of_a_connection_does_not_quote_the_address(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(KEY)
    client = Webhook("http://127.0.0.1:1/token", tmp_path / "keys")
    outcome, reason = await client.send("msg_1", 1, BODY)
    await client.close()
    assert outcome is DeliveryOutcome.TRANSIENT
    assert "token" not in reason


async def test_message_goes_through_the_proxy_of_the_environment(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", receiver.url.removesuffix("/hook"))
    monkeypatch.delenv("no_proxy", raising=False)
    (tmp_path / "keys").write_text(KEY)
    client = Webhook("http://hooks.invalid/hook", tmp_path / "keys")
    assert (await client.send("msg_1", 1, BODY)).outcome is DeliveryOutcome.DELIVERED
    await client.close()
    assert receiver.requests[0][1]["host"] == "hooks.invalid"


async def test_changed_key_file_signs_the_next_message(
    receiver: Receiver, sender: Webhook, tmp_path: Path
) -> None:
    new = base64.b64encode(bytes(24)).decode()
    (tmp_path / "keys").write_text(f"{new}\n{KEY}\n")
    await sender.send("msg_1", 5, BODY)
    signatures = receiver.requests[0][1]["webhook-signature"].split()
    keys = [base64.b64decode(text) for text in (new, KEY)]
    assert signatures == [signature(key, "msg_1", 5, BODY) for key in keys]


async def test_message_without_a_key_is_not_sent(
    receiver: Receiver, sender: Webhook, tmp_path: Path
) -> None:
    (tmp_path / "keys").unlink()
    assert (await sender.send("msg_1", 5, BODY)).outcome is DeliveryOutcome.TRANSIENT
    assert receiver.requests == []


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "must have 1 to 4 keys"),
        ("\n".join([KEY] * 5), "must have 1 to 4 keys"),
        ("not/base64!", "must have keys in base64"),
        (base64.b64encode(bytes(23)).decode(), "at least 24 bytes before base64, got 23"),
        ("schlüssel", "cannot be read"),
    ],
)
def test_bad_key_file_is_refused_in_one_sentence(tmp_path: Path, text: str, part: str) -> None:
    (tmp_path / "keys").write_text(text)
    with pytest.raises(KeyFileError, match=re.escape(part)) as error:
        read_keys(tmp_path / "keys")
    assert text == "" or text not in str(error.value), "the sentence would show the key"


async def test_receiver_of_the_page_accepts_this_signature_and_no_other(
    receiver: Receiver, sender: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), flags=re.DOTALL)
    page = ModuleType("page")
    exec(code, page.__dict__)  # noqa: S102
    await sender.send("msg_1", 1700000000, BODY)
    _, headers, body = receiver.requests[0]
    monkeypatch.setattr(page.time, "time", lambda: 1700000100.0)
    assert page.is_genuine(headers, body, f"whsec_{KEY}")
    assert not page.is_genuine(headers, body + b" ", f"whsec_{KEY}")
    assert not page.is_genuine({**headers, "webhook-id": "msg_2"}, body, f"whsec_{KEY}")
    assert not page.is_genuine(headers, body, base64.b64encode(bytes(32)).decode())
    monkeypatch.setattr(page.time, "time", lambda: 1700000301.0)
    assert not page.is_genuine(headers, body, f"whsec_{KEY}"), "the message is a repeated one"
