"""Giving back, on the leader, what was granted to clients of this node that have gone away.

When many clients leave at once, a request for each would cost the leader more than their claims
did, and it is then that requests fail. So what is owed goes in batches, one at a time: a hang-up is
told at once while nothing is under way, and otherwise with all that have gathered meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from itertools import islice

import msgspec

from timeball.client import messages
from timeball.client.errors import TimeballError
from timeball.cluster.http.exchange import Request, Response

_log = logging.getLogger(__name__)

PATH = "/v1/claims/withdraw"
MAX_OWED = 10_000
"""Claims to withdraw, at any moment; what is beyond is left to its lease."""
PATIENCE_S = 30.0
"""How long a withdrawal is tried; what is held under it then is left to its lease."""
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0

Send = Callable[[Request], Awaitable[Response]]


class Withdrawals:
    """What one node owes its leader: the request ids of claims that nobody waits for any more."""

    def __init__(self, send: Send) -> None:
        """`send` asks the leader of the moment; it raises a TimeballError when it cannot."""
        self._send = send
        self._owed: dict[str, float] = {}
        """Until when each is tried, by the loop's clock."""
        self._asked: dict[str, float] = {}
        """The same of those that the leader is being asked to withdraw."""
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    def __len__(self) -> int:
        """How many are owed, or being asked for."""
        return len(self._owed) + len(self._asked)

    def add(self, request_id: str) -> None:
        """Withdraw a claim, soon."""
        if self._stopped:
            return
        if len(self) >= MAX_OWED:
            _log.warning("too many claims to withdraw: one is left to its lease")
            return
        loop = asyncio.get_running_loop()
        self._owed[request_id] = loop.time() + PATIENCE_S
        if self._task is None:
            self._task = loop.create_task(self._run())

    def forget(self, request_id: str) -> None:
        """Withdraw a claim no more, for somebody waits for it again; what the leader has been asked
        for cannot be taken back."""
        self._owed.pop(request_id, None)
        self._asked.pop(request_id, None)

    async def stop(self) -> None:
        """Give up what is owed, and what comes from now on."""
        self._stopped = True
        self._owed.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            pause_s = FIRST_PAUSE_S
            while self._owed:
                if await self._tell():
                    pause_s = FIRST_PAUSE_S
                    continue
                await asyncio.sleep(pause_s)
                pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)
        finally:
            self._task = None

    async def _tell(self) -> bool:
        """Withdraw what is owed the longest; False when it has to be tried again."""
        # A claim that is repeated and left once more while this is under way is owed anew.
        self._asked = dict(islice(self._owed.items(), messages.MAX_BATCH))
        for request_id in self._asked:
            del self._owed[request_id]
        body = msgspec.msgpack.encode(messages.Withdrawals([*self._asked]))
        headers = {"content-type": "application/msgpack"}
        request = Request(method="POST", path=PATH, headers=headers, body=body)
        try:
            response = await self._send(request)
        except TimeballError as error:
            trouble = str(error)
        else:
            if response.status == 200:
                self._asked = {}
                return True
            trouble = f"status {response.status}"
        now_s = asyncio.get_running_loop().time()
        asked, self._asked = self._asked, {}
        kept = {request_id: until_s for request_id, until_s in asked.items() if until_s > now_s}
        if left := len(asked) - len(kept):
            _log.warning("%d claims that nobody takes are left to their leases: %s", left, trouble)
        self._owed = {**kept, **self._owed}
        return False
