"""Somebody who changes the settings of queues, and the judge of what is leased under them.

The judge goes by the leases that the state of a node holds after each entry, not by its counts.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Iterator

from sim_clients import Client, Surroundings

from timeball.client import messages
from timeball.cluster.state.machine import Applied, StateMachine
from timeball.cluster.state.operations import NUMBERED_PER_ENTRY
from timeball.cluster.state.records import Execution

QUEUES = ("even", "odd")
MEAN_PAUSE_S = 1.2


class Operator(Client):
    """Pauses queues and bounds them until the run's end, and then lets them go."""

    def __init__(self, around: Surroundings, name: str, rng: random.Random) -> None:
        super().__init__(around, name, rng)
        self.ended = asyncio.Event()
        """Whether nothing is held back any more."""
        self.process.start(self._operate())

    async def _operate(self) -> None:
        around, rng = self.around, self.rng
        while True:
            await asyncio.sleep(rng.expovariate(1 / MEAN_PAUSE_S))
            if around.true_ms() >= around.ends_ms:
                break
            await self._put(rng.choice(QUEUES), self._settings())
        for queue in QUEUES:
            while not await self._put(queue, messages.QueueSettings()):
                pass
        self.ended.set()

    def _settings(self) -> messages.QueueSettings:
        rng = self.rng
        rate = messages.RateLimit(executions=rng.choice([5, 20]), per_ms=1_000, burst=3)
        return messages.QueueSettings(
            state=rng.choice(["active", "active", "active", "paused"]),
            max_concurrency=rng.choice([None, None, 1, 2, 4]),
            max_concurrency_per_key=rng.choice([None, 1, 1, 2]),
            rate_limit=rng.choice([None, None, rate]),
        )

    async def _put(self, queue: str, settings: messages.QueueSettings) -> bool:
        answer = await self.ask(
            "PUT", f"/v1/queues/{queue}", settings, kind=messages.QueueDetails, patience_s=3.0
        )
        if not isinstance(answer, messages.QueueDetails):
            return False
        self.around.log("configured", queue, settings.state, answer.version)
        return True


class LimitsJudge:
    """What must hold of the leases of one node's state, after each entry that it applies."""

    def __init__(self) -> None:
        self.examined = 0
        """Leases granted in queues with settings."""
        self._granted: defaultdict[str, list[int]] = defaultdict(list)
        """Log-times of leases since the settings of a queue changed last."""

    def complaints(self, state: StateMachine, index: int, applied: Applied) -> Iterator[str]:
        """What is not as it must be after the entry at `index`. A queue whose settings this very
        entry changed is not judged: leases that are held go on."""
        for queue in applied.queues:
            self._granted.pop(queue, None)
        granted: defaultdict[str, list[Execution]] = defaultdict(list)
        for token, execution in state.leased.items():
            if token // NUMBERED_PER_ENTRY == index:
                granted[execution.job.queue].append(execution)
        for queue, new in granted.items():
            if queue in state.configured and queue not in applied.queues:
                self.examined += len(new)
                for complaint in self._judge(state, queue, new):
                    yield f"limits: {queue}: {complaint}"

    def _judge(self, state: StateMachine, queue: str, new: list[Execution]) -> Iterator[str]:
        settings = state.configured[queue].settings
        held = [one for one in state.leased.values() if one.job.queue == queue]
        keys = Counter(one.job.options.concurrency_key for one in held)
        if settings.state == "paused":
            yield f"{len(new)} are handed out while it is paused"
        if 0 < settings.max_concurrency < len(held):
            yield f"{len(held)} are leased, and {settings.max_concurrency} may be"
        most = settings.max_concurrency_per_key
        for key in {one.job.options.concurrency_key for one in new} - {""}:
            if 0 < most < keys[key]:
                yield f"{keys[key]} of key {key} are leased, and {most} may be"
        rate = settings.rate_limit
        if rate is not None:
            times = self._granted[queue]
            times += [state.log_time_ms] * len(new)
            for at, since_ms in enumerate(times):
                grown = (state.log_time_ms - since_ms) * rate.executions / rate.per_ms
                if len(times) - at > rate.burst + grown:
                    yield f"{len(times) - at} are handed out in {state.log_time_ms - since_ms} ms"
                    break
