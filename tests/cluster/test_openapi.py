"""The whole described interface, fuzzed against three real nodes: what is described holds.

Schemathesis makes requests from the document, good and bad ones, in both forms. Each answer has to
have a described status, media type, headers and schema; the cluster is quiet, so no status is 500
or more; and what the schema forbids is refused with the name of the field. The seed is fixed.
`TIMEBALL_OPENAPI_EXAMPLES` asks for a larger run (the suite's is small), and counts are printed.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
import pytest
import pytest_asyncio
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, reject, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.config import SchemathesisConfig

from timeball.client.messages import Problem
from timeball.cluster.http.openapi import build
from timeball.cluster.localcluster import LocalCluster

LARGE = "TIMEBALL_OPENAPI_EXAMPLES"
EXAMPLES = int(os.environ.get(LARGE, "12"))
ANSWER_S = 20.0
OWN_RULES = (
    *("schedule", "payload", "result", "start", "until", "after", "cursor", "job"),
    *("job_id", "died_after", "died_before", r"retry\.delays_ms", r"retry\.max_ms"),
    *(
        "idempotency_key",
        "last-event-id",
        "idempotency-key",
        "timeball-request-id",
        "if-none-match",
    ),
)
"""Fields with rules beyond their schema: what it admits may still be refused for these."""
FRACTION = r"Expected `int\b.*`, got `float`"
"""To JSON Schema 5.0 is an integer; numbers here are strict (HTTP-05)."""

SCHEMA = schemathesis.openapi.from_dict(
    build(),
    config=SchemathesisConfig.from_dict(
        {
            "seed": 7,
            "generation": {"database": "none", "deterministic": True, "max-examples": EXAMPLES},
            "checks": {
                "positive_data_acceptance": {"enabled": False},  # `check_problem` is stricter
                "negative_data_rejection": {
                    "expected-statuses": [400, 404, 405, 406, 412, 413, 415]
                },
            },
        }
    ),
)
OPERATIONS = {found.ok().label: found.ok() for found in SCHEMA.get_all_operations()}
SETTINGS = settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),  # a failing request is printed; smaller ones cost time
    suppress_health_check=list(HealthCheck),
)


@schemathesis.serializer("application/msgpack")
def pack(ctx: schemathesis.SerializationContext, value: Any) -> bytes:
    try:
        return msgspec.msgpack.encode(value)
    except OverflowError:  # MessagePack has no such integers
        reject()


@schemathesis.deserializer("application/msgpack", "application/problem+msgpack")
def unpack(ctx: schemathesis.DeserializationContext, response: schemathesis.Response) -> Any:
    return msgspec.msgpack.decode(response.content)


class Fuzzed:
    """The cluster, and things in it that requests can be about."""

    def __init__(self, cluster: LocalCluster, known: dict[str, list[str]]) -> None:
        self.urls = itertools.cycle(cluster.urls)
        self.known = known
        self.session = requests.Session()
        self.counts: Counter[tuple[str, int]] = Counter()

        self.session.trust_env = False  # to look for proxies takes longer than to ask

    def judge(self, case: schemathesis.Case) -> None:
        """Make one request, of each node in turn, and hold the answer against the document."""
        self._aim(case)
        url = next(self.urls)
        response = case.call(base_url=url, session=self.session, timeout=ANSWER_S)
        self.counts[case.operation.label, response.status_code] += 1
        case.validate_response(response)
        if response.status_code >= 400 and response.request.method != "HEAD":
            positive = case.meta is not None and case.meta.generation.mode.is_positive
            check_problem(response, positive=positive)

    def _aim(self, case: schemathesis.Case) -> None:
        """Let every other request be about something that is there, and no claim wait long."""
        for name, found in self.known.items():
            value = (case.path_parameters or {}).get(name)
            if isinstance(value, str) and sum(value.encode()) % 2:
                case.path_parameters[name] = found[len(value) % len(found)]
        index = (case.query or {}).get("min_index")
        if type(index) is int and 0 <= index < 2**53:
            case.query["min_index"] = index % 2  # a position to come is refused by 503
        if case.path == "/v1/events":  # it would be told for ever, or of what is still to come
            case.query = {"follow": "false", **(case.query or {})}
            for part, name in ((case.query, "after"), (case.headers, "Last-Event-ID")):
                if part and re.match(r"\d{1,16}(-|\Z)", str(part.get(name))):
                    part[name] = "oldest"
            if case.query["follow"] == "true":
                case.query["follow"] = "false"
        wait = case.body.get("wait_ms") if isinstance(case.body, dict) else None
        if type(wait) is int and 0 < wait <= 60_000:
            case.body["wait_ms"] = wait % 10


async def _post(session: aiohttp.ClientSession, url: str, body: Any) -> Any:
    async with session.request("PUT" if "by-name" in url else "POST", url, json=body) as answer:
        assert answer.status < 300, await answer.text()
        return await answer.json()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fuzzed]:
    cluster = LocalCluster.in_folder(tmp_path_factory.mktemp("fuzzed"))
    async with cluster, aiohttp.ClientSession() as session:
        url = cluster.urls[0]
        later = {"type": "after", "delay_ms": 10**9}
        daily = {"type": "cron", "expression": "@daily"}
        once = await _post(session, f"{url}/v1/jobs", {"queue": "aim", "schedule": later})
        named = await _post(session, f"{url}/v1/jobs/by-name/aim", {"schedule": daily})
        await _post(session, f"{url}/v1/jobs", {"queue": "held"})
        claim = {"queue": "held", "worker": "w", "wait_ms": 5000, "lease_ms": 3_600_000}
        claimed = await _post(session, f"{url}/v1/claims", claim)
        (held,) = claimed["executions"]
        found = {
            "job_id": [once["job_id"], named["job_id"], held["job_id"]],
            "execution_id": [once["execution_id"], held["execution_id"]],
            "request_id": [claimed["request_id"]],
            "name": ["aim", "a"],
        }
        fuzzed = Fuzzed(cluster, found)
        yield fuzzed
        fuzzed.session.close()
        term = {view.term for name in cluster.names if (view := await cluster.view(name))}
    for name in cluster.names:
        log = cluster.log_path(name).read_text("utf-8")
        assert "Traceback" not in log, f"node {name}: {log[-3000:]}"
    print(f"\n{fuzzed.counts.total()} requests; terms {term}")
    for label in sorted({label for label, _ in fuzzed.counts}):
        statuses = {
            status: n for (name, status), n in sorted(fuzzed.counts.items()) if name == label
        }
        print(f"{label}: {sum(statuses.values())} {statuses}")


@pytest.mark.timeout(7_200 if LARGE in os.environ else 120)
@pytest.mark.parametrize("mode", list(GenerationMode))
@pytest.mark.parametrize("label", OPERATIONS)
def test_what_is_described_holds(label: str, mode: GenerationMode, fuzzed: Fuzzed) -> None:
    @SETTINGS
    @given(case=OPERATIONS[label].as_strategy(generation_mode=mode))
    def ask(case: schemathesis.Case) -> None:
        fuzzed.judge(case)

    with contextlib.suppress(Unsatisfiable):  # a request that has nothing to be wrong about
        ask()


if LARGE in os.environ:  # to make these requests takes long, even where none is sent

    @pytest.mark.timeout(7_200)
    @SCHEMA.parametrize()
    @SETTINGS
    def test_every_boundary_of_every_field(case: schemathesis.Case, fuzzed: Fuzzed) -> None:
        fuzzed.judge(case)


def check_problem(response: schemathesis.Response, *, positive: bool) -> None:
    """A problem document says what its answer says, and a bad request names a field.

    What the schema admits is refused for rules that no schema can tell, and no others.
    """
    (kind,) = response.headers["content-type"]
    decode = msgspec.msgpack.decode if kind.endswith("msgpack") else msgspec.json.decode
    problem = decode(response.content, type=Problem)
    assert problem.status == response.status_code
    assert problem.title
    if response.status_code in (400, 413):
        assert problem.errors
        assert all(error.field and error.detail for error in problem.errors)
        for error in problem.errors if positive else ():
            if re.fullmatch(FRACTION, error.detail):
                continue
            told = (problem, response.request.headers, response.request.body)
            assert re.search(rf"(^|\.)({'|'.join(OWN_RULES)})\b", error.field), told
