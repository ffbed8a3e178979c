"""A new leader takes up its duties: whole nodes, without their HTTP side, under virtual time."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

from raft_harness import Cluster, Endpoint, Recorder, virtual

from timeball.cluster.dispatch.messages import ClaimRequest
from timeball.cluster.node import Node
from timeball.cluster.settings import parse_settings
from timeball.cluster.state.operations import CreateJobs, NewJob

EPOCH_MS = 1_764_480_000_000
CONFIG = "name = 'harbour'\nsecret = '0123456789abcdef'\n" + "".join(
    f"[[nodes]]\nname = '{name}'\nraft = '127.0.0.1:{port}'\nhttp = '127.0.0.1:{port + 10}'\n"
    for name, port in zip("abc", range(7101, 7104), strict=True)
)


class Witness(Recorder):
    """Notes how far a node had applied its log when it was told to lead, and when it began."""

    def __init__(self, node: Node) -> None:
        super().__init__()
        self._node = node
        self.told_at: list[tuple[int, int]] = []
        """Applied index, and index of the own barrier."""
        self.leases_at_start: list[int] = []
        start = node.dispatcher.start

        def started(term: int) -> None:
            self.leases_at_start.append(len(node.state.leased))
            start(term)

        node.dispatcher.start = started  # type: ignore[method-assign]

    def on_leadership(self, term: int | None) -> None:
        super().on_leadership(term)
        if term is not None:
            engine: Any = self._node.consensus._engine
            self.told_at.append((engine.applied_index, engine.leadership.barrier_index))


class Nodes(Cluster):
    """The cluster of the harness, with whole nodes as members."""

    async def start_nodes(self, *names: str) -> None:
        for name in names or self.members:
            member: Any = self.members[name]
            member.endpoint = Endpoint(self.wire, name)
            member.node = Node(
                parse_settings(CONFIG, Path("/data/timeball.toml")),
                name,
                wall_clock_ms=lambda: EPOCH_MS + int(self.loop.time() * 1000),
                clock=self.loop.time,
                rng=random.Random(self.rng.random()),
                network=member.endpoint,
                disk=member.disk,
            )
            member.consensus, member.machine = member.node.consensus, member.node.state
            member.recorder = Witness(member.node)
            member.consensus.add_observer(member.recorder)
            await member.consensus.start()
            member.up = True

    def kill(self, name: str, power_lost: bool = False) -> None:
        super().kill(name, power_lost)
        node: Any = self.members[name]
        node.node.dispatcher.stop()

    async def serving(self) -> Node:
        """The node that has taken office."""

        def found() -> Node | None:
            up: list[Any] = [member for member in self.members.values() if member.up]
            return next((member.node for member in up if member.node.serving), None)

        return await self.wait(found)


def _claim(number: int, request_id: str, wait_ms: int = 0) -> ClaimRequest:
    return ClaimRequest(
        queue="q",
        worker=f"w{number}",
        request_id=request_id,
        max_executions=1,
        wait_ms=wait_ms,
        lease_ms=30_000,
    )


@virtual
async def test_raft13_a_leader_killed_after_500_claims_is_followed_by_one_that_knows_them():
    cluster = Nodes(seed=13)
    await cluster.start_nodes()
    old = await cluster.serving()
    await old.propose(CreateJobs("", [NewJob("q", b"\xc0") for _ in range(600)]))
    asked = [
        asyncio.create_task(old.dispatcher.claim(_claim(number, f"claim {number}", 1000)))
        for number in range(500)
    ]
    granted = await asyncio.gather(*asked)  # this very turn is the last of the leader
    cluster.kill(old.me.name, power_lost=True)
    tokens = [lease.token for (lease,) in granted]
    assert len(set(tokens)) == 500

    new = await cluster.serving()
    witness: Any = cluster[new.me.name].recorder
    ((applied, barrier),) = witness.told_at
    assert applied >= barrier, "nothing is told before the barrier of the own term is applied"
    assert witness.leases_at_start == [500], "it begins with all that was ever granted"
    assert set(new.state.leased) == set(tokens)

    repeats = await asyncio.gather(
        *(new.dispatcher.claim(_claim(n, f"claim {n}")) for n in range(500))
    )
    assert [lease.token for (lease,) in repeats] == tokens, "each gets its own again, no other"
    more = await asyncio.gather(
        *(new.dispatcher.claim(_claim(n, f"another {n}", 500)) for n in range(150))
    )
    fresh = [lease.token for leases in more for lease in leases]
    assert len(fresh) == 100, "what was claimed before is not handed out again"
    assert min(fresh) > max(tokens), "tokens rise over the change of leader"

    await cluster.start_nodes(old.me.name)
    assert not cluster[old.me.name].node.ready, "a node that has just started is of no use yet"
    await cluster.settled()
    assert not cluster[old.me.name].node.serving
