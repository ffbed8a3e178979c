"""Applying entries: order, log-time, settings, and what stops a node."""

from __future__ import annotations

import msgspec
import pytest

from timeball.cluster.state import machine
from timeball.cluster.state.machine import StateMachine
from timeball.cluster.state.operations import (
    NUMBERED_PER_ENTRY,
    Claim,
    ClusterSettings,
    CreateJobs,
    Lead,
    NewJob,
    encode_entry,
)


def test_an_empty_entry_moves_index_and_log_time(log):
    log.pass_ms(5)
    log.apply()
    assert log.machine.applied_index == log.index
    assert log.machine.log_time_ms == log.now_ms


def test_log_time_is_clamped_to_the_latest(log):
    latest_ms = log.now_ms
    log.pass_ms(-500)
    job, nominal_ms = log.create()
    assert log.machine.log_time_ms == latest_ms
    assert nominal_ms == log.machine.job(job).created_ms == latest_ms


@pytest.mark.parametrize("step", [-1, 0])
def test_a_repeat_in_the_log_halts(log, step):
    digest = log.machine.digest()
    applied = log.machine.apply(log.index + step, encode_entry(log.now_ms, []))
    assert "does not follow" in applied.halt
    assert log.machine.digest() == digest


def test_what_was_encoded_here_is_applied_as_everywhere_else(monkeypatch):
    """It is not decoded again, unless other bytes came to its place in the log."""
    decoded = []
    decode = machine.decode_entry

    def counted(entry):
        decoded.append(entry)
        return decode(entry)

    monkeypatch.setattr(machine, "decode_entry", counted)
    leader, follower = StateMachine(), StateMachine()
    entries = [
        leader.encode(index, [CreateJobs("", [NewJob("q", b"", index)])]) for index in range(1, 5)
    ]
    for index, entry in ((1, entries[0]), (2, entries[2]), (3, bytes(bytearray(entries[3])))):
        answers = [one.apply(index, entry) for one in (leader, follower)]
        assert answers[0].verdicts == answers[1].verdicts
        assert [*answers[0].happened] == [*answers[1].happened]
    assert leader.digest() == follower.digest()
    assert [entry for entry in decoded if decoded.count(entry) == 2] == [entries[3]] * 2
    assert leader.apply(4, entries[1]).verdicts == follower.apply(4, entries[1]).verdicts


def test_consensus_may_leave_gaps_for_entries_of_its_own(log):
    assert log.machine.apply(log.index + 17, encode_entry(log.now_ms, [])).halt is None
    assert log.machine.applied_index == log.index + 17


def test_the_first_index_is_one_or_higher():
    assert StateMachine().apply(17, encode_entry(1, [])).halt is None
    assert StateMachine().apply(0, encode_entry(1, [])).halt is not None


@pytest.mark.parametrize(
    "entry",
    [
        b"",
        b"garbage",
        msgspec.msgpack.encode([1, [[99, "x"]]]),
        msgspec.msgpack.encode([1, [[2, ["no id"]]]]),
        msgspec.msgpack.encode([1, [[2, [True]]]]),
        msgspec.msgpack.encode([1.5, []]),
        b"\x91" * 100_000,
        encode_entry(2**62, []),
    ],
    ids=[
        "empty",
        "garbage",
        "unknown operation",
        "bad type",
        "bool",
        "float",
        "deep",
        "far future",
    ],
)
def test_raft_08_what_can_not_be_applied_halts_and_changes_nothing(log, entry):
    log.create()
    digest = log.machine.digest()
    applied = log.machine.apply(log.index + 1, entry)
    assert applied.halt
    assert (applied.verdicts, applied.touched) == ([], [])
    assert log.machine.digest() == digest


def test_a_halt_is_for_good(log):
    halted = log.machine.apply(log.index + 1, b"garbage").halt
    assert log.machine.halted == halted
    after = log.machine.apply(log.index + 1, encode_entry(log.now_ms, []))
    assert after.halt == halted
    assert log.machine.applied_index == log.index


def test_raft_08_a_defect_in_a_rule_halts_with_its_name(log, monkeypatch):
    def defect(*_):
        raise ZeroDivisionError("somewhere")

    monkeypatch.setitem(machine._RULES, CreateJobs, defect)
    applied = log.machine.apply(
        log.index + 1, encode_entry(log.now_ms, [CreateJobs("", [NewJob("q", b"")])])
    )
    assert "ZeroDivisionError: somewhere" in applied.halt
    assert log.machine.halted


def test_an_entry_numbers_a_bounded_number_of_each_kind(log):
    full = [NewJob("q", b"")] * NUMBERED_PER_ENTRY
    created = log.create_all(*full)
    assert created[-1].job == (log.index + 1) * NUMBERED_PER_ENTRY - 1
    holds = [(one.job, one.nominal_ms) for one in created]
    assert log.claim(*holds)[-1] == (log.index + 1) * NUMBERED_PER_ENTRY - 1
    digest = log.machine.digest()
    over = encode_entry(log.now_ms, [CreateJobs("", full), CreateJobs("", full[:1])])
    assert "numbers 4097 jobs" in log.machine.apply(log.index + 1, over).halt
    assert log.machine.digest() == digest


def test_leases_are_numbered_over_all_claims_of_an_entry(log):
    claims = [Claim("w", "", 1, [(1, 1)] * 4096), Claim("w", "", 1, [(1, 1)])]
    assert "4097 leases" in log.machine.apply(log.index + 1, encode_entry(1, claims)).halt


def test_a_new_leader_brings_the_settings(log):
    settings = ClusterSettings(keep_dead=7)
    assert log.apply(Lead("n2", settings)) == [None]
    assert log.machine.settings == settings


@pytest.mark.parametrize("bad", [{"keep_dead": -1}, {"max_pending": 2**62}])
def test_impossible_settings_are_refused_and_the_former_stay(log, bad):
    before = log.machine.settings
    (refused,) = log.apply(Lead("n2", ClusterSettings(**bad)))
    assert next(iter(bad)) in refused
    assert log.machine.settings == before
