"""The calls of workers: what they are told, whoever runs them and wherever."""

from __future__ import annotations

from timeball.client import messages
from timeball.client.calls import Calls, segment
from timeball.client.flow import Call
from timeball.client.messages import Consistency


class WorkerCalls(Calls):
    """What workers can be told; part of `Client`.

    A worker is known by the name that it claims under; nobody checks that there is one. What it
    is told holds until it is resumed, or for a day, for every program of that name. It gets no
    more executions from then on, and learns why with its next heartbeat or claim: at once, if one
    waits. All of this is safe to repeat, and is repeated on another node when an answer was lost.
    Raises `InvalidRequest` for the name of none, and `Overloaded` when too many workers are told
    something.
    """

    async def worker(
        self, name: str, *, consistency: Consistency = "applied", min_index: int = 0
    ) -> messages.WorkerDetails:
        """Read what a worker is told."""
        fresh = self._fresh(consistency, min_index)
        return await self._get(f"/v1/workers/{segment(name)}", messages.WorkerDetails, **fresh)

    async def quiet_worker(self, name: str) -> messages.WorkerDetails:
        """Tell a worker to claim no more and to finish what it has. It stays, to be resumed."""
        return await self._instruct(name, "quiet")

    async def terminate_worker(self, name: str) -> messages.WorkerDetails:
        """Tell a worker to claim no more, to finish what it has, and to end, as on SIGTERM."""
        return await self._instruct(name, "terminate")

    async def resume_worker(self, name: str) -> messages.WorkerDetails:
        """Take back what a worker is told; one that has ended does not come back."""
        return await self._instruct(name, "resume")

    async def _instruct(self, name: str, verb: str) -> messages.WorkerDetails:
        path = f"/v1/workers/{segment(name)}/{verb}"
        return await self._call(Call("POST", path, messages.WorkerDetails))
