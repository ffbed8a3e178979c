"""Three nodes on real sockets, real disks and uvloop: the parts fit where no test fakes them."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop
from raft_harness import ListMachine, encode_entry

from timeball.cluster.raft.commit import GroupCommit
from timeball.cluster.raft.consensus import Consensus
from timeball.cluster.raft.errors import Damaged, Misconfigured
from timeball.cluster.raft.settings import CommitSettings, RaftSettings


class Node:
    def __init__(self, name: str, members: dict[str, tuple[str, int]], folder: Path) -> None:
        loop = asyncio.get_running_loop()
        self.machine = ListMachine()
        self.consensus = Consensus(
            name,
            members,
            folder / name,
            b"the secret of the cluster",
            self.machine,
            RaftSettings(snapshot_entries=40, trailing_entries=5, snapshot_chunk_bytes=500),
            clock=loop.time,
            rng=random.Random(name),
        )
        self.commit = GroupCommit(
            self.consensus,
            encode_entry,
            lambda: 1,
            CommitSettings(),
            last_log_time=lambda: 0,
            clock=loop.time,
        )


async def until(condition: Callable[[], Any]) -> Any:
    async with asyncio.timeout(20):
        while not (found := condition()):  # noqa: ASYNC110 - other nodes set no event here
            await asyncio.sleep(0.01)
    return found


def members_on_loopback() -> dict[str, tuple[str, int]]:
    sockets = {name: socket.create_server(("127.0.0.1", 0)) for name in "abc"}
    members = {name: ("127.0.0.1", s.getsockname()[1]) for name, s in sockets.items()}
    for s in sockets.values():
        s.close()
    return members


def leader_of(nodes: dict[str, Node]) -> Node | None:
    return next((n for n in nodes.values() if n.consensus.leading_term is not None), None)


def test_a_cluster_lives_and_comes_back(tmp_path: Path):
    members = members_on_loopback()

    async def live() -> None:
        nodes = {name: Node(name, members, tmp_path) for name in members}
        for node in nodes.values():
            await node.consensus.start()
        leader = await until(lambda: leader_of(nodes))
        for number in range(60):
            await leader.commit.propose([number, "x" * 50])
        await until(lambda: len({n.machine.digest() for n in nodes.values()}) == 1)
        (gone,) = [name for name, node in nodes.items() if node is leader]
        await leader.consensus.stop()
        del nodes[gone]
        leader = await until(lambda: leader_of(nodes))
        for number in range(60):
            await leader.commit.propose([number, "y" * 50])
        nodes[gone] = Node(gone, members, tmp_path)
        await nodes[gone].consensus.start()
        await until(lambda: len({n.machine.digest() for n in nodes.values()}) == 1)
        assert nodes[gone].consensus.stats.snapshots_installed == 1
        for node in nodes.values():
            await node.consensus.stop()

    async def come_back() -> None:
        nodes = {name: Node(name, members, tmp_path) for name in members}
        for node in nodes.values():
            await node.consensus.start()
        await until(lambda: leader_of(nodes))
        await until(lambda: all(len(n.machine.applied) >= 120 for n in nodes.values()))
        for node in nodes.values():
            await node.consensus.stop()

    uvloop.run(live())
    uvloop.run(come_back())


def test_a_node_refuses_anothers_directory_and_a_second_process(tmp_path: Path):
    members = members_on_loopback()

    async def run() -> None:
        first = Node("a", members, tmp_path)
        await first.consensus.start()
        with pytest.raises(Misconfigured, match="in use by another process"):
            await Node("a", members, tmp_path).consensus.start()
        await first.consensus.stop()
        (tmp_path / "a").rename(tmp_path / "b")
        with pytest.raises(Misconfigured, match="belongs to node 'a'"):
            await Node("b", members, tmp_path).consensus.start()
        (tmp_path / "b" / "metadata").write_bytes(b"")
        (tmp_path / "b").rename(tmp_path / "a")
        with pytest.raises(Damaged, match="metadata"):
            await Node("a", members, tmp_path).consensus.start()

    uvloop.run(run())
