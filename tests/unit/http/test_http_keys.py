"""Idempotency keys over HTTP: what may be asked, what is refused by name, and what repeats make."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import msgspec
import pytest

from timeball.client import Client, DuplicateJob, Idempotency, KeyReused, errors
from timeball.client.failover import Trouble
from timeball.client.flow import NoReply, Pause, Reply, Send
from timeball.cluster.http.exchange import Request
from timeball.cluster.raft.errors import NotLeader, OutcomeUnknown
from timeball.cluster.state.operations import CreateJobs

DAY_MS = 86_400_000
UNIQUE = {"until": "job_ends"}


def keyed(key: str = "k", **rule: Any) -> dict[str, Any]:
    return {"idempotency_key": key, **({"idempotency": rule} if rule else {})}


async def create(desk: Any, body: Any, **headers: str) -> Any:
    return await desk.ask("POST", "/v1/jobs", body, **headers)


async def view(desk: Any, job_id: str) -> Any:
    return (await desk.ask("GET", f"/v1/jobs/{job_id}")).body


# --- what may be asked ---------------------------------------------------------------------------


async def test_a_job_shows_how_its_key_holds_and_no_more_once_it_is_free(desk) -> None:
    plain = await create(desk, keyed())
    short = await create(desk, keyed("s", window_ms=1_000, scope="queue"))
    unique = await create(desk, keyed("u", **UNIQUE))
    shown = [(await view(desk, one.body["job_id"]))["idempotency"] for one in (plain, short)]
    assert shown == [
        {"scope": "cluster", "until": "window_ends", "expires_at": "2025-12-01T05:20:00.000Z"},
        {"scope": "queue", "until": "window_ends", "expires_at": "2025-11-30T05:20:01.000Z"},
    ]
    assert (await view(desk, unique.body["job_id"]))["idempotency"] == {
        "scope": "cluster",
        "until": "job_ends",
        "expires_at": None,
    }
    desk.pass_ms(1_000)
    await desk.ask("DELETE", f"/v1/jobs/{unique.body['job_id']}")
    for one in (short, unique):
        shown = await view(desk, one.body["job_id"])
        assert shown["idempotency"] is None
        assert shown["idempotency_key"] is not None


async def test_the_header_gives_the_key_of_the_rule_in_the_body(desk) -> None:
    body = {"idempotency": {"window_ms": 1_000}}
    first = await create(desk, body, idempotency_key="h")
    assert first.status == 201
    assert (await create(desk, body, idempotency_key="h")).body["job_id"] == first.body["job_id"]


async def test_a_duplicate_is_refused_by_name_and_names_the_job(desk) -> None:
    first = (await create(desk, keyed(on_duplicate="reject"))).body["job_id"]
    refused = await create(desk, keyed(on_duplicate="reject"))
    assert (refused.status, refused.field) == (409, "idempotency_key")
    assert refused.body["type"] == "urn:timeball:problem:duplicate-job"
    assert (refused.body["job_id"], refused.body["outcome"]) == (first, "not_applied")
    jobs = {"jobs": [{}, keyed(on_duplicate="reject"), keyed()]}
    results = (await desk.ask("POST", "/v1/jobs/batch", jobs)).body["results"]
    assert [one["status"] for one in results] == ["created", "refused", "duplicate"]
    problem = results[1]["problem"]
    assert (problem["job_id"], problem["errors"][0]["field"]) == (first, "jobs[1].idempotency_key")


async def test_one_key_until_the_job_has_ended(desk) -> None:
    first = (await create(desk, keyed(**UNIQUE))).body["job_id"]
    assert (await create(desk, keyed(**UNIQUE))).body == {
        **(await create(desk, keyed(**UNIQUE))).body,
        "status": "duplicate",
        "job_id": first,
    }
    await desk.ask("DELETE", f"/v1/jobs/{first}")
    assert (await create(desk, keyed(**UNIQUE))).status == 201


async def test_as_many_held_keys_as_may_be_answer_429(desk) -> None:
    desk.log.settings(idempotency_keys_held=1)
    await create(desk, keyed(**UNIQUE))
    full = await create(desk, keyed("other", **UNIQUE))
    assert (full.status, full.body["type"]) == (429, "urn:timeball:problem:overloaded")
    assert "idempotency keys" in full.body["detail"]
    assert full.headers["Retry-After"] == "1"


async def test_a_replay_says_that_another_job_has_the_key(desk) -> None:
    first = (await create(desk, keyed(**UNIQUE))).body
    hold = tuple(map(int, first["execution_id"].split("-")))
    (token,) = desk.log.claim(hold)
    desk.log.fail(hold, token, non_retryable=True)
    other = (await create(desk, keyed(**UNIQUE))).body["job_id"]
    named = {"execution_ids": [first["execution_id"]]}
    answer = await desk.ask("POST", "/v1/dead/replay", named)
    assert [one["status"] for one in answer.body["results"]] == ["key_taken"]
    matching = (await desk.ask("POST", "/v1/dead/replay-matching", {})).body
    assert (matching["matched"], matching["moved"]) == (1, 0)
    await desk.ask("DELETE", f"/v1/jobs/{other}")
    answer = await desk.ask("POST", "/v1/dead/replay", named)
    assert [one["status"] for one in answer.body["results"]] == ["replayed"]


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"idempotency": {}}, "idempotency"),
        (keyed(window_ms=5, until="job_ends"), "idempotency.window_ms"),
        (keyed(window_ms=30 * DAY_MS + 1), "idempotency.window_ms"),
        (keyed(window_ms=0), "idempotency.window_ms"),
        (keyed(window_ms=True), "idempotency.window_ms"),
        (keyed(scope="job"), "idempotency.scope"),
        (keyed(until="ever"), "idempotency.until"),
        (keyed(on_duplicate="replace"), "idempotency.on_duplicate"),
        (keyed(for_ms=5), "idempotency.for_ms"),
    ],
    ids=str,
)
async def test_a_rule_that_can_not_be_is_refused_by_its_field(desk, body, field) -> None:
    for target, asked, name in (
        ("/v1/jobs", body, field),
        ("/v1/jobs/batch", {"jobs": [{}, body]}, f"jobs[1].{field}"),
    ):
        refused = await desk.ask("POST", target, asked)
        assert (refused.status, refused.field) == (400, name), refused
    assert desk.proposed == []


async def test_named_jobs_take_no_key_over_http(desk) -> None:
    every = {"type": "every", "interval_ms": 1_000}
    for field in ("idempotency_key", "idempotency"):
        refused = await desk.put("n", every, **{field: "k" if field[-1] == "y" else {}})
        assert refused.status == 400
        if field == "idempotency":
            assert refused.field == "idempotency"


BAD_KEYS = {
    "IDEM-05 no characters": b'""',
    "IDEM-05 256 characters": b'"%s"' % (b"k" * 256),
    "IDEM-05 10^6 characters": b'"%s"' % (b"k" * 10**6),
    "IDEM-05 a lone surrogate": b'"\\ud800"',
    "IDEM-05 a lone low surrogate": b'"a\\udfff"',
    "IDEM-05 no UTF-8": b'"\xed\xa0\x80"',
    "IDEM-05 a number": b"5",
}


@pytest.mark.parametrize("key", BAD_KEYS.values(), ids=BAD_KEYS)
async def test_a_key_that_can_not_be_is_refused_in_the_body(desk, key) -> None:
    refused = await desk.ask("POST", "/v1/jobs", b'{"idempotency_key": %s}' % key)
    # Half of a pair is no JSON either, and then no field can be blamed.
    malformed = key.startswith((b'"\\u', b'"a\\u'))
    assert (refused.status, refused.field) == (400, "body" if malformed else "idempotency_key")
    assert desk.proposed == []


@pytest.mark.parametrize(
    "key",
    ["", "k" * 256, "k" * 10**6, "a\0b", "a\nb", "a\udfffb"],
    ids=["empty", "256", "10^6", "NUL", "newline", "lone surrogate"],
)
async def test_idem_05_a_key_that_can_not_be_is_refused_in_the_header(desk, key) -> None:
    refused = await create(desk, {}, idempotency_key=key)
    assert (refused.status, refused.field) == (400, "idempotency-key")
    assert desk.proposed == []


SOUND_KEYS = ["k", "k" * 255, "\U0001f553" * 255, "a\0b", "a\nb", "\u00e9", "e\u0301", "K"]


async def test_idem_05_any_other_text_is_a_key_and_none_is_taken_for_another(desk) -> None:
    """Look-alikes are not folded: é in one character or two, k or K, are keys of their own."""
    jobs = []
    for key in SOUND_KEYS:
        first, again = [await create(desk, keyed(key)) for _ in range(2)]
        assert (first.status, again.status) == (201, 200)
        assert first.body["job_id"] == again.body["job_id"]
        jobs.append(first.body["job_id"])
        assert (await view(desk, jobs[-1]))["idempotency_key"] == key
    assert len(set(jobs)) == len(SOUND_KEYS)


# --- repeats after an unknown outcome ------------------------------------------------------------


class Broken:
    """A transport to the desk. The leader dies at a random point of a request, or does not."""

    def __init__(self, desk: Any, seed: int) -> None:
        self.desk, self.rng = desk, Random(seed)
        self.seen: Counter[str] = Counter()

    async def drive(self, steps: Any) -> Any:
        try:
            step = next(steps)
            while True:
                step = steps.send(None if isinstance(step, Pause) else await self.send(step))
        except StopIteration as stop:
            return stop.value

    async def close(self) -> None:
        pass

    async def send(self, send: Send) -> Reply | NoReply:
        fates = ["", "", "unreachable", "before", "after", "refused", "lost", "committed"]
        fate = self.rng.choice(fates)
        self.seen[fate] += 1
        if fate == "unreachable":
            return NoReply(Trouble.UNREACHABLE, "connection refused")
        if fate == "before":  # it died with the request in its hands
            return NoReply(Trouble.BROKEN, "connection reset")

        def dies(operation: Any) -> None:
            if fate == "refused":
                raise NotLeader
            if fate == "committed":  # it ceased to lead, and the next has the entry
                self.desk.log.apply(operation)
            if fate in ("committed", "lost"):
                raise OutcomeUnknown("leadership changed")

        self.desk.before = dies
        headers = {name.lower(): value for name, value in send.headers.items()}
        request = Request(
            method=send.method, path=send.path, headers=headers, body=send.body or b""
        )
        response = await self.desk.application.handle(request)
        if response.status == 503:
            problem = msgspec.msgpack.decode(response.body)
            certain = fate == "refused"
            assert problem["outcome"] == ("not_applied" if certain else "unknown")
        if fate == "after":  # it died with the answer in its hands
            return NoReply(Trouble.BROKEN, "connection reset")
        return Reply(response.status, response.content_type, response.body)


RULES = {
    "no key": None,
    "plain key": {"idempotency_key": "{}"},
    "window": {"idempotency_key": "{}", "idempotency": Idempotency(window_ms=DAY_MS)},
    "until the job ends": {"idempotency_key": "{}", "idempotency": Idempotency(until="job_ends")},
    "duplicates refused": {
        "idempotency_key": "{}",
        "idempotency": Idempotency(on_duplicate="reject"),
    },
}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
async def test_idem_04_500_creates_whose_leader_dies_make_one_job_each(desk, rule) -> None:
    broken = Broken(desk, 4)
    made: dict[int, str] = {}
    now = iter(range(10**9))
    async with Client(
        ["http://a", "http://b", "http://c"],
        transport=broken,
        rng=Random(1),
        now_ms=lambda: next(now),
    ) as client:
        for number in range(500):
            asked = {
                name: value.format(number) if isinstance(value, str) else value
                for name, value in (rule or {}).items()
            }
            created = await client.create(payload=number, **asked)
            made[number] = created.job_id
            desk.log.pass_ms(3)
    kept = desk.log.machine.list_jobs(limit=10_000).items
    assert {msgspec.msgpack.decode(job.payload): str(job.id) for job in kept} == made
    assert len(kept) == 500
    assert all(broken.seen[fate] > 50 for fate in broken.seen)


async def test_idem_04_by_hand_the_key_alone_makes_a_repeat_safe(desk) -> None:
    """No request id, as from curl: a refused duplicate names the job that the first try made."""

    def dies(operation: CreateJobs) -> None:
        desk.before = lambda _operation: None
        desk.log.apply(operation)
        raise OutcomeUnknown("leadership changed")

    for body in (keyed("a"), keyed("b", on_duplicate="reject")):
        desk.before = dies
        unknown = await create(desk, body)
        assert (unknown.status, unknown.body["outcome"]) == (503, "unknown")
        repeat = await create(desk, body)
        job = desk.log.machine.job(int(repeat.body["job_id"]))
        assert job is not None
        assert job.idempotency_key == body["idempotency_key"]
    assert len(desk.log.machine.list_jobs().items) == 2


async def test_the_client_raises_what_the_problem_says(desk) -> None:
    async with Client("http://a", transport=_Direct(desk)) as client:
        once = Idempotency(on_duplicate="reject", scope="queue")
        first = await client.create(idempotency_key="k", idempotency=once)
        with pytest.raises(DuplicateJob) as refused:
            await client.create(idempotency_key="k", idempotency=once)
        assert refused.value.job_id == first.job_id
        assert isinstance(refused.value, errors.Conflict)
        with pytest.raises(KeyReused):
            await client.create(idempotency_key="k", idempotency=once, payload="other")


class _Direct(Broken):
    """A transport without troubles."""

    def __init__(self, desk: Any) -> None:
        super().__init__(desk, 0)
        self.rng.choice = lambda fates: fates[0]  # type: ignore[method-assign]
