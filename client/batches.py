"""Creates in batches: those that come within a moment go as one request.

Each caller gets its own answer, as if it had asked alone; the batch has one request id, so it is
as repeatable as a single create. When the cluster refuses a batch whole, for one of its jobs is
wrong, the batch is cut in two until the wrong one stands alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

import msgspec

from timeball.client import errors
from timeball.client.flow import encode_request
from timeball.client.messages import MAX_BATCH, MAX_BODY_BYTES, JobCreated, NewJob

MAX_WAITING = 10_000
"""Creates that wait to be sent or answered; further callers wait for their turn."""
UNDER_WAY = 4
"""Batches under way at a time: what comes meanwhile makes larger ones."""
_ROOM_BYTES = MAX_BODY_BYTES - 4 * 1024


class _Waiting(NamedTuple):
    encoded: msgspec.Raw
    size: int
    answered: asyncio.Future[JobCreated]


class CreateBatcher:
    """Gathers jobs for `gather_ms` and creates them by `send`, at most `MAX_BATCH` at a time."""

    def __init__(
        self,
        send: Callable[[Sequence[msgspec.Raw]], Awaitable[list[JobCreated]]],
        gather_ms: int,
    ) -> None:
        self._send = send
        self._gather_ms = gather_ms
        self._waiting: list[_Waiting] = []
        self._places = asyncio.Semaphore(MAX_WAITING)
        self._under_way = asyncio.Semaphore(UNDER_WAY)
        self._gathering: asyncio.Task[None] | None = None
        self._sending: set[asyncio.Task[None]] = set()

    async def create(self, job: NewJob) -> JobCreated:
        """Create a job. Raises what `Client.create` raises."""
        encoded = encode_request(job)
        async with self._places:
            answered: asyncio.Future[JobCreated] = asyncio.get_running_loop().create_future()
            self._waiting.append(_Waiting(msgspec.Raw(encoded), len(encoded), answered))
            if self._gathering is None:
                self._gathering = asyncio.create_task(self._gather())
            return await answered

    async def close(self) -> None:
        """Have all that waits sent and answered."""
        while self._gathering is not None or self._sending:
            gathering = [] if self._gathering is None else [self._gathering]
            await asyncio.wait([*gathering, *self._sending])

    async def _gather(self) -> None:
        await asyncio.sleep(self._gather_ms / 1_000)
        while self._waiting:
            await self._under_way.acquire()
            batch = self._cut()
            sending = asyncio.create_task(self._deliver(batch))
            self._sending.add(sending)
            sending.add_done_callback(self._sent)
        self._gathering = None

    def _cut(self) -> list[_Waiting]:
        size = 0
        for count, job in enumerate(self._waiting):
            size += job.size
            if count == MAX_BATCH or (count and size > _ROOM_BYTES):
                break
        else:
            count = len(self._waiting)
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        return [job for job in batch if not job.answered.cancelled()]

    def _sent(self, sending: asyncio.Task[None]) -> None:
        self._sending.discard(sending)
        self._under_way.release()

    async def _deliver(self, batch: list[_Waiting]) -> None:
        if not batch:
            return
        try:
            answers = await self._send([job.encoded for job in batch])
        except (errors.InvalidRequest, errors.NotFound) as error:
            if len(batch) == 1:
                _refuse(batch, error)
            else:
                half = len(batch) // 2
                await asyncio.gather(self._deliver(batch[:half]), self._deliver(batch[half:]))
        except errors.TimeballError as error:
            _refuse(batch, error)
        except BaseException as error:  # a defect, or the loop's end: nobody waits for ever
            for job in batch:
                if not job.answered.done():
                    job.answered.set_exception(errors.OutcomeUnknown(f"not answered: {error!r}"))
            raise
        else:
            for job, answer in zip(batch, answers, strict=True):
                _answer(job, answer)


def _answer(job: _Waiting, answer: JobCreated) -> None:
    if job.answered.done():
        return
    if answer.problem is not None:
        job.answered.set_exception(errors.from_problem(answer.problem))
    else:
        job.answered.set_result(answer)


def _refuse(batch: list[_Waiting], error: errors.TimeballError) -> None:
    for job in batch:
        if not job.answered.done():
            job.answered.set_exception(errors.from_problem(error.problem()))
