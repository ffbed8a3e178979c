"""Group commit: one entry for many operations, an end for each (F9, F12, RAFT-17)."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from raft_harness import Applied, Cluster, encode_entry, operations, virtual

from timeball.cluster.raft.commit import GroupCommit
from timeball.cluster.raft.errors import (
    ConsensusError,
    EntryTooLarge,
    Expired,
    LevelTooLow,
    NotLeader,
    OutcomeUnknown,
    Overloaded,
)
from timeball.cluster.raft.interface import Observer
from timeball.cluster.raft.settings import CommitSettings


class FakeReplica:
    """A leader whose entries are committed when the test says so."""

    def __init__(self) -> None:
        self.role = "leader"
        self.term = 3
        self.leader = "a"
        self.log: list[bytes] = []
        self.times: list[float] = []
        self.observer: Observer
        self.applied = 0
        self.apply_s = 0.0
        self.refuse = False
        self.fault: Exception | None = None

    def add_observer(self, observer: Observer) -> None:
        self.observer = observer

    def append(self, entry: bytes) -> int:
        if self.refuse:
            raise NotLeader("b")
        if self.fault is not None:
            raise self.fault
        self.log.append(entry)
        self.times.append(asyncio.get_running_loop().time())
        return len(self.log)

    def commit(self) -> None:
        """Apply the oldest entry that is not applied yet."""
        entry = self.log[self.applied]
        self.applied += 1
        verdicts = [(self.applied, position) for position in range(len(operations(entry)))]
        self.observer.on_applied(self.applied, self.term, entry, Applied(verdicts))

    def step_down(self) -> None:
        self.role, self.leader = "follower", "b"
        self.observer.on_leadership(None)


class Bench:
    """A group commit on a fake replica."""

    def __init__(self, **settings: Any) -> None:
        self.replica = FakeReplica()
        self.wall_ms = 1000
        self.state_log_time = 0
        self.loop = asyncio.get_running_loop()
        self.commit = GroupCommit(
            self.replica,
            encode_entry,
            lambda: self.wall_ms,
            CommitSettings(**settings),
            last_log_time=lambda: self.state_log_time,
            clock=self.loop.time,
        )
        self.replica.observer.on_leadership(3)

    def entries(self) -> list[list[Any]]:
        return [operations(entry) for entry in self.replica.log]


async def turn() -> None:
    await asyncio.sleep(0)
    await asyncio.sleep(0)


@virtual
async def test_operations_of_one_turn_share_an_entry_and_get_each_their_verdict():
    bench = Bench()
    futures = [bench.commit.propose(n) for n in range(3)]
    assert bench.replica.log == []
    await turn()
    assert bench.entries() == [[0, 1, 2]]
    assert not any(future.done() for future in futures)
    bench.replica.commit()
    assert [future.result() for future in futures] == [(1, 0), (1, 1), (1, 2)]


@virtual
async def test_f9_an_idle_node_writes_at_once_and_a_busy_one_keeps_the_spacing():
    bench = Bench(spacing_s=0.002)
    for number in range(40):
        bench.commit.propose(number)
        await asyncio.sleep(0.0005)
        while bench.replica.applied < len(bench.replica.log):
            bench.replica.commit()
    assert bench.replica.times[0] == 0
    # Of one item: hardly more than two fifths.
    gaps = [b - a for a, b in pairwise(bench.replica.times)]
    assert min(gaps) >= 0.4 * 0.002 - 1e-6
    assert max(gaps) < 0.0015


@virtual
@pytest.mark.parametrize(
    ("items", "spacing_s"), [(1, 0.0021), (15, 0.0035), (30, 0.005), (500, 0.005), (700, 0.002)]
)
async def test_an_entry_keeps_its_distance_by_what_the_one_before_held(items, spacing_s):
    """The whole from a busy one; less from one of few items, and from one that was full."""
    bench = Bench(spacing_s=0.005, entry_weight=700)
    for _ in range(5):
        bench.commit.propose("busy", weight=items)
        await turn()
        while bench.replica.applied < len(bench.replica.log):
            bench.replica.commit()
        await asyncio.sleep(spacing_s - 0.00005)
        bench.commit.propose("next")
        await turn()
        assert len(bench.replica.log) % 2 == 1, "not yet"
        await asyncio.sleep(0.0002)
        assert len(bench.replica.log) % 2 == 0
        bench.replica.commit()
        await asyncio.sleep(0.01)
    assert bench.entries() == [["busy"], ["next"]] * 5


@virtual
async def test_what_an_entry_had_no_room_for_follows_soon():
    bench = Bench(spacing_s=0.005, entry_weight=100)
    for number in range(4):
        bench.commit.propose(number, weight=60)
    while len(bench.replica.log) < 4:
        await asyncio.sleep(0.0001)
        while bench.replica.applied < len(bench.replica.log):
            bench.replica.commit()
    gaps = [b - a for a, b in pairwise(bench.replica.times)]
    assert max(gaps) <= 0.0022


@virtual
async def test_at_most_two_entries_are_in_flight_and_the_rest_gathers():
    bench = Bench()
    for number in range(10):
        bench.commit.propose(number)
        await asyncio.sleep(0.01)
    assert bench.entries() == [[0], [1]]
    bench.replica.commit()
    await turn()
    assert bench.entries() == [[0], [1], [2, 3, 4, 5, 6, 7, 8, 9]]


@virtual
async def test_an_entry_holds_at_most_4096_numbered_items():
    bench = Bench(max_in_flight=100)
    for weight in (4000, 96, 1, 4096, 4096):
        bench.commit.propose(weight, weight=weight)
    await asyncio.sleep(0.1)
    assert bench.entries() == [[4000, 96], [1], [4096], [4096]]
    for weight in (4097, -1):
        with pytest.raises(ValueError, match="0 to 4096 items"):
            bench.commit.propose("x", weight=weight)


@virtual
async def test_an_entry_takes_no_more_items_than_are_set_but_a_larger_operation_alone():
    bench = Bench(max_in_flight=100, entry_weight=100)
    for weight in (60, 40, 1, 250, 30, 70):
        bench.commit.propose(weight, weight=weight)
    await asyncio.sleep(0.1)
    assert bench.entries() == [[60, 40], [1], [250], [30, 70]]


@virtual
async def test_operations_without_items_have_a_place_too():
    bench = Bench(max_in_flight=100)
    for number in range(5000):
        bench.commit.propose(number, weight=0, size=1)
    await asyncio.sleep(0.1)
    assert [len(ops) for ops in bench.entries()] == [4096, 904]


@virtual
async def test_an_entry_is_bounded_in_bytes_and_keeps_the_order():
    bench = Bench(max_entry_bytes=1000, max_in_flight=100)
    ops = [[n, "x" * 200] for n in range(12)]
    for op in ops:
        bench.commit.propose(op)
    await asyncio.sleep(0.1)
    assert all(len(entry) <= 1000 for entry in bench.replica.log)
    assert [op for entry in bench.entries() for op in entry] == ops


@virtual
async def test_no_more_is_encoded_than_an_entry_may_hold():
    bench = Bench(max_entry_bytes=1000, max_in_flight=100)
    encoded: list[int] = []

    def encode(log_time_ms: int, ops: Any) -> bytes:
        encoded.append(len(ops))
        return encode_entry(log_time_ms, ops)

    bench.commit._encode = encode
    for number in range(12):
        bench.commit.propose([number, "x" * 200], size=300)
    await asyncio.sleep(0.1)
    assert encoded == [3, 3, 3, 3], "nothing was encoded only to be cut off again"


@virtual
async def test_one_operation_over_the_limit_is_refused_and_the_others_go_on():
    bench = Bench(max_entry_bytes=1000, max_in_flight=100)
    before, large, behind = (bench.commit.propose(op) for op in ("a", "x" * 2000, "b"))
    await asyncio.sleep(0.1)
    with pytest.raises(EntryTooLarge):
        large.result()
    while bench.replica.applied < len(bench.replica.log):
        bench.replica.commit()
    assert before.done()
    assert behind.done()


@virtual
async def test_the_queue_is_bounded_by_count_and_by_bytes():
    bench = Bench(max_pending=3)
    futures = [bench.commit.propose(n) for n in range(4)]
    with pytest.raises(Overloaded):
        futures[3].result()
    bench = Bench(max_pending_bytes=1000)
    futures = [bench.commit.propose(n, size=400) for n in range(3)]
    with pytest.raises(Overloaded):
        futures[2].result()
    await turn()
    assert not bench.commit.propose(9, size=900).done(), "what was written waits no more"


@virtual
async def test_new_work_is_unwelcome_while_the_oldest_waits_too_long():
    bench = Bench(max_wait_s=0.5, max_in_flight=1)
    assert not bench.commit.congested
    bench.commit.propose("first")
    await asyncio.sleep(0.3)
    bench.commit.propose("second")
    assert not bench.commit.congested
    await asyncio.sleep(0.21)
    assert bench.commit.congested, "what is written counts until it is committed"
    bench.replica.commit()
    assert not bench.commit.congested, "the second has waited for 0.21 s"
    await turn()
    bench.commit.propose("third")
    await asyncio.sleep(0.3)
    assert bench.commit.congested
    bench.replica.commit()
    await turn()
    assert not bench.commit.congested
    bench.replica.commit()
    await asyncio.sleep(10)
    assert not bench.commit.congested, "an idle node is not"


@virtual
async def test_what_waits_in_the_queue_alone_makes_new_work_unwelcome_too():
    bench = Bench(max_wait_s=0.5)
    bench.commit._flush = lambda: None  # as if the loop never came to it
    bench.commit.propose("first")
    await asyncio.sleep(0.51)
    assert bench.commit.congested


@virtual
async def test_oper_07_half_of_the_queue_is_kept_for_what_ends_work():
    for settings, size in ({"max_pending": 6}, 1), ({"max_pending_bytes": 6000}, 1000):
        bench = Bench(**settings)
        for _ in range(3):
            bench.commit.propose("create", size=size)
        assert not bench.commit.congested
        bench.commit.propose("create", size=size)
        assert bench.commit.congested
        reports = [bench.commit.propose("report", size=size) for _ in range(2)]
        assert not any(report.done() for report in reports)


@virtual
async def test_oper_07_a_crowd_is_let_in_only_as_far_as_the_queue_drains_in_time():
    """A node whose entries hold 100 and take 0.1 s is offered 5,000 a second for 10 s."""
    bench = Bench(entry_weight=100, max_in_flight=1)
    loop, waits = bench.loop, []

    async def work():
        while True:
            await asyncio.sleep(0.1)
            if bench.replica.applied < len(bench.replica.log):
                bench.replica.commit()

    def told(began):
        return lambda future: waits.append((began, loop.time() - began, future.exception()))

    working = loop.create_task(work())
    for _ in range(1_000):
        for _ in range(50):
            if not bench.commit.congested:
                bench.commit.propose("create", begins=True).add_done_callback(told(loop.time()))
        await asyncio.sleep(0.01)
    offered_until = loop.time()
    while bench.commit.congested:  # noqa: ASYNC110 — a client that tries again
        await asyncio.sleep(0.01)
    assert loop.time() - offered_until < 1, "it recovers at once"
    await asyncio.sleep(5)
    working.cancel()
    assert {error for _, _, error in waits} == {None}
    assert len(waits) > 0.9 * 10_000, "the node is kept busy"
    assert max(wait for began, wait, _ in waits if began > waits[0][0] + 2) < 0.8
    assert max(wait for _, wait, _ in waits) < 2, "before the pace is known, too"


async def a_bench_whose_pace_is_known() -> Bench:
    """Its entries hold 10 and take 0.1 s each; nothing waits any more."""
    bench = Bench(entry_weight=10, max_in_flight=1)
    for _ in range(30):
        bench.commit.propose("create", begins=True)
    for _ in range(3):
        await asyncio.sleep(0.1)
        bench.replica.commit()
    return bench


@virtual
async def test_a_burst_is_judged_by_the_pace_that_was_known_before():
    bench = await a_bench_whose_pace_is_known()
    taken = 0
    while not bench.commit.congested:
        bench.commit.propose("create", begins=True)
        taken += 1
    assert taken in (50, 51), "half a second's worth"
    await turn()
    assert bench.commit.pending < 45
    assert bench.commit.congested, "what is written counts until it is committed"


@virtual
async def test_what_was_measured_long_ago_says_nothing_of_a_burst():
    bench = await a_bench_whose_pace_is_known()
    await asyncio.sleep(bench.commit._settings.deadline_s)
    for _ in range(100):
        assert not bench.commit.congested
        bench.commit.propose("create", begins=True)


@virtual
async def test_the_pace_of_entries_that_leave_nothing_behind_is_not_measured():
    bench = Bench(entry_weight=10, max_in_flight=1)
    for _ in range(5):
        bench.commit.propose("create", begins=True)
        await asyncio.sleep(0.2)
        bench.replica.commit()
    for _ in range(100):
        assert not bench.commit.congested, "an idle node has done one in 0.2 s, and can do more"
        bench.commit.propose("create", begins=True)


@virtual
async def test_the_pace_of_the_entry_that_ends_a_crowd_is_not_measured():
    """It holds what the others have left, and could have held more."""
    bench = Bench(entry_weight=10, max_in_flight=1)
    for _ in range(11):
        bench.commit.propose("create", begins=True)
    for _ in range(2):
        await asyncio.sleep(0.1)
        bench.replica.commit()
    assert [len(entry) for entry in bench.entries()] == [10, 1]
    for _ in range(100):
        assert not bench.commit.congested, "it did one in 0.1 s, and can do more"
        bench.commit.propose("create", begins=True)


@virtual
async def test_a_burst_on_an_idle_node_is_welcome():
    bench = Bench()
    for _ in range(50):
        assert not bench.commit.congested
        bench.commit.propose("create of a hundred", weight=100)
        if len(bench.replica.log) > bench.replica.applied:
            bench.replica.commit()
        await asyncio.sleep(0.008)


@pytest.mark.parametrize("load", [0.8, 1.5, 3, 5])
def test_oper_07_overload_is_refused_at_the_door_and_what_was_taken_is_done_in_time(load: float):
    """A node that commits 1,000 operations a second gets 200 reports, and creates for its rest."""

    @virtual
    async def run() -> None:
        bench = Bench()
        loop = bench.loop
        waits: list[float] = []
        refused = 0

        async def work() -> None:
            while True:
                await asyncio.sleep(0.001)
                if bench.replica.applied < len(bench.replica.log):
                    await asyncio.sleep(len(bench.entries()[bench.replica.applied]) / 1000)
                    bench.replica.commit()

        def propose(op: str, *, begins: bool = False) -> asyncio.Future[object]:
            future, began = bench.commit.propose(op, begins=begins), loop.time()
            future.add_done_callback(lambda _: waits.append(loop.time() - began))
            return future

        working = loop.create_task(work())
        taken = []
        for step in range(1000):
            taken += [propose("report"), propose("report")]
            for _ in range(int(step * 8 * load) - int((step - 1) * 8 * load)):
                if bench.commit.congested:
                    refused += 1
                else:
                    taken.append(propose("create", begins=True))
            await asyncio.sleep(0.01)
        within_deadline = sum(wait <= 2 for wait in waits)
        ended = loop.time()
        while bench.commit.congested:  # noqa: ASYNC110 — a client that tries again
            await asyncio.sleep(0.01)
        assert await propose("create after the load")
        assert loop.time() - ended < 10, "it recovers once the load has ended"
        await asyncio.sleep(5)
        working.cancel()
        assert all(future.exception() is None for future in taken), "nothing was given up"
        assert bool(refused) == (load > 1)
        assert max(waits) < 1.5 * max(1, load) * bench.commit._settings.max_wait_s
        assert len(taken) > 0.75 * min(1, load) * 10_000, "the node is kept busy"
        assert within_deadline > 0.7 * min(1, load) * 10_000, "for clients that still wait"

    run()


@virtual
async def test_f12_raft17_each_proposal_ends_by_its_deadline():
    bench = Bench(deadline_s=1, max_in_flight=1)
    written = bench.commit.propose("written")
    await turn()
    waiting = bench.commit.propose("waiting")
    await asyncio.sleep(1.1)
    with pytest.raises(OutcomeUnknown):
        written.result()
    with pytest.raises(Expired):
        waiting.result()
    bench.replica.commit()
    await asyncio.sleep(0.1)
    assert bench.entries() == [["written"]], "what had expired was never written"


@virtual
async def test_f12_the_loss_of_leadership_is_unknown_only_for_what_was_written():
    bench = Bench(max_in_flight=1)
    written = bench.commit.propose("written")
    await turn()
    waiting = bench.commit.propose("waiting")
    bench.replica.step_down()
    with pytest.raises(OutcomeUnknown):
        written.result()
    with pytest.raises(NotLeader) as refused:
        waiting.result()
    assert refused.value.leader == "b"
    with pytest.raises(NotLeader):
        bench.commit.propose("later").result()
    await asyncio.sleep(10)
    assert bench.entries() == [["written"]]


@virtual
async def test_a_halt_ends_everything():
    bench = Bench(max_in_flight=1)
    written = bench.commit.propose("written")
    await turn()
    bench.replica.observer.on_halt("the disk is gone")
    with pytest.raises(OutcomeUnknown):
        written.result()


@virtual
async def test_an_entry_that_was_written_in_part_has_an_unknown_outcome():
    bench = Bench()
    bench.replica.fault = OutcomeUnknown("the node stopped itself")
    future = bench.commit.propose("x")
    await turn()
    with pytest.raises(OutcomeUnknown):
        future.result()


@virtual
async def test_a_defect_while_writing_is_unknown_to_the_proposer_and_told_to_the_loop():
    bench = Bench()
    told: list[dict[str, Any]] = []
    bench.loop.set_exception_handler(lambda _loop, context: told.append(context))
    bench.replica.fault = ValueError("a defect")
    future = bench.commit.propose("x")
    await turn()
    with pytest.raises(OutcomeUnknown):
        future.result()
    assert [context["exception"] for context in told] == [bench.replica.fault]


@virtual
async def test_nothing_is_written_before_the_barrier_or_when_the_log_refuses():
    bench = Bench()
    bench.replica.refuse = True
    future = bench.commit.propose("x")
    await turn()
    with pytest.raises(NotLeader):
        future.result()
    bench.replica.observer.on_leadership(None)
    bench.replica.role = "leader"  # elected, but the barrier is not applied yet
    with pytest.raises(NotLeader) as refused:
        bench.commit.propose("y").result()
    assert refused.value.leader is None, "a node does not send others to itself"


@virtual
async def test_raft09_cancelled_futures_break_nothing():
    bench = Bench()
    early, late, kept = (bench.commit.propose(op) for op in ("early", "late", "kept"))
    early.cancel()
    await turn()
    assert bench.entries() == [["late", "kept"]]
    late.cancel()
    bench.replica.commit()
    assert kept.result() == (1, 1)
    gone = bench.commit.propose("gone")
    await asyncio.sleep(0.1)
    gone.cancel()
    bench.replica.step_down()


@virtual
async def test_log_time_never_falls_behind_the_state_or_an_entry_in_flight():
    bench = Bench(max_in_flight=10)
    for wall_ms, state_ms in [(1000, 0), (900, 0), (950, 2000), (1000, 1500), (3000, 2000)]:
        bench.wall_ms, bench.state_log_time = wall_ms, state_ms
        bench.commit.propose("x")
        await asyncio.sleep(0.01)
    times = [msgspec.msgpack.decode(entry)[0] for entry in bench.replica.log]
    assert times == [1000, 1000, 2000, 2000, 3000]


@virtual
async def test_log_time_never_falls_behind_what_an_operation_was_decided_by():
    bench = Bench()
    decided = bench.commit.propose("decided", as_of_ms=1000)
    bench.wall_ms = 400  # set back before the entry is put together
    await turn()
    bench.replica.commit()
    assert decided.done()
    bench.commit.propose("next")
    await asyncio.sleep(0.01)
    times = [msgspec.msgpack.decode(entry)[0] for entry in bench.replica.log]
    assert times == [1000, 1000]


class Source:
    def __init__(self, *items: tuple[Any, int]) -> None:
        self.items = list(items)
        self.futures: dict[Any, asyncio.Future[object]] = {}
        self.asked_at: list[int] = []

    def __call__(self, now_ms: int, _room: int):
        self.asked_at.append(now_ms)
        while self.items:
            op, weight = self.items.pop(0)
            self.futures[op] = asyncio.get_running_loop().create_future()
            yield op, weight, self.futures[op]


@virtual
async def test_a_source_is_asked_when_the_entry_is_put_together():
    bench = Bench()
    source = Source()
    bench.commit.add_source(source)
    bench.commit.propose("proposed")
    source.items.append(("claim", 1))  # after the proposal, before the entry
    await turn()
    assert bench.entries() == [["proposed", "claim"]]
    assert source.asked_at == [1000]
    bench.replica.commit()
    assert source.futures["claim"].result() == (1, 1)


@virtual
async def test_wake_asks_the_sources_and_writes_nothing_when_they_have_nothing():
    bench = Bench()
    source = Source(("claim", 1))
    bench.commit.add_source(source)
    await asyncio.sleep(1)
    assert bench.replica.log == []
    bench.commit.wake()
    await turn()
    assert bench.entries() == [["claim"]]
    bench.commit.wake()
    await asyncio.sleep(1)
    assert len(bench.replica.log) == 1


@virtual
async def test_a_source_keeps_what_has_no_room_and_is_asked_again():
    bench = Bench(max_in_flight=100)
    source = Source(*[(n, 1000) for n in range(10)])
    bench.commit.add_source(source)
    bench.commit.wake()
    await turn()
    assert bench.entries() == [[0, 1, 2, 3]]
    assert len(source.items) == 5, "it was not asked for more than one that had no room"
    await asyncio.sleep(0.1)
    assert sorted(op for ops in bench.entries() for op in ops) == list(range(10))
    assert all(len(ops) <= 4 for ops in bench.entries())


@virtual
async def test_an_entry_holds_what_is_applied_in_time_by_what_the_latest_took():
    bench = Bench(entry_weight=100, entry_weight_least=40, entry_apply_s=0.003, max_in_flight=1)
    for _ in range(10_000):
        bench.commit.propose("x")
    sizes = {}
    for item_us in (20, 50, 1_000, 1):
        for _ in range(30):
            await asyncio.sleep(0.01)
            sizes[item_us] = len(bench.entries()[-1])
            bench.replica.apply_s = item_us * sizes[item_us] / 1_000_000
            bench.replica.commit()
    assert sizes == {20: 100, 50: 60, 1_000: 40, 1: 100}


@virtual
async def test_what_entries_of_a_few_operations_take_tells_nothing_of_full_ones():
    bench = Bench(entry_weight=100, entry_weight_least=40, entry_apply_s=0.003, max_in_flight=1)
    for _ in range(30):
        bench.commit.propose("x")
        await asyncio.sleep(0.01)
        bench.replica.apply_s = 0.002
        bench.replica.commit()
    for _ in range(200):
        bench.commit.propose("x")
    await asyncio.sleep(0.01)
    assert len(bench.entries()[-1]) == 100


@virtual
async def test_a_source_is_told_how_much_room_there_is_for_it():
    bench = Bench(entry_weight=100, max_in_flight=100)
    told: list[int] = []

    def source(_now_ms: int, room: int):
        told.append(room)
        return iter(())

    def taker(_now_ms: int, room: int):
        told.append(room)
        yield "taken", 30, asyncio.get_running_loop().create_future()

    bench.commit.add_source(taker)
    bench.commit.add_source(source)
    bench.commit.propose("light", weight=20)
    await turn()
    bench.commit.propose("heavy", weight=90)
    await asyncio.sleep(0.01)
    assert told[:2] == [80, 50]
    assert sorted(told[2:4]) == [0, 10] or told[2:4] == [10, 10]


@virtual
async def test_sources_get_their_part_of_an_entry_under_load():
    bench = Bench(max_in_flight=100)
    for number in range(20):
        bench.commit.propose(f"p{number}", weight=1024)
    source = Source(*[(f"s{n}", 512) for n in range(20)])
    bench.commit.add_source(source)
    await turn()
    assert bench.entries()[0] == ["p0", "p1", "s0", "s1", "s2", "s3"]


@virtual
async def test_oper_07_in_a_crowd_what_ends_work_goes_first_and_new_work_has_a_part():
    """Entries of 100: a quarter is kept for creates, and half for reports."""
    bench = Bench(entry_weight=100, max_in_flight=1)
    claims = ["claim"] * 1_000

    def source(_log_time_ms, room):
        while claims and room > 0:
            room -= 1
            yield claims.pop(), 1, bench.loop.create_future()

    async def following():
        await asyncio.sleep(1)
        ops = bench.entries()[-1]
        bench.replica.commit()
        return tuple(ops.count(name) for name in ("report", "create", "claim"))

    bench.commit.add_source(source)
    for _ in range(300):
        bench.commit.propose("create", begins=True)
    for _ in range(40):
        bench.commit.propose("report")
    bench.commit.wake()
    assert await following() == (40, 25, 35)
    bench.commit.wake()
    assert await following() == (0, 25, 75)
    for _ in range(90):
        bench.commit.propose("report")
    bench.commit.wake()
    assert await following() == (50, 25, 25)
    claims.clear()
    assert await following() == (40, 60, 0)


@virtual
async def test_a_heavy_operation_is_not_kept_waiting_by_sources_that_always_have_something():
    bench = Bench(entry_weight=100, max_in_flight=100)
    bench.commit.propose("heavy", weight=150)
    bench.commit.propose("light", weight=1)
    bench.commit.add_source(Source(*[(f"s{n}", 50) for n in range(20)]))
    bench.commit.wake()
    await asyncio.sleep(0.1)
    assert bench.entries()[:2] == [["heavy"], ["light", "s0"]]


@virtual
async def test_heavy_operations_that_keep_coming_leave_sources_their_turn():
    bench = Bench(entry_weight=100, max_in_flight=100)
    for number in range(4):
        bench.commit.propose(f"heavy{number}", weight=120)
    bench.commit.add_source(Source(*[(f"s{n}", 25) for n in range(20)]))
    bench.commit.wake()
    await asyncio.sleep(0.1)
    turns = [{name.rstrip("0123456789") for name in entry} for entry in bench.entries()]
    assert turns[:6] == [{"heavy"}, {"s"}] * 3


@pytest.mark.parametrize(
    ("report", "create"), [(1, 75), (1, 130), (1, 1), (45, 30), (76, 1), (76, 30), (130, 130)]
)
@pytest.mark.parametrize("claims", [0, 1_000])
def test_nothing_waits_for_ever_behind_what_goes_first(report: int, create: int, claims: int):
    """Reports keep coming into entries of 100, and a create of whatever weight has its turn."""

    @virtual
    async def run() -> None:
        bench = Bench(entry_weight=100, max_in_flight=1)
        bench.commit.add_source(Source(*[(f"claim{n}", 10) for n in range(claims)]))
        bench.commit.propose("report", weight=report)
        bench.commit.propose("create", weight=create, begins=True)
        for _ in range(8):
            bench.commit.propose("report", weight=report)
            bench.commit.wake()
            await asyncio.sleep(0.1)
            bench.replica.commit()
        entries = bench.entries()
        assert any("create" in entry for entry in entries[:4]), entries
        assert sum(entry.count("report") for entry in entries) >= 2
        if claims:
            assert any("claim" in name for entry in entries[:4] for name in entry)

    run()


@virtual
async def test_new_work_has_its_part_of_an_entrys_bytes_too():
    bench = Bench(max_entry_bytes=1_000, max_in_flight=1)
    for _ in range(12):
        bench.commit.propose("report", size=200)
    bench.commit.propose("create", size=100, begins=True)
    await asyncio.sleep(0.1)
    assert [entry.count("create") for entry in bench.entries()] == [1]


@pytest.mark.parametrize(("report", "create"), [(200, 600), (200, 990), (90, 1_300), (250, 750)])
@pytest.mark.parametrize("claims", [0, 1_000])
def test_nothing_waits_for_ever_for_its_bytes(report: int, create: int, claims: int):
    """Reports fill every entry of 1,000 bytes, and creates of whatever size have their turn."""

    @virtual
    async def run() -> None:
        bench = Bench(entry_weight=100, max_entry_bytes=1_000, max_in_flight=1)
        bench.commit.add_source(Source(*[(f"claim{n}", 1) for n in range(claims)]))
        for _ in range(8):
            bench.commit.wake()
            bench.commit.propose("create", size=create, begins=True)
            for _ in range(20):
                bench.commit.propose("report", size=report)
            await asyncio.sleep(0.1)
            bench.replica.commit()
        entries = bench.entries()
        assert any("create" in entry for entry in entries[:2]), entries
        assert any("report" in entry for entry in entries[:2]), entries
        creates = sum(entry.count("create") for entry in entries)
        assert len(entries) // 2 <= creates < len(entries)

    run()


@virtual
async def test_a_source_that_fails_loses_nothing_that_was_taken():
    bench = Bench()
    good = Source(("good", 1))

    def bad(_now_ms: int, _room: int):
        raise RuntimeError("a fault in a source")

    bench.commit.add_source(good)
    bench.commit.add_source(bad)
    proposed = bench.commit.propose("proposed")
    await asyncio.sleep(0.001)
    assert bench.loop.failures.pop()["exception"].args == ("a fault in a source",)
    bench.commit._sources.remove(bad)
    await asyncio.sleep(0.1)
    bench.replica.commit()
    assert proposed.done()
    assert good.futures["good"].done()


@virtual
async def test_an_operation_that_cannot_be_encoded_ends_with_an_error():
    bench = Bench()
    future = bench.commit.propose(object())
    await turn()
    with pytest.raises(ConsensusError, match="nothing was proposed"):
        future.result()
    assert isinstance(bench.loop.failures.pop()["exception"], TypeError)


class Relay:
    """A member's consensus, before and after it starts."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._member = cluster[name]

    def add_observer(self, observer: Observer) -> None:
        return

    def __getattr__(self, name: str) -> Any:
        return getattr(self._member.consensus, name)


