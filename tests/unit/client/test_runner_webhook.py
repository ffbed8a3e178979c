"""The runner of webhooks against a server on loopback, in virtual time."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from timeball.client import ExecutionContext
from timeball.client.messages import Delivery
from timeball.client.runners import WebhookRunner
from timeball.client.runners.facts import NotTold
from timeball.client.runners.replies import RequestFailed, RequestRefused, ServerBusy
from timeball.client.runners.webhook import RequestBroken, RequestTimedOut, check_headers

LOOPBACK = Path(__file__).with_name("loopback.pem")
"""A certificate for 127.0.0.1 that nobody but itself vouches for, and its key: for tests alone."""


def context(payload=None, **fields) -> ExecutionContext:
    told = {
        "execution_id": "7-1764480000000", "job_id": "7", "queue": "mail", "token": 4_097,
        "attempt": 2, "max_attempts": 5, "nominal_ms": 1, "due_ms": 3, "lease_ms": 10_000,
        "timeout_ms": 0, "idempotency_key": "night 7", "payload": payload, **fields,
    }  # fmt: skip
    return ExecutionContext(Delivery(**told))


@asynccontextmanager
async def serving(handle, **options):
    """A server, and a runner that sends to it."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    serving = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0)
    await serving.setup()
    try:
        await web.TCPSite(serving, "127.0.0.1", 0).start()
        host, port = serving.addresses[0][:2]
        async with WebhookRunner(f"http://{host}:{port}/hook?a=1", most=8, **options) as runner:
            yield runner
    finally:
        await serving.cleanup()


def now() -> float:
    return asyncio.get_running_loop().time()


def test_the_payload_is_the_body_and_the_facts_are_headers(kit) -> None:
    seen = []

    async def handle(request):
        seen.append((request.method, request.path_qs, await request.json(), request.headers))
        return web.json_response({"id": 3}, status=201)

    async def scenario() -> None:
        extra = {"Authorization": "Bearer x"}
        async with serving(handle, extra_headers=extra) as runner:
            assert await runner(context({"to": "ann"})) == {"id": 3}
        [(method, path, body, headers)] = seen
        assert (method, path, body) == ("POST", "/hook?a=1", {"to": "ann"})
        assert headers["Content-Type"] == "application/json"
        assert headers["Idempotency-Key"] == "night%207"
        assert headers["Timeball-Token"] == "4097"
        assert headers["Timeball-Attempt"] == "2"
        assert headers["Authorization"] == "Bearer x"

    kit.run(scenario())


def test_http_09_a_redirect_is_not_followed(kit) -> None:
    paths = []

    async def handle(request):
        paths.append(request.path)
        raise web.HTTPFound("/elsewhere")

    async def scenario() -> None:
        async with serving(handle) as runner:
            with pytest.raises(RequestFailed, match="a redirect to /elsewhere"):
                await runner(context())
        assert paths == ["/hook"]

    kit.run(scenario())


def test_statuses_become_outcomes(kit) -> None:
    async def handle(request):
        return web.Response(status=int(request.headers["Timeball-Attempt"]), text="so it is")

    async def scenario() -> None:
        async with serving(handle) as runner:
            assert await runner(context(attempt=200)) == "so it is"
            with pytest.raises(RequestRefused, match="status 422: so it is"):
                await runner(context(attempt=422))
            with pytest.raises(RequestFailed, match="status 500: so it is"):
                await runner(context(attempt=500))
        async with serving(handle, fatal={500}) as runner:
            with pytest.raises(RequestRefused):
                await runner(context(attempt=500))

    kit.run(scenario())


def test_a_busy_server_is_left_alone_for_as_long_as_it_says(kit) -> None:
    arrived = []

    async def handle(request):
        arrived.append(now())
        if len(arrived) == 1:
            return web.Response(status=429, headers={"Retry-After": "20"})
        return web.Response()

    async def scenario() -> None:
        async with serving(handle) as runner:
            with pytest.raises(ServerBusy) as raised:
                await runner(context())
            assert raised.value.after_ms == 20_000
            await asyncio.gather(*(runner(context()) for _ in range(12)))
        assert len(arrived) == 13
        assert arrived[1] - arrived[0] >= 20

    kit.run(scenario())


def test_after_it_was_busy_fewer_requests_are_under_way(kit) -> None:
    under_way, most = 0, []

    async def handle(request):
        nonlocal under_way
        under_way += 1
        most.append(under_way)
        await asyncio.sleep(1)
        under_way -= 1
        return web.Response(status=503 if len(most) == 1 else 200)

    async def scenario() -> None:
        async with serving(handle, retry_after_ms=5_000) as runner:
            with pytest.raises(ServerBusy) as raised:
                await runner(context())
            assert raised.value.after_ms == 5_000
            await asyncio.gather(*(runner(context()) for _ in range(20)))
        assert max(most[:5]) == 4, "half of 8"
        assert max(most) <= 8

    kit.run(scenario())


