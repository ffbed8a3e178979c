"""The simulated world itself: processes die and stop whole, disks forget what was not synced."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from sim_checkers import JudgesClock, Ledger
from sim_disk import FaultyDisk
from sim_faults import LEADER, NODE_FAULTS, PAIR_FAULTS, VICTIM_FAULTS, WIDE_FAULTS, plan
from sim_injector import Injector
from sim_loop import Process, SimLoop, Spinning
from sim_net import Endpoint, Network

from timeball.cluster.raft.messages import AppendReply


class World:
    def __init__(self) -> None:
        self.loop = SimLoop()
        self.told: list[tuple[str, float]] = []

    def process(self, name: str) -> Process:
        process = Process(self.loop, name)
        process.start(self._beat(name))
        return process

    async def _beat(self, name: str) -> None:
        while True:
            await asyncio.sleep(1)
            self.told.append((name, self.loop.time()))

    def at(self, when: float, callback) -> None:
        self.loop.call_at_for(None, when, callback)

    def run_to(self, end: float) -> None:
        self.loop.call_at_for(None, end, lambda: None)
        self.loop.run(lambda: self.loop.time() >= end)

    def beats(self, name: str) -> list[float]:
        return [when for who, when in self.told if who == name]


@pytest.fixture
def world():
    world = World()
    yield world
    world.loop.end()
    assert world.loop.failures == []


def test_a_killed_process_does_nothing_any_more(world: World):
    one = world.process("one")
    world.process("two")
    world.at(2.5, one.kill)
    world.run_to(4.5)
    assert world.beats("one") == [1, 2]
    assert world.beats("two") == [1, 2, 3, 4]


def test_a_stopped_process_goes_on_where_it_was(world: World):
    one = world.process("one")
    world.at(1.5, one.stop)
    world.at(3.25, one.resume)
    world.run_to(5)
    assert world.beats("one") == [1, 3.25, 4.25]


def test_what_takes_time_holds_up_its_own_process_alone(world: World):
    one = world.process("one")
    world.process("two")
    one.call_at(1.5, world.loop.consume, 2)
    world.run_to(4.75)
    assert world.beats("one") == [1, 3.5, 4.5]
    assert world.beats("two") == [1, 2, 3, 4]


def test_the_later_parts_of_a_long_turn_come_before_the_next_turn(world: World):
    one = Process(world.loop, "one")
    done: list[str] = []

    def turn() -> None:
        one.call_now(done.append, "at once")
        world.loop.call_soon(lambda: one.call_now(done.append, "next turn"))
        world.loop.consume(1)
        one.call_now(done.append, "later")

    one.call_at(1, turn)
    world.run_to(1.5)
    assert done == ["at once"]
    world.run_to(3)
    assert done == ["at once", "later", "next turn"]
    one.call_at(4, turn)
    world.at(4.5, one.kill)
    world.run_to(6)
    assert done[3:] == ["at once"]


def test_callbacks_that_chase_one_another_are_found(world: World):
    def again() -> None:
        world.loop.call_soon(again)

    world.at(1, again)
    with pytest.raises(Spinning):
        world.run_to(2)


def test_what_a_process_raises_is_a_failure_of_the_run():
    loop = SimLoop()

    async def fail() -> None:
        raise LookupError("a fault")

    Process(loop, "one").start(fail())
    loop.call_at_for(None, 1, lambda: None)
    loop.run(lambda: loop.time() >= 1)
    loop.end()
    assert len(loop.failures) == 1
    assert "LookupError: a fault" in loop.failures[0]


PATH = Path("/data/journal-1")


class Written:
    """A journal of some batches, of which the first are synced, each when the one before is."""

    def __init__(self, world: World, *batches: bytes, synced: int) -> None:
        self.world = world
        self.disk = FaultyDisk(world.loop, random.Random(1))
        self.process = Process(world.loop, "writer")
        began = world.loop.time()
        self.process.call_at(began, self.disk.create, PATH)
        self.process.call_at(began, self.disk.sync_directory, PATH.parent)
        for number, batch in enumerate(batches):
            self.process.call_at(began + number + 1, self.append, batch)
            if number < synced:
                self.process.call_at(began + number + 1, self.sync)
        world.run_to(began + len(batches) + 1)

    def append(self, batch: bytes) -> None:
        self.disk.open(PATH).append(batch)

    def sync(self) -> None:
        self.disk.open(PATH).sync()

    def content(self) -> bytes:
        return self.disk.open(PATH).read(0, 100)


def test_a_sync_takes_its_time(world: World):
    written = Written(world, b"abc", synced=0)
    written.disk.sync_s = 1
    ends: list[float] = []
    written.process.call_at(3, written.sync)
    written.process.call_at(3.1, lambda: ends.append(world.loop.time()))
    world.run_to(6)
    assert 3.5 <= ends[0] <= 4.5


def test_a_crash_keeps_what_was_synced(world: World):
    for seed in range(20):
        written = Written(world, b"abc", b"def", synced=1)
        written.disk.crash(random.Random(seed))
        assert written.content().startswith(b"abc")


@pytest.mark.parametrize(("dies_at", "kept"), [(3.1, set(range(4))), (5, {3})])
def test_who_dies_during_a_sync_has_written_and_not_synced(
    world: World, dies_at: float, kept: set[int]
):
    written = Written(world, b"abc", synced=0)
    written.disk.sync_s = 1
    written.process.call_at(3, written.sync)
    world.at(dies_at, written.disk.interrupt)
    world.run_to(6)
    assert written.content() == b"abc"
    before = dict(written.disk.files)
    sizes = set()
    for seed in range(50):
        written.disk.files = {path: _copy(data) for path, data in before.items()}
        written.disk.durable = dict(written.disk.files)
        written.disk.crash(random.Random(seed))
        sizes.add(len(written.content()))
    assert sizes == kept


def test_who_dies_during_a_sync_does_nothing_after_it(world: World):
    written = Written(world, b"abc", synced=1)
    disk, other = written.disk, PATH.with_name("other")
    disk.sync_s = 1

    def turn() -> None:
        written.append(b"def")
        written.sync()
        written.append(b"ghi")
        disk.replace(PATH, other)
        disk.create(PATH).append(b"new")

    written.process.call_at(3, turn)
    world.run_to(3.1)
    assert disk.names(PATH.parent) == ["journal-1", "other"]
    disk.interrupt()
    assert disk.names(PATH.parent) == ["journal-1"]
    assert written.content() == b"abcdef"


def _copy(data):
    copy = type(data)()
    copy.written, copy.synced = bytearray(data.written), data.synced
    return copy


def test_the_last_batch_of_a_journal_does_not_rot(world: World):
    assert Written(world, b"abc", synced=1).disk.rot() is None
    written = Written(world, b"abc", b"def", synced=2)
    for _ in range(50):
        before = written.content()
        assert written.disk.rot() == PATH.name
        assert written.content()[3:] == b"def"
        assert written.content()[:3] != before[:3]


class Ear:
    def __init__(self) -> None:
        self.heard: list[str] = []

    def on_connected(self, peer: str) -> None:
        self.heard.append(f"{peer} connected")

    def on_disconnected(self, peer: str) -> None:
        self.heard.append(f"{peer} gone")

    def on_message(self, peer: str, message: AppendReply) -> None:
        self.heard.append(f"{message.index} from {peer}")


class Two:
    """Two places, connected."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.network = Network(world.loop, random.Random(1))
        self.ears = {name: Ear() for name in "ab"}
        self.ends = {}
        for name in "ab":
            end = Endpoint(self.network, name, Process(world.loop, name))
            end.process.start(end.start(self.ears[name]))
            self.ends[name] = end
        world.run_to(1)

    def say(self, index: int) -> None:
        self.ends["a"].send("b", AppendReply(1, True, index))


