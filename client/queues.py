"""The calls of queues: how they stand, and what bounds what they hand out."""

from __future__ import annotations

from collections.abc import AsyncIterator

from msgspec import UNSET, UnsetType

from timeball.client import messages
from timeball.client.calls import Calls, segment
from timeball.client.flow import Call, encode_request
from timeball.client.messages import Consistency, QueueState, RateLimit


class QueueCalls(Calls):
    """What can be asked of queues; part of `Client`.

    A change says how the settings are to be, so it is safe to repeat, and is repeated on another
    node when an answer was lost. With `if_version` it is made only if nobody changed the settings
    since they were at that version (0: the default); it raises `PreconditionFailed` else, and
    `OutcomeUnknown` when what changed them may be an earlier attempt of the call. Changes raise
    `NotFound` for a queue that the cluster does not serve, `InvalidRequest` for the name of none,
    and `Overloaded` when too many queues have settings.
    """

    async def queue(
        self, name: str, *, consistency: Consistency = "applied", min_index: int = 0
    ) -> messages.QueueDetails:
        """Read a queue. One that no job has used yet is empty and has default settings."""
        fresh = self._fresh(consistency, min_index)
        return await self._get(f"/v1/queues/{segment(name)}", messages.QueueDetails, **fresh)

    async def queues(
        self,
        *,
        page_size: int = 100,
        consistency: Consistency = "applied",
        min_index: int = 0,
    ) -> AsyncIterator[messages.QueueDetails]:
        """Iterate over the queues that hold jobs, have settings or are configured, by name."""
        cursor: str | None = None
        while True:
            fresh = self._fresh(consistency, min_index)
            page = await self._get(
                "/v1/queues", messages.QueueList, limit=page_size, **fresh, cursor=cursor
            )
            for queue in page.queues:
                yield queue
            if (cursor := page.cursor) is None:
                return

    async def put_queue(
        self, name: str, settings: messages.QueueSettings, *, if_version: int | None = None
    ) -> messages.QueueDetails:
        """Give a queue all its settings; `QueueSettings()` is the default, which bounds nothing."""
        return await self._configure("PUT", name, "", encode_request(settings), if_version)

    async def update_queue(
        self,
        name: str,
        *,
        state: QueueState | UnsetType = UNSET,
        max_concurrency: int | UnsetType | None = UNSET,
        max_concurrency_per_key: int | UnsetType | None = UNSET,
        rate_limit: RateLimit | UnsetType | None = UNSET,
        if_version: int | None = None,
    ) -> messages.QueueDetails:
        """Change some settings of a queue; None takes a bound away.

        They hold at once, for what is handed out from then on: leases that are held go on.
        """
        update = messages.QueueUpdate(
            state=state,
            max_concurrency=max_concurrency,
            max_concurrency_per_key=max_concurrency_per_key,
            rate_limit=rate_limit,
        )
        return await self._configure("PATCH", name, "", encode_request(update), if_version)

    async def pause_queue(
        self, name: str, *, if_version: int | None = None
    ) -> messages.QueueDetails:
        """Let a queue hand nothing out. It takes jobs, and leases that are held go on."""
        return await self._configure("POST", name, "/pause", None, if_version)

    async def drain_queue(
        self, name: str, *, if_version: int | None = None
    ) -> messages.QueueDetails:
        """Let a queue take no new jobs, and hand out what is there."""
        return await self._configure("POST", name, "/drain", None, if_version)

    async def resume_queue(
        self, name: str, *, if_version: int | None = None
    ) -> messages.QueueDetails:
        """Let a paused or draining queue take jobs and hand them out; its limits stay."""
        return await self._configure("POST", name, "/resume", None, if_version)

    async def _configure(
        self, method: str, name: str, verb: str, body: bytes | None, if_version: int | None
    ) -> messages.QueueDetails:
        path = f"/v1/queues/{segment(name)}{verb}"
        call = Call(method, path, messages.QueueDetails, body, if_version=if_version)
        return await self._call(call)
