"""Lists by time, and pages that neither repeat nor hide: over the interface, in virtual time."""

from __future__ import annotations

import pytest

from timeball.cluster.state import listing


async def pages(desk, path: str, name: str) -> tuple[list[str], int]:
    """What all pages show, and how many there were."""
    shown: list[str] = []
    count, cursor = 0, ""
    while True:
        reply = await desk.ask("GET", f"{path}&cursor={cursor}" if cursor else path)
        assert reply.status == 200, reply
        shown += [one[name] for one in reply.body[path.split("/")[2].partition("?")[0]]]
        count += 1
        cursor = reply.body["cursor"]
        if cursor is None:
            return shown, count


@pytest.fixture
async def five(desk, log) -> list[str]:
    """Jobs that are created, and due, a second after the other."""
    made = []
    for _ in range(5):
        made.append(await desk.create())
        log.pass_ms(1_000)
    return made


@pytest.mark.parametrize(
    ("after", "before", "wanted"),
    [
        (None, None, [4, 3, 2, 1, 0]),
        (0, 5_000, [4, 3, 2, 1, 0]),
        (1_000, 3_000, [2, 1]),
        (1_001, 3_001, [3, 2]),
        (None, 1_000, [0]),
        (4_000, None, [4]),
        (3_000, 1_000, []),
        (9_000, None, []),
    ],
)
@pytest.mark.parametrize("limit", [1, 100])
async def test_from_an_instant_on_to_before_another(
    desk, log, five, after, before, wanted, limit
) -> None:
    begun = log.now_ms - 5_000
    for path, what in (("jobs", "created"), ("executions", "due")):
        query = f"/v1/{path}?limit={limit}"
        query += "" if after is None else f"&{what}_after={begun + after}"
        query += "" if before is None else f"&{what}_before={begun + before}"
        shown, _ = await pages(desk, query, "job_id")
        assert shown == [five[place] for place in wanted], path


async def test_instants_may_be_text_and_are_named_when_they_are_none(desk, five) -> None:
    text = "2025-11-30T05:20:03Z"
    assert len((await pages(desk, f"/v1/jobs?created_after={text}", "job_id"))[0]) == 2
    for query in ("jobs?created_after=soon", "jobs?created_before=-1", "jobs?due_after=1"):
        reply = await desk.ask("GET", f"/v1/{query}")
        assert (reply.status, reply.field) == (400, query.partition("?")[2].partition("=")[0])
    for query in ("executions?due_before=2025-11-30", "executions?created_after=1"):
        reply = await desk.ask("GET", f"/v1/{query}")
        assert (reply.status, reply.field) == (400, query.partition("?")[2].partition("=")[0])


async def test_of_one_job_by_time(desk, log) -> None:
    job = await desk.create({"type": "every", "interval_ms": 1_000})
    for _ in range(4):
        desk.pass_ms(1_000)
    begun = log.now_ms - 4_000
    query = f"/v1/executions?job={job}&due_after={begun + 1_000}&due_before={begun + 3_000}"
    reply = await desk.ask("GET", query)
    assert len(reply.body["executions"]) == 2


async def test_a_page_looks_at_a_bounded_number_and_leads_on(desk, five, monkeypatch) -> None:
    """Though its filter lets nothing through, or only the last that it comes to."""
    monkeypatch.setattr(listing, "MOST_LOOKED_AT", 2)
    for path, what in (("jobs", "created"), ("executions", "due")):
        shown, count = await pages(desk, f"/v1/{path}?{what}_before=2025-11-30T05:20:01Z", "job_id")
        assert (shown, count) == ([five[0]], 3)


async def test_jobs_from_before_the_first_instant_are_not_looked_at(
    desk, log, five, monkeypatch
) -> None:
    monkeypatch.setattr(listing, "MOST_LOOKED_AT", 2)
    shown, count = await pages(desk, f"/v1/jobs?created_after={log.now_ms}", "job_id")
    assert (shown, count) == ([], 1)
