"""Passing a request on to the leader: raw, once, over one shared pool of connections.

The forwarding node adds its hop mark and takes the leader's answer as it is. When the
client goes away, the handler is cancelled. A read or a claim then ends: the connection to the
leader closes, and the leader sees the same as if the client had been connected to it. Any other
write is passed on all the same, as the leader itself carries out what has reached it whole.

A leader that is cut off or stopped breaks no connection and answers nothing. So what waits for a
node that this one follows no more is given up, as if the connection had been lost: its client
repeats it, and reaches the next leader, long before it would have lost patience by itself.
"""

from __future__ import annotations

import asyncio
import io
import logging
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
from yarl import URL

from timeball.client import messages
from timeball.client.errors import OutcomeUnknown, TimeballError, Unavailable
from timeball.cluster.http.codec import BodyDecoder
from timeball.cluster.http.eager import carried_out
from timeball.cluster.http.exchange import (
    HOPS,
    REQUEST_ID,
    Request,
    Response,
    read_request_id,
)
from timeball.cluster.http.problems import ELECTION_MS
from timeball.cluster.http.withdrawals import Withdrawals

_log = logging.getLogger(__name__)

MAX_CONNECTIONS = 2_000
CONNECT_TIMEOUT_S = 1.0
ANSWER_TIMEOUT_S = 75.0
"""Longer than the longest long-poll."""
LOOK_S = 0.05
"""How often it is looked whether what was asked leads still, while requests are under way."""
_PASSED_ON = (
    *("accept", "content-type", "idempotency-key", REQUEST_ID),
    *("if-match", "if-none-match"),
)
_TAKEN_BACK = ("Location", "Retry-After", "Allow", "ETag", "Timeball-Applied-Index")
_claims = BodyDecoder(messages.Claim)