async def committing_cluster(
    cluster: Cluster | None = None, **settings: Any
) -> tuple[Cluster, dict[str, GroupCommit]]:
    """A cluster with a group commit of these settings on each node."""
    cluster = cluster or Cluster()
    commits = {
        name: GroupCommit(
            Relay(cluster, name),
            encode_entry,
            lambda: 1,
            CommitSettings(**settings),
            last_log_time=lambda: 0,
            clock=cluster.loop.time,
        )
        for name in cluster.members
    }
    for name in cluster.members:
        await cluster.start(name, observers=[commits[name]])
    return cluster, commits


@virtual
async def test_on_a_real_cluster_verdicts_come_and_a_dead_leaders_proposals_end():
    cluster, commits = await committing_cluster()
    leader = await cluster.elected()
    futures = [commits[leader.name].propose(n) for n in range(100)]
    verdicts = await asyncio.gather(*futures)
    assert len(set(verdicts)) == 100
    cluster.isolate(leader.name)
    lost = commits[leader.name].propose("lost")
    with pytest.raises(OutcomeUnknown):
        await lost
    assert leader.consensus.role == "follower"


@virtual
async def test_f12_raft17_every_proposal_ends_in_time_while_links_flap():
    """Also those of a leader that was cut off and then got a snapshot that jumps over them. What
    was answered is applied, what was definitely refused is not, and no table keeps anything."""
    cluster, commits = await committing_cluster(Cluster(snapshot_entries=30, trailing_entries=1))
    await cluster.elected()
    told: dict[str, object] = {}
    took: list[float] = []
    asked = 0

    def propose(name: str) -> None:
        nonlocal asked
        asked += 1
        op, began = f"{name} {asked}", cluster.loop.time()
        verdict = commits[name].propose(op)

        def ended(done: asyncio.Future[object]) -> None:
            told[op] = done.exception() or "applied"
            took.append(cluster.loop.time() - began)

        verdict.add_done_callback(ended)

    for tenth in range(300):
        if tenth % 60 == 0:
            leader = await cluster.elected()
            cluster.isolate(leader.name)
        elif tenth % 60 == 40:
            cluster.heal()
        for name in "abc":
            for _ in range(5):
                propose(name)
        await asyncio.sleep(0.1)
    cluster.heal()
    await asyncio.sleep(CommitSettings().deadline_s * 1.1)
    await cluster.settled()
    assert sum(len(member.recorder.installed) for member in cluster.members.values()) > 0
    assert len(told) == asked
    assert max(took) <= CommitSettings().deadline_s * 1.1
    applied = [op for entry in cluster["a"].machine.entries() for op in operations(entry)]
    assert len(applied) == len(set(applied))
    kinds = {type(outcome) for outcome in told.values()}
    assert {str, NotLeader, OutcomeUnknown} <= kinds
    for op, outcome in told.items():
        if not isinstance(outcome, OutcomeUnknown):
            assert (op in applied) == (outcome == "applied"), (op, outcome)
    for commit in commits.values():
        assert (commit.pending, commit._pending_bytes, len(commit._in_flight)) == (0, 0, 0)


