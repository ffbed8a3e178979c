"""The nemesis: carries out one fault after another, and waits for the cluster to come round.

Each fault strikes, stands for a while, and is healed; once nothing is broken any more, every node
must become ready and one must lead and serve, or the fault is never overcome, which a checker
finds. Faults that have an instant of their own strike then, though another may still stand.
Everything that is done is recorded, each event right after the deed.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
from collections.abc import Callable, Iterable, Iterator
from typing import Literal

from timeball.bench.chaos.plan import Fault
from timeball.bench.chaos.proxied import CLIENTS, ProxiedCluster
from timeball.bench.chaos.proxy import REFUSED, SILENT, Rule
from timeball.bench.history import (
    FaultHealed,
    FaultOvercome,
    FaultStruck,
    NodeEnded,
    ProcessSignalled,
    Recorder,
    Signal,
)
from timeball.bench.watching import Nodes
from timeball.cluster.localcluster import NodeFailed

LOOK_S = 0.7
"""How long before a fault's instant it is asked who leads: longer than a silent node is waited for.
"""
LATE_MS = 20
"""A fault that would miss its instant by more is left out."""
OVERCOME_S = 30.0
"""How long after its healing a fault may be felt before it counts as never overcome."""
SLOW = Rule(delay_ms=20, jitter_ms=40)
LOSSY = Rule(delay_ms=1, jitter_ms=4, lost=0.03, repeat_ms=200, broken=0.001)

Way = tuple[str, str]


class NotOvercome(Exception):
    """The cluster did not come round after a fault was healed; there is nothing left to try."""


class Nemesis:
    """Does to a cluster what a schedule says. `tell` hears of each fault."""

    def __init__(
        self,
        cluster: ProxiedCluster,
        nodes: Nodes,
        recorder: Recorder,
        tell: Callable[[str], None],
    ) -> None:
        self._cluster = cluster
        self._nodes = nodes
        self._recorder = recorder
        self._tell = tell
        self._standing = 0
        """How many faults stand."""
        self._recovering = 0
        """How many are healed, and not overcome though nothing is broken any more."""
        self._whole = asyncio.Event()
        """Set while no fault stands."""

    async def rage(self, faults: Iterator[Fault], until_s: float) -> None:
        """Carry out faults until the loop's clock says `until_s`; raises NotOvercome."""
        clock = asyncio.get_running_loop().time
        while clock() < until_s:
            fault = next(faults)
            await self._inflict(fault, (await self._nodes.leader()).node)
            await asyncio.sleep(fault.rest_s)

    async def strike(self, faults: Iterable[tuple[int, Fault]]) -> None:
        """Carry out each fault at its instant (epoch ms of the wall clock), overcome or not.

        Left out is what would strike a cluster that has yet to come round though nothing is
        broken, for then nobody could tell which fault it did not overcome. Returns when all are
        overcome; raises NotOvercome.
        """
        tasks: set[asyncio.Task[None]] = set()
        try:
            for at_ms, fault in faults:
                await self._until(at_ms - round(LOOK_S * 1000))
                for task in [task for task in tasks if task.done()]:
                    tasks.discard(task)
                    task.result()
                leader = None if self._recovering else (await self._nodes.leader()).node
                await self._until(at_ms)
                late = self._recorder.clock_us() // 1000 > at_ms + LATE_MS
                if leader is None or self._recovering or late:
                    self._tell(f"{fault.kind} is left out: the cluster has yet to come round")
                    continue
                tasks.add(asyncio.create_task(self._inflict(fault, leader)))
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _until(self, at_ms: int) -> None:
        """Sleep until the recorder's clock shows an instant."""
        while (left_us := at_ms * 1000 - self._recorder.clock_us()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(left_us / 1e6)

    async def _inflict(self, fault: Fault, leader: str) -> None:
        followers = sorted(set(self._cluster.names) - {leader})
        chosen = followers[fault.pick % 2]
        names = self._cluster.names
        match fault.kind:
            case "kill_leader":
                await self._kill(fault, leader, [leader])
            case "kill_follower":
                await self._kill(fault, leader, [chosen])
            case "kill_two":
                pairs = list(itertools.combinations(names, 2))
                await self._kill(fault, leader, list(pairs[fault.pick % len(pairs)]))
            case "power_off":
                await self._kill(fault, leader, names)
            case "kill_in_snapshot":
                target = names[fault.pick % len(names)]
                await self._nodes.snapshot(target)
                await self._kill(fault, leader, [target])
            case "pause_leader" | "freeze_leader":
                await self._pause(fault, leader, leader)
            case "pause_follower" | "freeze_follower":
                await self._pause(fault, leader, chosen)
            case "stop_leader":
                await self._stop(fault, leader, [leader])
            case "rolling_restart":
                first = fault.pick % len(names)
                await self._stop(fault, leader, names[first:] + names[:first])
            case "slow_links":
                await self._govern(fault, leader, names, _among(names), SLOW)
            case "lossy_links":
                await self._govern(fault, leader, names, _among(names), LOSSY)
            case "refuse_leader":
                ways = _between(leader, followers)
                await self._govern(fault, leader, [leader], ways, REFUSED)
            case _:
                targets, ways = _cut_by(fault, leader, followers)
                await self._govern(fault, leader, targets, ways, SILENT)

    # --- processes -----------------------------------------------------------------------------

    async def _kill(self, fault: Fault, leader: str, targets: list[str]) -> None:
        for name in targets:
            self._signal(name, "kill", leader)
        self._struck(fault, targets, leader)
        await asyncio.gather(*(self._ended(name, "kill") for name in targets))
        await asyncio.sleep(fault.hold_s)
        for name in targets:
            await self._start(name)
        await self._healed(fault)

    async def _pause(self, fault: Fault, leader: str, target: str) -> None:
        self._signal(target, "stop", leader)
        self._struck(fault, [target], leader)
        await asyncio.sleep(fault.hold_s)
        self._signal(target, "continue", leader)
        await self._healed(fault)

    async def _stop(self, fault: Fault, leader: str, targets: list[str]) -> None:
        """Ask one node after another to end, and start it anew."""
        for place, name in enumerate(targets):
            self._signal(name, "terminate", leader)
            if not place:
                self._struck(fault, targets, leader)
            await self._ended(name, "terminate")
            await asyncio.sleep(fault.hold_s)
            await self._start(name)
            if place + 1 < len(targets):
                await self._overcome(f"{name} restarted")
        await self._healed(fault)

    def _signal(self, name: str, what: Signal, leader: str) -> None:
        self._cluster.signal(name, _NUMBERS[what])
        self._note(name, what, led=name == leader)

    def _note(self, name: str, what: Signal, *, led: bool = False) -> None:
        self._recorder.record(
            ProcessSignalled(**self._recorder.stamp(), process=name, signal=what, led=led)
        )

    async def _ended(self, name: str, asked: Literal["kill", "terminate"]) -> None:
        try:
            async with asyncio.timeout(OVERCOME_S):
                code = await self._cluster.wait(name)
        except TimeoutError:
            raise NotOvercome(f"{name} does not end by SIGTERM") from None
        self._recorder.record(
            NodeEnded(**self._recorder.stamp(), node=name, code=code, asked=asked)
        )

    async def _start(self, name: str) -> None:
        self._note(name, "start")
        await self._cluster.start_node(name)

    # --- links ---------------------------------------------------------------------------------

    async def _govern(
        self, fault: Fault, leader: str, targets: list[str], ways: Iterable[Way], rule: Rule
    ) -> None:
        self._cluster.links.govern(ways, rule)
        self._struck(fault, targets, leader)
        await asyncio.sleep(fault.hold_s)
        self._cluster.links.clear()
        await self._healed(fault)

    # --- coming round --------------------------------------------------------------------------

    def _struck(self, fault: Fault, targets: list[str], leader: str) -> None:
        self._standing += 1
        self._whole.clear()
        event = FaultStruck(
            **self._recorder.stamp(),
            number=fault.number,
            kind=fault.kind,
            targets=targets,
            leader=leader,
        )
        self._recorder.record(event)
        self._tell(f"{fault.kind} {', '.join(targets)} for {fault.hold_s:g} s ({leader} led)")

    async def _healed(self, fault: Fault) -> None:
        self._recorder.record(FaultHealed(**self._recorder.stamp(), number=fault.number))
        self._standing -= 1
        if not self._standing:
            self._whole.set()
        await self._whole.wait()
        self._recovering += 1
        await self._overcome("healed")
        self._recovering -= 1
        self._recorder.record(FaultOvercome(**self._recorder.stamp(), number=fault.number))

    async def _overcome(self, since: str) -> None:
        try:
            await self._cluster.wait_ready(timeout_s=OVERCOME_S)
        except TimeoutError:
            text = f"not all nodes are ready {OVERCOME_S:g} s after: {since}"
            raise NotOvercome(text) from None
        except NodeFailed as failure:
            code = -1 if failure.code is None else failure.code
            self._recorder.record(
                NodeEnded(**self._recorder.stamp(), node=failure.name, code=code, asked=None)
            )
            raise NotOvercome(str(failure)) from failure


_NUMBERS = {
    "kill": signal.SIGKILL,
    "stop": signal.SIGSTOP,
    "continue": signal.SIGCONT,
    "terminate": signal.SIGTERM,
}


def _among(names: Iterable[str]) -> list[Way]:
    return list(itertools.permutations(names, 2))


def _between(one: str, others: Iterable[str]) -> list[Way]:
    return [way for other in others for way in ((one, other), (other, one))]


def _cut_by(fault: Fault, leader: str, followers: list[str]) -> tuple[list[str], list[Way]]:
    """The nodes that a cut is about, and the ways that it closes."""
    chosen = followers[fault.pick % 2]
    match fault.kind:
        case "isolate_leader":
            return [leader], _between(leader, followers)
        case "vanish_leader":
            return [leader], _between(leader, [*followers, CLIENTS])
        case "isolate_follower":
            return [chosen], _between(chosen, {leader, *followers} - {chosen})
        case "mute_leader":
            return [leader], [(leader, other) for other in followers]
        case "deaf_leader":
            return [leader], [(other, leader) for other in followers]
        case "one_way_link":
            ways = _among([leader, *followers])
            way = ways[fault.pick % len(ways)]
            return list(way), [way]
        case "cut_link":
            return [leader, chosen], _between(leader, [chosen])
        case "cut_clients":
            return [leader], _between(leader, [CLIENTS])
        case _:
            raise AssertionError(f"no such kind of fault: {fault.kind}")
