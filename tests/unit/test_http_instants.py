"""Instants in and out."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timeball.client.errors import InvalidRequest
from timeball.client.messages import MAX_INSTANT_MS
from timeball.cluster.http.instants import parse_instant, render_instant, render_optional


@pytest.mark.parametrize(
    ("value", "instant_ms"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("2026-01-01T00:00:00Z", 1_767_225_600_000),
        ("2026-01-01T01:00:00+01:00", 1_767_225_600_000),
        ("2025-12-31 16:00:00-08:00", 1_767_225_600_000),
        ("20260101T000000Z", 1_767_225_600_000),
        ("20260101T103000Z", 1_767_263_400_000),
        ("2026-01-01t00:00:00z", 1_767_225_600_000),
        ("2026-01-01T00Z", 1_767_225_600_000),
        ("2026-01-01T00:00:00,500Z", 1_767_225_600_500),
        ("2026-01-01T05:45:00+0545", 1_767_225_600_000),
        ("2025-12-31T00:01:00-23:59", 1_767_225_600_000),
        ("2026-01-01T12+12", 1_767_225_600_000),
        ("2026-W01-4T00:00:00Z", 1_767_225_600_000),
        ("2026W014T000000Z", 1_767_225_600_000),
        ("1970-01-01T00:00:00-00:00", 0),
        (1, 1),
        (2**31 - 1, 2**31 - 1),
        (2**31, 2**31),
        (2**32, 2**32),
        ("2026-01-01T00:00Z", 1_767_225_600_000),
        ("2026-01-01T00:00:00.001Z", 1_767_225_600_001),
        ("9999-12-31T23:59:59.999Z", MAX_INSTANT_MS),
        (0, 0),
        (MAX_INSTANT_MS, MAX_INSTANT_MS),
    ],
)
def test_instants_are_read(value: str | int, instant_ms: int) -> None:
    assert parse_instant(value, "time") == instant_ms


def test_fractions_of_a_millisecond_round_up_so_that_nothing_is_early() -> None:
    assert parse_instant("2026-01-01T00:00:00.000001Z", "time") == 1_767_225_600_001
    assert parse_instant("2026-01-01T00:00:00.000999Z", "time") == 1_767_225_600_001
    assert parse_instant("2026-01-01T00:00:00.0000000001Z", "time") == 1_767_225_600_001
    assert parse_instant("2026-01-01T00:00:00.001000000Z", "time") == 1_767_225_600_001
    assert parse_instant("2026-01-01T00:00:59.9999+01:00", "time") == 1_767_222_060_000


@pytest.mark.parametrize(
    "value",
    [
        "2026-01-01T00:00:00",  # no offset: another instant on each machine
        "2026-01-01",
        "",
        "now",
        "1767225600000",
        "2026-02-30T00:00:00Z",
        "2026-01-01T00:00:00Zulu",
        "2026-01-01T00:00:00.000+99:00",
        "٢٠٢٦-01-01T00:00:00Z",
        "2026-01-01T00:00:00Z" + " " * 100,
        "1969-12-31T23:59:59.999Z",
        "0001-01-01T00:00:00+23:59",
        "9999-12-31T23:59:59.9991Z",
        "9999-12-31T23:59:59-00:01",
        "0000-01-01T00:00:00Z",
        "10000-01-01T00:00:00Z",
        "+10000-01-01T00:00:00Z",
        "-0001-01-01T00:00:00Z",
        "2026-1-1T00:00:00Z",
        "2026-001T00:00:00Z",
        "2026-W54-1T00:00:00Z",
        "2026-W01T00:00:00Z",
        "2026-01-01x00:00:00Z",
        "20260101103000Z",  # to datetime, three o'clock
        "2026-01-01T10:3000Z",
        "2026-01-01T24:00:00Z",  # in some versions of datetime, the next day
        "2016-12-31T23:59:60Z",  # a leap second, of which epoch time has none
        "2026-01-01T00:00:00.Z",
        "2026-01-01T00:00.5Z",
        "2026-01-01T00:00:00 Z",
        "2026-01-01T00:00:00+5",
        "2026-01-01T00:00:00+24:00",
        "2026-01-01T00:00:00+00:60",
        "2026-01-01T00:00:00+01:00:00",
        "2026-01-01T00:00:00\u221201:00",
        "2026-01-01T00:00:00Z\0",
        "2026-01-01T00:00:00\0Z",
        "2026-01-01T00:00:00Z[UTC]",
        "2026-01-01T00:00:00Z\n",
        "1e3",
        "0",
        "-1",
        "P1D",
        -1,
        MAX_INSTANT_MS + 1,
        2**53,
        2**63 - 1,
        2**63,
        2**64,
        10**30,
    ],
)
def test_timr_01_what_is_no_instant_names_its_field(value: str | int) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_instant(value, "schedule.time")
    assert caught.value.errors[0].field == "schedule.time"


@given(st.integers(0, MAX_INSTANT_MS))
def test_what_is_written_is_read_back(instant_ms: int) -> None:
    text = render_instant(instant_ms)
    assert len(text) == len("2026-01-01T00:00:00.000Z")
    assert parse_instant(text, "time") == instant_ms


@given(
    st.datetimes(datetime(1970, 1, 2), datetime(9999, 12, 30)),
    st.integers(-23 * 60, 23 * 60),
)
def test_any_offset_names_the_same_instant(moment: datetime, offset_minutes: int) -> None:
    moment = moment.replace(microsecond=0, tzinfo=UTC)
    there = moment.astimezone(timezone(timedelta(minutes=offset_minutes)))
    assert parse_instant(there.isoformat(), "time") == parse_instant(moment.isoformat(), "time")


def test_an_instant_that_has_not_come() -> None:
    assert render_optional(0) is None
    assert render_optional(1) == "1970-01-01T00:00:00.001Z"