@virtual
async def test_raft17_a_hundred_thousand_lost_proposals_end_and_are_forgotten():
    bench = Bench()  # nothing is ever committed
    futures = []
    for _ in range(100):
        futures += [bench.commit.propose(n, size=10) for n in range(1000)]
        await asyncio.sleep(0.01)
    await asyncio.sleep(CommitSettings().deadline_s * 1.1)
    errors = [type(future.exception()) for future in futures]
    assert len(errors) == 100_000
    assert set(errors) == {OutcomeUnknown, Expired, Overloaded}
    assert (bench.commit.pending, bench.commit._pending_bytes) == (0, 0)
    assert len(bench.commit._in_flight) == CommitSettings().max_in_flight
    bench.replica.step_down()
    assert len(bench.commit._in_flight) == 0


@virtual
async def test_f12_a_verdict_is_of_the_own_entry_and_of_the_own_term():
    bench = Bench()
    mine = bench.commit.propose("mine")
    await turn()
    others = Applied(["another's verdict"])
    bench.replica.observer.on_applied(9, bench.replica.term, b"another's", others)
    assert not mine.done(), "that was another entry"
    with pytest.raises(AssertionError, match="another leader's entry"):
        bench.replica.observer.on_applied(1, bench.replica.term + 1, b"another's", others)
    assert not mine.done(), "that was another leader's: the engine halts on it"