def test_who_can_not_wait_for_a_busy_server_is_tried_again_later(kit) -> None:
    async def handle(request):
        return web.Response(status=503, headers={"Retry-After": "30"})

    async def scenario() -> None:
        async with serving(handle) as runner:
            with pytest.raises(ServerBusy):
                await runner(context())
            before = now()
            with pytest.raises(ServerBusy, match="asked for less") as raised:
                await runner(context(timeout_ms=10_000))
            assert now() == before
            assert 29_000 <= raised.value.after_ms <= 30_000

    kit.run(scenario())


def test_a_waiting_execution_can_be_cancelled(kit) -> None:
    async def handle(request):
        return web.Response(status=503, headers={"Retry-After": "30"})

    async def scenario() -> None:
        async with serving(handle) as runner:
            with pytest.raises(ServerBusy):
                await runner(context())
            waiting = asyncio.create_task(runner(context()))
            await asyncio.sleep(1)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert runner._pace.under_way == 0

    kit.run(scenario())


@pytest.mark.parametrize(
    ("options", "fields", "run_ms"),
    [
        ({"timeout_ms": 3_000}, {}, 3_000),
        ({"timeout_ms": 3_000}, {"timeout_ms": 1_000}, 800),
        ({}, {}, 30_000),
    ],
)
def test_a_server_that_hangs(kit, options, fields, run_ms) -> None:
    async def handle(request):
        await asyncio.Event().wait()

    async def scenario() -> None:
        async with serving(handle, **options) as runner:
            before = now()
            with pytest.raises(RequestTimedOut, match=f"within {run_ms} ms"):
                await runner(context(**fields))
            assert round((now() - before) * 1_000) in range(run_ms, run_ms + 100)
            assert runner._pace.under_way == 0

    kit.run(scenario())


def test_a_body_without_end_is_cut(kit) -> None:
    async def handle(request):
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"x" * 10_000)

    async def scenario() -> None:
        async with serving(handle) as runner:
            result = await runner(context())
        assert isinstance(result, str)
        assert result.startswith("[cut] xxx")
        assert len(result) < 64 * 1024

    kit.run(scenario())


def test_connections_that_break_or_are_refused(kit) -> None:
    async def handle(request):
        request.transport.abort()
        return web.Response()

    async def scenario() -> None:
        async with serving(handle) as runner:
            with pytest.raises(RequestBroken, match=r"Disconnected|reset"):
                await runner(context())
        with pytest.raises(RequestBroken, match="Cannot connect"):
            async with WebhookRunner("http://127.0.0.1:1", most=1) as runner:
                await runner(context())

    kit.run(scenario())


@pytest.mark.parametrize("trusted", [True, False])
def test_a_server_is_verified(kit, trusted) -> None:
    async def handle(request):
        return web.Response(text="in confidence")

    async def scenario() -> None:
        served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        served.load_cert_chain(LOOPBACK)
        server = web.AppRunner(web.Application())
        server.app.router.add_post("/", handle)
        await server.setup()
        try:
            await web.TCPSite(server, "127.0.0.1", 0, ssl_context=served).start()
            url = f"https://127.0.0.1:{server.addresses[0][1]}/"
            authorities = str(LOOPBACK) if trusted else None
            async with WebhookRunner(url, most=1, ca_file=authorities) as runner:
                if trusted:
                    assert await runner(context()) == "in confidence"
                else:
                    with pytest.raises(RequestBroken, match=r"self.signed"):
                        await runner(context())
        finally:
            await server.cleanup()

    kit.run(scenario())


def test_a_payload_without_json_is_not_sent(kit) -> None:
    async def handle(request):
        raise AssertionError("it was sent")

    async def scenario() -> None:
        async with serving(handle) as runner:
            with pytest.raises(NotTold):
                await runner(context({(1, 2): 3}))

    kit.run(scenario())


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        ("ftp://a/b", {}, "not an http or https URL"),
        ("/path", {}, "not an http or https URL"),
        ("http://", {}, "URL"),
        ("http://ann:secret@a/", {}, "no user and password"),
        ("http://a/#b", {}, "fragment"),
        ("http://a/", {"fatal": [429]}, "got 429"),
        ("http://a/", {"fatal": [200]}, "got 200"),
        ("http://a/", {"extra_headers": {"a b": "c"}}, "not the name of a header: 'a b'"),
        ("http://a/", {"extra_headers": {"A": "b\r\nC: d"}}, "the value of A"),
        ("http://a/", {"extra_headers": {"idempotency-key": "x"}}, "Idempotency-Key is set"),
    ],
)
def test_wrong_settings_are_refused(url, options, message) -> None:
    with pytest.raises(ValueError, match=message):
        WebhookRunner(url, most=1, **options)


def test_headers_of_ones_own() -> None:
    check_headers({"Authorization": "Bearer abc.def", "X-Empty": ""})
