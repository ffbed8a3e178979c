"""What a trial with pollers that hang up makes of what it saw."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from timeball.bench.hangups.trial import Memory, Report

GOOD = Report(
    pollers=1_000,
    waves=60,
    hung_up={"reset": 20_000, "close": 20_000, "half": 20_000},
    refused=0,
    overslept=3,
    created=12_000,
    completed=12_000,
    given_back=15_000,
    left_by_wave={},
    attempts_burnt=0,
    expired=0,
    waiting_claims=0,
    leased=0,
    rss_mb={"a": Memory(60.0, 70.0), "b": Memory(60.0, 60.0)},
)


def test_a_good_trial_breaks_nothing() -> None:
    assert GOOD.violations == []


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"left_by_wave": {"ghost-7": 2, "ghost-9": 1}}, "3 leases had no living holder"),
        ({"attempts_burnt": 4}, "4 attempts were used up"),
        ({"expired": 1}, "1 leases ended by their length"),
        ({"waiting_claims": 5}, "5 claims wait"),
        ({"leased": 1}, "1 executions are leased"),
        ({"completed": 11_999}, "11999 of 12000 jobs were done"),
        ({"refused": 1}, "1 pollers found no connection"),
        ({"given_back": 0}, "nothing was tried"),
        ({"overslept": 60_000}, "nothing was tried in time"),
        ({"rss_mb": {"c": Memory(60.0, 90.0)}}, "node c grew from 60.0 to 90.0 MiB"),
    ],
)
def test_what_must_not_be_is_said(bad: dict[str, Any], said: str) -> None:
    (reason,) = msgspec.structs.replace(GOOD, **bad).violations
    assert said in reason