@virtual
async def test_raft12_what_a_cut_off_leader_called_undone_is_undone_after_the_heal():
    cluster, commits = await committing_cluster(max_in_flight=1)
    old = await cluster.elected()
    assert await commits[old.name].propose("before")
    cluster.isolate(old.name)
    proposed = {}
    while old.consensus.leading_term is not None:
        name = f"late {len(proposed)}"
        proposed[name] = commits[old.name].propose(name)
        await asyncio.sleep(0.05)
    proposed["afterwards"] = commits[old.name].propose("afterwards")
    errors = {name: type(future.exception()) for name, future in proposed.items()}
    assert set(errors.values()) == {NotLeader, OutcomeUnknown}
    new = await cluster.elected()
    assert await commits[new.name].propose("after")
    cluster.heal()
    await cluster.settled()
    done = {op for entry in cluster.leader.machine.entries() for op in operations(entry)}
    assert {"before", "after"} <= done
    assert not done & {name for name, error in errors.items() if error is NotLeader}


@virtual
async def test_oper_03_what_must_not_be_proposed_ends_with_its_reason_and_the_others_go_on():
    bench = Bench()
    error = LevelTooLow("Tally", 2, 1)
    bench.commit._objection = lambda op: error if op.startswith("new") else None
    refused, taken = bench.commit.propose("new one"), bench.commit.propose("old one")
    assert refused.exception() is error
    source = Source(("new from a source", 1), ("old from a source", 1))
    bench.commit.add_source(source)
    await turn()
    bench.replica.commit()
    assert sorted(bench.entries()[0]) == ["old from a source", "old one"]
    assert taken.result() in ((1, 0), (1, 1))
    assert source.futures["new from a source"].exception() is error