def test_messages_arrive_in_order_unless_told_otherwise(world: World):
    two = Two(world)
    for index in range(20):
        two.say(index)
    world.run_to(2)
    assert two.ears["b"].heard == ["a connected", *(f"{index} from a" for index in range(20))]
    two.ears["b"].heard.clear()
    two.network.between("a", "b").reordering = 0.5
    for index in range(20):
        two.say(index)
    world.run_to(4)
    told = [f"{index} from a" for index in range(20)]
    assert sorted(two.ears["b"].heard) == sorted(told)
    assert two.ears["b"].heard != told


def test_a_cut_takes_one_direction_and_then_the_connection(world: World):
    two = Two(world)
    mend = two.network.cut("a", "b")
    two.say(1)
    world.run_to(1.5)
    assert two.ears["b"].heard == ["a connected"]
    world.run_to(5)
    assert two.ears["b"].heard == ["a connected", "a gone"]
    two.say(2)
    mend()
    world.run_to(6)
    two.say(3)
    world.run_to(7)
    assert two.ears["b"].heard[2:] == ["a connected", "3 from a"]


@pytest.mark.parametrize("vanished", [False, True])
def test_a_host_that_vanishes_is_missed_later_than_a_process(world: World, vanished: bool):
    two = Two(world)
    two.ends["b"].die(vanished=vanished)
    world.run_to(1.5)
    assert ("b gone" in two.ears["a"].heard) is not vanished
    world.run_to(5)
    assert two.ears["a"].heard[-1] == "b gone"