class Forwarder:
    """Sends requests to the leader."""

    def __init__(self, leader_url: Callable[[], str | None], me: str) -> None:
        """`leader_url` names the HTTP interface of the leader of the moment; `me` is ours."""
        self._leader_url = leader_url
        self._me = me
        self._session: aiohttp.ClientSession | None = None
        self._withdrawals = Withdrawals(self._send_withdrawals)
        self._claims: set[asyncio.Task[Response]] = set()
        self._closing = False
        self._claimed_at: str | None = None
        """The node that was asked for the latest claim."""
        self._under_way: dict[asyncio.Timeout, str] = {}
        """The limit of each request under way, and the node that was asked."""
        self._looking: asyncio.TimerHandle | None = None

    def leader_url(self) -> str | None:
        """The leader's address as far as it is known."""
        return self._leader_url()

    async def start(self) -> None:
        """Open the pool; call it within the running loop."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=MAX_CONNECTIONS, keepalive_timeout=30),
            timeout=aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    def end_claims(self) -> None:
        """Send long-polls away, now and from now on: their clients ask another node."""
        self._closing = True
        for task in list(self._claims):
            task.cancel()

    async def stop(self) -> None:
        """Give up what is under way and close the pool."""
        if self._looking is not None:
            self._looking.cancel()
        await self._withdrawals.stop()
        if self._session is not None:
            await self._session.close()

    async def forward(self, request: Request, *, write: bool) -> Response:
        """The leader's answer.

        Raises Unavailable when no other node is known to lead or it cannot be reached, and
        OutcomeUnknown when a write was sent and its answer was lost, or will not come since the
        node that was asked leads no more.
        """
        url = self._leader_url()
        if url is None or url == self._me:
            raise Unavailable("no leader is known", retry_after_ms=ELECTION_MS)
        if request.path == "/v1/claims":
            return await self._claim(url, request)
        sending = self._start(self._send(url, request, write=write))
        if not write:
            return await sending
        return await carried_out(sending)

    def _start(self, sending: Coroutine[Any, Any, Response]) -> asyncio.Task[Response]:
        """Send in a Task, as aiohttp wants it; handlers run in none."""
        return asyncio.get_running_loop().create_task(sending)

    async def _send(self, url: str, request: Request, *, write: bool) -> Response:
        assert self._session is not None, "start() comes first"
        headers = {name: request.headers[name] for name in _PASSED_ON if name in request.headers}
        headers[HOPS] = "1"
        target = f"{url}{request.path}" + (f"?{request.query}" if request.query else "")
        try:
            async with (
                self._while_it_leads(url),
                self._session.request(
                    "GET" if request.method == "HEAD" else request.method,
                    URL(target, encoded=True),
                    data=io.BytesIO(request.body) if request.body else None,
                    headers=headers,
                    allow_redirects=False,
                    skip_auto_headers=("Content-Type", "User-Agent", "Accept"),
                ) as answer,
            ):
                body = await answer.read()
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise Unavailable("the leader cannot be reached", retry_after_ms=ELECTION_MS) from error
        except (aiohttp.ClientError, TimeoutError) as error:
            # Who knows the next leader need not wait for one.
            pause_ms = ELECTION_MS if self._leader_url() in (None, url) else 0
            if write:
                raise OutcomeUnknown(
                    "the connection to the leader was lost under way", retry_after_ms=pause_ms
                ) from error
            raise Unavailable("the leader did not answer", retry_after_ms=pause_ms) from error
        return Response(
            status=answer.status,
            body=body,
            content_type=answer.headers.get("Content-Type", ""),
            headers={name: answer.headers[name] for name in _TAKEN_BACK if name in answer.headers},
        )

    @asynccontextmanager
    async def _while_it_leads(self, url: str) -> AsyncIterator[None]:
        """Raises TimeoutError when the node at `url` leads no more."""
        async with asyncio.timeout(None) as limit:
            self._under_way[limit] = url
            if self._looking is None:
                self._look()
            try:
                yield
            finally:
                del self._under_way[limit]

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        leader = self._leader_url()
        if leader is None and self._closing:
            self._looking = None  # a node that stops names no leader: what is under way may end
            return
        for limit, url in self._under_way.items():
            if url != leader and limit.when() is None:  # once: an expired limit cannot be moved
                limit.reschedule(loop.time())
        self._looking = loop.call_later(LOOK_S, self._look) if self._under_way else None

    # --- claims: what was granted to a client that is gone must be given back ----------------

    async def _claim(self, url: str, request: Request) -> Response:
        if self._closing:
            raise Unavailable("this node is stopping", retry_after_ms=ELECTION_MS)
        self._claimed_at = url
        claim = self._named_claim(request)
        if self._withdrawals and (request_id := self._request_id(claim)):
            self._withdrawals.forget(request_id)
        sending = self._start(self._send(url, claim, write=True))
        self._claims.add(sending)
        sending.add_done_callback(self._claims.discard)
        try:
            response = await sending
        except asyncio.CancelledError as error:
            # Its answer may have left the leader in this very moment.
            self._withdraw(claim)
            if not self._closing:
                raise  # the client has gone
            raise Unavailable("this node is stopping", retry_after_ms=ELECTION_MS) from error
        if response.status == 200:
            response.undelivered = lambda: self._withdraw(claim)
        return response

    def _named_claim(self, request: Request) -> Request:
        """The same claim, under a request id by which its grants can be found again."""
        headers = {REQUEST_ID: uuid.uuid4().hex, **request.headers}
        return msgspec.structs.replace(request, headers=headers)

    def _withdraw(self, claim: Request) -> None:
        if request_id := self._request_id(claim):
            self._withdrawals.add(request_id)

    def _request_id(self, claim: Request) -> str:
        """What the leader knows the claim by; empty if malformed: then the leader refuses it."""
        try:
            body: messages.Claim = _claims.decode(claim.body, claim.body_form)
            return read_request_id(claim, body.request_id)
        except TimeballError as error:
            _log.info("a claim can hold nothing, for it is malformed: %s", error)
            return ""

    async def _send_withdrawals(self, request: Request) -> Response:
        url = self._leader_url()
        if url is None and self._closing:  # a node that stops names none
            url = self._claimed_at
        if url is None:
            raise Unavailable("no leader is known", retry_after_ms=ELECTION_MS)
        return await self._send(url, request, write=True)
