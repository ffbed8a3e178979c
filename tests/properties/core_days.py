"""Random days of a leader's dispatch, told so that two builds of it can be compared.

The world is that of dispatch's own tests: real state, wheels and dispatcher in virtual time.
"""

from __future__ import annotations

import asyncio
import importlib.util
import random
from pathlib import Path
from typing import Any

from timeball.cluster.dispatch.leases import Lease
from timeball.cluster.raft.errors import OutcomeUnknown, Overloaded
from timeball.cluster.state.operations import (
    CancelJobs,
    ConfigureQueue,
    CreateJobs,
    Every,
    Fail,
    Failure,
    InstructWorker,
    NewJob,
    Options,
    Release,
    RetryPolicy,
    Succeed,
    Success,
    Timetable,
)
from timeball.cluster.state.queue_settings import QueueChange, RateLimit

STEPS = 250
POLICY = RetryPolicy(max_attempts=3, initial_ms=300, jitter_pct=0)
OPTIONS = [
    *[None] * 4,
    *(Options("k1"), Options("k2", ("a",)), Options(requires=("a", "b"))),
    Options(expires_after_ms=400),
]
TIMETABLES = [
    *[None] * 6,
    Timetable((Every(700, 0),)),
    Timetable((Every(300, 0),), overlap="skip"),
    Timetable((Every(900, 0),), overlap="buffer_one", catch_up="all", jitter_ms=200),
    Timetable((Every(500, 0),), overlap="cancel_running", catch_up="none"),
]