def test_every_kind_of_fault_can_be_injected():
    kinds = NODE_FAULTS | PAIR_FAULTS | WIDE_FAULTS | VICTIM_FAULTS
    for kind in kinds:
        assert callable(getattr(Injector, f"_{kind}"))


def test_seeds_draw_every_kind_and_destroy_one_disk_at_most():
    kinds: set[str] = set()
    for seed in range(300):
        faults = plan(seed).faults
        kinds |= {fault.kind for fault in faults}
        victims = {fault.who for fault in faults if fault.kind in VICTIM_FAULTS}
        assert len(victims) <= 1
        assert LEADER not in victims
    assert kinds == set(NODE_FAULTS | PAIR_FAULTS | WIDE_FAULTS | VICTIM_FAULTS)


def test_the_ledger_sees_what_must_not_be():
    def violations(*calls) -> list[str]:
        ledger = Ledger()
        for name, *arguments in calls:
            getattr(ledger, name)(*arguments)
        return [violation.partition(":")[0] for violation in ledger.violations]

    applied = ("applied", "a", 1, 5, 2, b"entry")
    assert violations(applied, ("applied", "b", 1, 5, 2, b"entry")) == []
    assert violations(applied, ("applied", "b", 1, 5, 2, b"other")) == ["applied"]
    assert violations(applied, ("applied", "b", 1, 5, 3, b"entry")) == ["applied"]
    assert violations(applied, applied) == ["applied"]
    assert violations(applied, ("applied", "a", 2, 5, 2, b"entry")) == []
    assert violations(applied, ("installed", "a", 1, 4)) == ["applied"]
    assert violations(("leads", "a", 3), ("leads", "a", 3), ("leads", "b", 4)) == []
    assert violations(("leads", "a", 3), ("leads", "b", 3)) == ["leaders"]
    assert violations(("digest", "a", 9, "x"), ("digest", "b", 9, "x")) == []
    assert violations(("digest", "a", 9, "x"), ("digest", "b", 9, "y")) == ["digests"]


def test_the_judges_clock_is_the_highest_that_a_leader_has_shown():
    clock = JudgesClock()
    times = {"a": 10, "b": 7}
    clock.begins("a", lambda: times["a"])
    assert clock.read_us() == 10
    times["a"] = 15
    clock.ends("a")
    times["a"] = 30
    clock.begins("b", lambda: times["b"])
    assert clock.read_us() == 15
    times["b"] = 16
    assert clock.read_us() == 16
