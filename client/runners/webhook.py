"""The runner of webhooks: one POST for each execution, whose status is the outcome.

The payload is the body, in JSON; the facts are headers, among them the fencing token and an
`Idempotency-Key` that is the same at every attempt. What a reply means stands in `replies`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import ssl
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, Self

import aiohttp
from yarl import URL

from timeball.client.context import ExecutionContext
from timeball.client.runners.facts import headers, payload_json, reserved_headers
from timeball.client.runners.limits import limits
from timeball.client.runners.pace import Pace
from timeball.client.runners.replies import (
    FATAL_STATUSES,
    SLOW_DOWN,
    ServerBusy,
    judge,
    retry_after,
)
from timeball.client.runners.results import MAX_OUTPUT_BYTES

log = logging.getLogger("timeball.runners")

TIMEOUT_MS = 30_000
"""How long a request may take, unless told otherwise."""
CONNECT_TIMEOUT_MS = 10_000
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t\x20-\x7e]*")


class RequestTimedOut(Exception):
    """The server did not answer within the time of an attempt."""


class RequestBroken(Exception):
    """The server could not be reached, or the connection broke."""


def wall_ms() -> int:
    """Read the wall clock, in epoch milliseconds."""
    return time.time_ns() // 1_000_000


def _now_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1_000)


class WebhookRunner:
    """The handler that sends each execution to `url`; use it as an asynchronous context manager.

    `timeout_ms` bounds a request beside the job's own timeout. `most` requests are under way at
    once, fewer while the server asks to slow down; `retry_after_ms` is for a server that does
    not say how long. An https server is verified against `ca_file`, or the system's authorities.
    Redirects are not followed, and no proxy is used.
    """

    def __init__(
        self,
        url: str,
        *,
        most: int,
        timeout_ms: int = TIMEOUT_MS,
        retry_after_ms: int = 30_000,
        fatal: Collection[int] = FATAL_STATUSES,
        extra_headers: Mapping[str, str] | None = None,
        ca_file: str | None = None,
        wall_clock_ms: Callable[[], int] = wall_ms,
    ) -> None:
        self._url = parse_url(url)
        self._extra = dict(extra_headers or {})
        check_headers(self._extra)
        wrong = sorted(code for code in fatal if not 300 <= code <= 599 or code in SLOW_DOWN)
        if wrong:
            raise ValueError(f"statuses for good are 300 to 599 but 429 and 503, got {wrong[0]}")
        self._timeout_ms = timeout_ms
        self._retry_after_ms = retry_after_ms
        self._fatal = frozenset(fatal)
        self._trust = ssl.create_default_context(cafile=ca_file)
        self._wall_clock_ms = wall_clock_ms
        self._pace = Pace(most)
        self._freed = asyncio.Condition()
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            # A server may close an idle connection just as the next request leaves.
            connector=aiohttp.TCPConnector(
                limit=self._pace.most, ssl=self._trust, force_close=True
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            auto_decompress=False,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def __call__(self, context: ExecutionContext) -> Any:
        """Send an execution; its result."""
        delivery = context.delivery
        body = payload_json(delivery.payload)
        told = {
            **self._extra,
            **headers(delivery),
            "Content-Type": "application/json",
            "Accept-Encoding": "identity",
        }
        attempt_ms = limits(delivery.timeout_ms, None, 0).run_ms
        by_ms = None if attempt_ms is None else _now_ms() + attempt_ms
        await self._turn(by_ms)
        run_ms = self._timeout_ms if by_ms is None else min(self._timeout_ms, by_ms - _now_ms())
        try:
            async with asyncio.timeout(run_ms / 1_000):
                return await self._send(body, told)
        except TimeoutError:
            raise RequestTimedOut(f"no whole answer within {run_ms} ms") from None
        except (aiohttp.ClientError, OSError) as error:
            raise RequestBroken(f"{type(error).__name__}: {error}") from error
        finally:
            self._pace.ended()
            async with self._freed:
                self._freed.notify_all()

    async def _send(self, body: bytes, told: Mapping[str, str]) -> object:
        assert self._session is not None, "a runner is entered before it is used"
        async with self._session.post(
            self._url,
            data=body,
            headers=told,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_MS / 1_000),
        ) as response:
            read, cut = await _bounded(response)
            after_ms = retry_after(
                response.headers.get("Retry-After", ""),
                self._wall_clock_ms(),
                self._retry_after_ms,
            )
            status = response.status
            location = response.headers.get("Location", "")
            if cut:
                response.close()
        if status in SLOW_DOWN:
            log.warning("status %d: nothing is sent for up to %d ms", status, after_ms)
            self._pace.too_much(_now_ms(), after_ms)
        elif 200 <= status < 300:
            self._pace.went_well()
        return judge(
            status, read, cut=cut, retry_after_ms=after_ms, location=location, fatal=self._fatal
        )

    async def _turn(self, by_ms: int | None) -> None:
        """Wait until a request may be sent; with `by_ms`, for no longer than the attempt lasts."""
        while (wait_ms := self._pace.wait_ms(_now_ms())) != 0:
            left_ms = None if by_ms is None else by_ms - _now_ms()
            if left_ms is not None and left_ms <= (wait_ms or 0):
                raise ServerBusy(wait_ms or self._retry_after_ms, "the server asked for less")
            bounds = [bound for bound in (wait_ms, left_ms) if bound is not None]
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(bounds) / 1_000 if bounds else None), self._freed:
                    await self._freed.wait()
        self._pace.sent()


def parse_url(text: str) -> URL:
    """Parse the URL of a server; raises ValueError, which says what is wrong with it."""
    url = URL(text)
    if url.scheme not in ("http", "https") or not url.host:
        raise ValueError(f"not an http or https URL: {text!r}")
    if url.user is not None or url.password is not None:
        raise ValueError("a URL holds no user and password: send them in a header")
    if url.fragment:
        raise ValueError(f"a fragment is not sent to any server: {text!r}")
    return url


def check_headers(given: Mapping[str, str]) -> None:
    """Raise ValueError for a header that can not be sent, or that the runner sets itself."""
    reserved = reserved_headers()
    for name, value in given.items():
        if not _TOKEN.fullmatch(name):
            raise ValueError(f"not the name of a header: {name!r}")
        if name.lower() in reserved:
            raise ValueError(f"{reserved[name.lower()]} is set for each execution")
        if not _VALUE.fullmatch(value):
            raise ValueError(f"the value of {name} holds what no header can")


async def _bounded(response: aiohttp.ClientResponse) -> tuple[bytes, bool]:
    """Read as much of a body as a result may hold; and whether there was more."""
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > MAX_OUTPUT_BYTES:
            return bytes(body[:MAX_OUTPUT_BYTES]), True
    return bytes(body), False
