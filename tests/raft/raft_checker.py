"""What must hold of any cluster under any schedule; it knows nothing of the engine.

No two nodes apply different entries at one index, no term has two leaders, nothing acknowledged is
lost, and nothing is applied twice.
"""

from __future__ import annotations

from raft_harness import Cluster, Member

from timeball.cluster.raft.errors import NotLeader
from timeball.cluster.raft.interface import Observer


class Checker:
    """Shared by all nodes of a cluster, over all their lives."""

    def __init__(self) -> None:
        self.entries: dict[int, tuple[int, bytes]] = {}
        self.leaders: dict[int, str] = {}
        self.waiting: dict[tuple[str, int, int], bytes] = {}
        self.acknowledged: list[tuple[int, bytes]] = []

    def of(self, name: str) -> Observer:
        checker = self

        class One(Observer):
            def on_applied(self, index, term, entry, applied):
                assert checker.entries.setdefault(index, (term, entry)) == (term, entry)
                if checker.waiting.pop((name, index, term), None) == entry:
                    checker.acknowledged.append((index, entry))

            def on_leadership(self, term):
                if term is not None:
                    assert checker.leaders.setdefault(term, name) == name

        return One()

    async def start(self, cluster: Cluster, name: str) -> None:
        """Start a node under this checker's eyes."""
        await cluster.start(name, observers=[self.of(name)])
        for index, entry in cluster[name].machine.applied:
            assert self.entries[index][1] == entry

    def propose_at(self, member: Member, entry: bytes) -> None:
        """Propose an entry, if the node takes it; it counts as acknowledged when it applies it."""
        term = member.consensus.term
        try:
            index = member.consensus.append(entry)
        except NotLeader:
            return
        self.waiting[member.name, index, term] = entry

    def nothing_is_lost(self, cluster: Cluster) -> None:
        """What was acknowledged is on every node, once."""
        for member in cluster.members.values():
            assert member.consensus.halted is None, f"{member.name}: {member.consensus.halted}"
            applied = dict(member.machine.applied)
            assert len(applied) == len(member.machine.applied), "an entry was applied twice"
            for index, entry in self.acknowledged:
                assert applied.get(index) == entry, "an acknowledged entry is lost"
