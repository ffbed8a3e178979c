"""The calls of dead letters: list, replay and purge, by name or by what they died of."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta

from timeball.client import messages
from timeball.client.calls import Calls
from timeball.client.errors import TimeballError
from timeball.client.flow import Call, encode_request, in_batches
from timeball.client.messages import MAX_BATCH, Consistency, DeadReason, DeadSelection


class DeadLetterCalls(Calls):
    """What can be asked of dead letters; part of `Client`.

    They are chosen by `queue`, `job`, `error_type` (of the last attempt, exactly; "" for none),
    `reason`, and when they died: at `died_after` or later, and before `died_before`, each an
    ISO 8601 instant with an offset or epoch milliseconds. All that is given must apply.
    """

    async def dead(
        self,
        *,
        queue: str | None = None,
        job: str | None = None,
        error_type: str | None = None,
        reason: DeadReason | None = None,
        died_after: str | int | None = None,
        died_before: str | int | None = None,
        page_size: int = 100,
        consistency: Consistency = "applied",
        min_index: int = 0,
    ) -> AsyncIterator[messages.ExecutionView]:
        """Iterate over dead letters, newest first. Raises `NotFound` for the queue.

        Each page is as fresh as asked for when it is read.
        """
        query: dict[str, str | int | None] = {
            "queue": queue,
            "job": job,
            "error_type": error_type,
            "reason": reason,
            "died_after": died_after,
            "died_before": died_before,
            "limit": page_size,
        }
        async for execution in self._execution_pages("/v1/dead", query, consistency, min_index):
            yield execution

    async def replay(self, execution_ids: Sequence[str]) -> list[messages.Replayed]:
        """Give dead executions a new attempt budget; one answer per id, in order.

        When the answer to a first attempt was lost, the repeat may say "not_dead" for what
        the first one replayed.
        """
        results: list[messages.Replayed] = []
        for batch in in_batches(execution_ids):
            body = encode_request({"execution_ids": batch})
            call = Call("POST", "/v1/dead/replay", messages.ReplayAnswers, body)
            results.extend((await self._call(call)).results)
        return results

    async def purge(self, execution_ids: Sequence[str]) -> list[messages.Purged]:
        """Forget dead executions; one answer per id, in order.

        When the answer to a first attempt was lost, the repeat may say "unknown" for what the
        first one purged.
        """
        results: list[messages.Purged] = []
        for batch in in_batches(execution_ids):
            body = encode_request({"execution_ids": batch})
            call = Call("POST", "/v1/dead/purge", messages.PurgeAnswers, body)
            results.extend((await self._call(call)).results)
        return results

    async def replay_matching(
        self,
        *,
        queue: str | None = None,
        job: str | None = None,
        error_type: str | None = None,
        reason: DeadReason | None = None,
        died_after: str | int | None = None,
        died_before: str | int | None = None,
        limit: int | None = None,
    ) -> int:
        """Replay all that is dead now and matches, or the newest `limit`; returns how many.

        What dies while this goes on is left alone, also what was replayed and died again. A
        call that failed midway, which a note on its exception tells, can be made again. Dead
        letters of cancelled jobs stay. Raises `NotFound` for the queue.
        """
        selection = DeadSelection(
            queue=queue,
            job_id=job,
            error_type=error_type,
            reason=reason,
            died_after=died_after,
            died_before=died_before,
        )
        return await self._move("replay", selection, limit)

    async def purge_matching(
        self,
        *,
        queue: str | None = None,
        job: str | None = None,
        error_type: str | None = None,
        reason: DeadReason | None = None,
        died_after: str | int | None = None,
        died_before: str | int | None = None,
        limit: int | None = None,
    ) -> int:
        """Forget all that is dead now and matches, or the newest `limit`; returns how many.

        As with `replay_matching`; given nothing, this empties the dead letters.
        """
        selection = DeadSelection(
            queue=queue,
            job_id=job,
            error_type=error_type,
            reason=reason,
            died_after=died_after,
            died_before=died_before,
        )
        return await self._move("purge", selection, limit)

    async def _move(self, verb: str, selection: DeadSelection, limit: int | None) -> int:
        """Go through a selection page by page, from the newest of now to older ones."""
        newest = await self._newest(selection)
        if newest is None:
            return 0
        # A page that is repeated, for its answer was lost, must not meet what died since.
        chosen = {**_given(selection), "died_before": newest}
        moved = matched = 0
        cursor: str | None = None
        while limit is None or matched < limit:
            size = MAX_BATCH if limit is None else min(limit - matched, MAX_BATCH)
            body = encode_request({**chosen, "limit": size, "cursor": cursor})
            call = Call("POST", f"/v1/dead/{verb}-matching", messages.DeadMoved, body)
            try:
                page = await self._call(call)
            except TimeballError as error:
                error.add_note(f"{moved} dead letters of earlier pages were moved before.")
                raise
            moved += page.moved
            matched += page.matched
            if (cursor := page.cursor) is None:
                break
        return moved

    async def _newest(self, selection: DeadSelection) -> str | None:
        """Tell up to when the newest of a selection had died; None when there is nothing in it."""
        query: dict[str, str | int | None] = {**_given(selection), "limit": 1}
        query["job"] = query.pop("job_id", None)
        async for letter in self._execution_pages("/v1/dead", query, "strong", 0):
            assert letter.finished_at is not None, "it is dead"
            died = datetime.fromisoformat(letter.finished_at) + timedelta(milliseconds=1)
            return died.isoformat()
        return None

    async def _execution_pages(
        self,
        path: str,
        query: dict[str, str | int | None],
        consistency: Consistency,
        min_index: int,
    ) -> AsyncIterator[messages.ExecutionView]:
        cursor: str | None = None
        while True:
            fresh = self._fresh(consistency, min_index)
            page = await self._get(path, messages.ExecutionList, **query, **fresh, cursor=cursor)
            for execution in page.executions:
                yield execution
            if (cursor := page.cursor) is None:
                return


def _given(selection: DeadSelection) -> dict[str, str | int]:
    names = ("queue", "job_id", "error_type", "reason", "died_after", "died_before")
    fields = ((name, getattr(selection, name)) for name in names)
    return {name: value for name, value in fields if value is not None}
