"""The history survives the death of its writer, and nominal times are enumerated rightly."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from timeball.bench.evidence import Creation, instant_ms
from timeball.bench.history import (
    HandlerStarted,
    HistoryReader,
    JobAcknowledged,
    Recorder,
    read_history,
)
from timeball.bench.nominal_times import NotEnumerable, nominal_times
from timeball.client.messages import At, Cron, DatesExcluded, Every, Schedule

T0 = 1_764_480_000_000


def started(at_us: int, source: str = "w1") -> HandlerStarted:
    return HandlerStarted(at_us=at_us, source=source, execution_id="1-1", token=7)


def test_files_are_merged_by_time_and_keep_every_field(tmp_path: Path) -> None:
    ack = JobAcknowledged(
        at_us=2,
        source="client",
        request_id="r",
        job_id="1",
        status="created",
        sent_us=1,
        schedule=Every(500, anchor=T0),
    )
    with Recorder(tmp_path / "a", "w1") as one, Recorder(tmp_path / "b", "client") as two:
        one.record(started(1))
        one.record(started(3))
        two.record(ack)
    assert read_history([tmp_path / "b", tmp_path / "a"]) == [started(1), ack, started(3)]


def test_a_torn_last_line_is_left_out_and_any_other_damage_is_not(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with Recorder(path, "w1") as recorder:
        recorder.record(started(1))
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:20])
    assert read_history([path]) == [started(1)]
    path.write_bytes(whole[:20] + b"\n" + whole)
    with pytest.raises(msgspec.DecodeError):
        read_history([path])


def test_a_reader_returns_only_what_is_new_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "a"
    reader = HistoryReader(path)
    assert reader.read() == []
    with Recorder(path, "w1") as recorder:
        recorder.record(started(1))
        assert reader.read() == [started(1)]
        assert reader.read() == []
        recorder.record(started(2))
        assert reader.read() == [started(2)]


def test_an_event_is_in_the_file_before_record_returns(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "a", "w1")
    recorder.record(started(1))
    assert read_history([tmp_path / "a"]) == [started(1)]
    recorder.close()


def creation(
    schedule: Schedule | None, sent_ms: int = T0, fires: list[str] | None = None
) -> Creation:
    return Creation(
        job_id="1",
        label="",
        schedule=schedule,
        sent_us=sent_ms * 1000,
        acked_us=sent_ms * 1000 + 1,
        next_fires=fires or [],
    )


@pytest.mark.parametrize(
    ("schedule", "sent", "until", "expected"),
    [
        (Every(400, anchor=T0), T0, T0 + 1_300, [400, 800, 1_200]),
        (Every(400, anchor=T0 - 100), T0, T0 + 900, [300, 700]),
        (Every(400, anchor=T0 + 1_000), T0, T0 + 1_500, [1_000, 1_400]),
        (Every(400, anchor="2025-11-30T05:20:00Z", until=T0 + 900), T0, T0 + 5_000, [400, 800]),
        (Cron("* * * * * *"), T0, T0 + 3_000, [1_000, 2_000, 3_000]),
        (Cron("* * * * * *"), T0 + 1, T0 + 1_999, [1_000]),
        (Cron("*/20 * * * * *"), T0, T0 + 60_000, [20_000, 40_000, 60_000]),
        (Cron("10,30-32 * * * * *"), T0, T0 + 60_000, [10_000, 30_000, 31_000, 32_000]),
        (Cron("21-23/2 5 * * *"), T0, T0 + 600_000, [60_000, 180_000]),
        (Cron("* * * * * *", until=T0 + 1_500), T0, T0 + 9_000, [1_000]),
        (Cron("* * * * *", "Asia/Kathmandu"), T0, T0 + 130_000, [60_000, 120_000]),
    ],
)
def test_nominal_times(schedule: Schedule, sent: int, until: int, expected: list[int]) -> None:
    assert [n - T0 for n in nominal_times(creation(schedule, sent), until)] == expected


def test_an_interval_without_an_anchor_starts_where_the_cluster_said() -> None:
    job = creation(Every(500), fires=["2025-11-30T05:20:00.507Z"])
    assert [n - T0 for n in nominal_times(job, T0 + 1_600)] == [507, 1_007, 1_507]


@pytest.mark.parametrize(
    "schedule",
    [
        None,
        At(T0),
        Every(500),
        Cron("0 0 1 * *"),
        Cron("0 * * * *", "Europe/Berlin"),
        Every(500, anchor=T0, start=T0 + 5),
        Every(500, anchor=T0, max_runs=3),
        Cron("* * * * * *", exclude=[DatesExcluded(["2025-11-30"])]),
    ],
)
def test_what_is_not_understood_is_refused(schedule: Schedule | None) -> None:
    with pytest.raises(NotEnumerable):
        list(nominal_times(creation(schedule), T0 + 1_000))


def test_an_instant_needs_an_offset() -> None:
    assert instant_ms("2025-11-30T05:20:00.507+00:00") == T0 + 507
    with pytest.raises(ValueError, match="no offset"):
        instant_ms("2025-11-30T05:20:00")