def _load_world() -> Any:
    path = Path(__file__).resolve().parents[1] / "unit" / "dispatch" / "conftest.py"
    spec = importlib.util.spec_from_file_location("dispatch_world", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.World


World = _load_world()


def a_day(seed: int) -> list[str]:
    """What was proposed, answered and told on a day, in the order of its hours."""
    return asyncio.run(Day(random.Random(seed)).run())


class Day:
    """One world, and what is under way in it."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.world = World()
        self.term = 1
        self.told: list[str] = []
        self.asked: list[asyncio.Task[list[Lease]]] = []
        self.leases: list[Lease] = []

    async def run(self) -> list[str]:
        await self.world.lead(self.term, step=self.rng.choice([2, 1_000]))
        for _ in range(STEPS):
            action = self.rng.choice(self.ACTIONS)
            await action(self)
            await self.world.settle()
            self.tell(action.__name__)
        self.recover()
        await self.world.pass_ms(5_000)
        self.world.dispatcher.stop()
        await self.world.settle()
        self.tell("the end")
        return [*self.told, self.world.state.digest()]

    def tell(self, what: str) -> None:
        world, dispatcher = self.world, self.world.dispatcher
        done = [task for task in self.asked if task.done()]
        self.asked = [task for task in self.asked if not task.done()]
        seen = world.seen
        self.told.append(
            repr(
                (
                    *(what, world.commit.entries, [self.answer(task) for task in done]),
                    *(seen.lags, seen.parked, seen.expired, seen.taken_over, seen.released),
                    *(seen.failed, seen.refused, dispatcher.waiting_claims()),
                    *(dispatcher.live_leases, world.timers.next_at_ms()),
                    [
                        (
                            dispatcher.ready_depth(queue),
                            dispatcher.oldest_due_ms(queue),
                            dispatcher.held_back_by(queue),
                            dispatcher.waiting_claims(queue),
                        )
                        for queue in "qr"
                    ],
                )
            )
        )
        world.commit.entries.clear()
        seen.lags.clear()

    def answer(self, task: asyncio.Task[list[Lease]]) -> object:
        if task.cancelled():
            return "cancelled"
        if (error := task.exception()) is not None:
            return repr(error)
        self.leases += task.result()
        return [
            (*lease.name(), lease.attempt, lease.deadline_ms, lease.limit_ms, lease.answers)
            for lease in task.result()
        ]

    def propose(self, operation: object) -> None:
        verdict = self.world.commit.propose(operation)
        verdict.add_done_callback(lambda done: done.cancelled() or done.exception())

    def recover(self) -> None:
        self.world.commit.error = None
        if self.world.commit.stalled:
            self.world.commit.stalled = False
            self.world.commit.commit()

    # What happens.

    async def create(self) -> None:
        pick = self.rng.choice
        jobs = [
            NewJob(
                pick("qqr"),
                b"\xc0",
                delay_ms=pick([0, 0, 3, 15, 30, 600, 3_000]),
                timetable=pick(TIMETABLES),
                priority=pick([5, 5, 9, 0]),
                partition_key=pick(["", "", "p", "é"]),
                retry=POLICY,
                timeout_ms=pick([0, 0, 1_500]),
                options=pick(OPTIONS),
            )
            for _ in range(pick([1, 1, 2, 7]))
        ]
        self.propose(CreateJobs("", jobs))

    async def ask(self) -> None:
        pick = self.rng.choice
        self.asked.append(
            self.world.asking(
                pick("qqr"),
                n=pick([1, 1, 3, 50]),
                wait_ms=pick([0, 40, 2_000, 60_000]),
                request_id=pick(["", "", "c1", "c2", f"c{self.rng.random()}"]),
                lease_ms=pick([200, 1_000, 10_000]),
                offered=pick([(), (), ("a",), ("b", "a")]),
                worker=pick(["w1", "w2"]),
            )
        )

    async def cancel_claim(self) -> None:
        if self.asked:
            self.rng.choice(self.asked).cancel()

    async def ask_and_go(self) -> None:
        await self.ask()
        for _ in range(self.rng.randint(0, 4)):
            await asyncio.sleep(0)
        self.asked[-1].cancel()

    async def pass_time(self) -> None:
        await self.world.pass_ms(self.rng.choice([0, 1, 1, 5, 20, 100, 700, 2_500]))

    async def report(self) -> None:
        if not self.leases:
            return
        lease = self.leases.pop(self.rng.randrange(len(self.leases)))
        hold = lease.name()
        self.propose(
            self.rng.choice(
                [
                    *[Succeed([Success(*hold, b"\x01")])] * 3,
                    *(Fail([Failure(*hold, "E")]), Release([hold])),
                ]
            )
        )

    async def heartbeat(self) -> None:
        for lease in self.rng.sample(self.leases, min(len(self.leases), 3)):
            progress = self.rng.choice([None, b"\x01", b"\x02"])
            self.told.append(repr(self.world.dispatcher.heartbeat(*lease.name(), progress)))

    async def lose_an_answer(self) -> None:
        if self.leases:
            self.world.dispatcher.release_unused([self.rng.choice(self.leases)])

    async def cancel_job(self) -> None:
        if self.leases:
            self.propose(CancelJobs([self.rng.choice(self.leases).name()[0]]))

    async def configure(self) -> None:
        rate = self.rng.choice([None, RateLimit(0, 0, 0), RateLimit(2, 300, 3)])
        state = self.rng.choice(["active", "active", "", "paused"])
        change = QueueChange(state, *self.rng.choices([-1, 0, 2], k=2), rate)
        self.propose(ConfigureQueue(self.rng.choice("qr"), -1, change))

    async def instruct(self) -> None:
        self.propose(InstructWorker("w2", self.rng.choice(["quiet", "", ""])))

    async def step_the_clock(self) -> None:
        self.world.wall_offset_ms += self.rng.choice([-400, -50, 30, 900])

    async def disturb(self) -> None:
        """Entries are held up, or refused: for as long as that, or but once."""
        self.recover()
        commit = self.world.commit
        commit.stalled = self.rng.random() < 0.3
        commit.error = self.rng.choice([None, None, OutcomeUnknown("who knows"), Overloaded()])
        if isinstance(commit.error, Overloaded):  # what is refused so is tried again at once
            commit.wake()
            self.world.timers.call_soon(self.recover)

    async def lead_anew(self) -> None:
        self.world.commit.error, self.world.commit.stalled = None, False
        await self.world.lose_leadership(applied_elsewhere=self.rng.random() < 0.5)
        self.term += 1
        self.leases.clear()
        await self.world.lead(self.term, step=self.rng.choice([2, 1_000]))

    ACTIONS = (
        *[create] * 4,
        *[ask] * 6,
        *[pass_time] * 6,
        *[report] * 5,
        *(cancel_claim, ask_and_go, ask_and_go, heartbeat, heartbeat, lose_an_answer, cancel_job),
        *(configure, instruct, step_the_clock, disturb, disturb, lead_anew),
    )
