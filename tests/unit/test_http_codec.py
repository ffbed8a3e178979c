"""Negotiation and strict decoding: what is refused, and which field is named."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timeball.client import messages
from timeball.client.errors import (
    InvalidRequest,
    NotAcceptable,
    TimeballError,
    TooLarge,
    UnsupportedMediaType,
)
from timeball.cluster.http import codec, values
from timeball.cluster.http.exchange import Form

DECODER = codec.BodyDecoder(messages.NewJobs)
FORMS: tuple[Form, ...] = ("json", "msgpack")
pack = msgspec.msgpack.encode


def jobs(job: str) -> bytes:
    return f'{{"jobs": [{{}}, {job}]}}'.encode()


def refusal(body: bytes, form: Form) -> InvalidRequest:
    def read() -> None:
        decoded = DECODER.decode(body, form)
        for place, job in enumerate(decoded.jobs):
            codec.check_queue_name(job.queue, f"jobs[{place}].")
            values.pack_value(job.payload, f"jobs[{place}].payload")

    with pytest.raises(InvalidRequest) as caught:
        read()
    assert len(caught.value.errors) == 1
    return caught.value


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"", "body"),
        (b"{", "body"),
        (b"[]", "body"),
        (b"null", "body"),
        (b'{"jobs": [{}]} {}', "body"),
        (b"{}", "jobs"),
        (b'{"jobs": []}', "jobs"),
        (b'{"jobs": [{}], "job": 1}', "job"),
        (jobs('{"colour": 1}'), "jobs[1].colour"),
        (jobs('{"queue": "a b"}'), "jobs[1].queue"),
        (jobs('{"queue": null}'), "jobs[1].queue"),
        (jobs('{"priority": true}'), "jobs[1].priority"),
        (jobs('{"priority": "5"}'), "jobs[1].priority"),
        (jobs('{"priority": 5.0}'), "jobs[1].priority"),
        (jobs('{"priority": 5e0}'), "jobs[1].priority"),
        (jobs('{"priority": -0.0}'), "jobs[1].priority"),
        (jobs('{"priority": 1e999}'), "jobs[1].priority"),
        (jobs('{"priority": NaN}'), "jobs[1].priority"),
        (jobs('{"priority": 10}'), "jobs[1].priority"),
        (jobs('{"priority": -1}'), "jobs[1].priority"),
        (jobs('{"timeout_ms": 0}'), "jobs[1].timeout_ms"),
        (jobs('{"retry": {"max_attempts": 0}}'), "jobs[1].retry.max_attempts"),
        (jobs('{"retry": {"attempts": 1}}'), "jobs[1].retry.attempts"),
        (jobs('{"schedule": {}}'), "jobs[1].schedule.type"),
        (jobs('{"schedule": {"type": "never"}}'), "jobs[1].schedule.type"),
        (jobs('{"schedule": {"type": "at"}}'), "jobs[1].schedule.time"),
        (jobs('{"schedule": {"type": "at", "time": 1.5}}'), "jobs[1].schedule.time"),
        (jobs('{"schedule": {"type": "at", "time": true}}'), "jobs[1].schedule.time"),
        (jobs('{"schedule": {"type": "after", "delay_ms": -1}}'), "jobs[1].schedule.delay_ms"),
        (jobs('{"idempotency_key": ""}'), "jobs[1].idempotency_key"),
        (jobs('{"payload": NaN}'), "jobs[1].payload"),
        (jobs('{"payload": {"a": [0, -Infinity]}}'), "jobs[1].payload.a[1]"),
        (jobs('{"payload": NaN, "other": "' + "x" * codec.MAX_PAYLOAD_BYTES + '"}'), "body"),
        (jobs('{"payload": 1e999}'), "jobs[1].payload"),
        (jobs('{"payload": 18446744073709551616}'), "jobs[1].payload"),
        (jobs('{"payload": {"deep": [-9223372036854775809]}}'), "jobs[1].payload"),
        (jobs('{"payload": "\\ud800"}'), "body"),
        (jobs('{"payload": "\\udc00 "}'), "body"),
        (jobs('{"payload": "\\ud800\\ud800"}'), "body"),
        (jobs('{"payload": "?"}').replace(b"?", b"\xff"), "jobs[1].payload"),
        (jobs('{"payload": {"a": ["?"]}}').replace(b"?", b"\xed\xa0\x80"), "jobs[1].payload"),
        (jobs('{"payload": ' + "[" * 65 + "]" * 65 + "}"), "jobs[1].payload"),
        (jobs('{"payload": ' + "[" * 50_000 + "]" * 50_000 + "}"), "body"),
        (jobs('{"payload": ' + '{"a":' * 50_000 + "1" + "}" * 50_000 + "}"), "body"),
    ],
)
def test_json_refused(body: bytes, field: str) -> None:
    error = refusal(body, "json")
    assert error.status == 400
    assert error.errors[0].field.startswith(field)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"\xc1", "body"),
        (b"\x81\xa4jobs", "body"),
        (pack({"jobs": [{}]}) + b"\x00", "body"),
        (pack([]), "body"),
        (pack({"jobs": [{1: 2}]}), "jobs[0]"),
        (pack({"jobs": [{"priority": 5.0}]}), "jobs[0].priority"),
        (pack({"jobs": [{"priority": math.nan}]}), "jobs[0].priority"),
        (pack({"jobs": [{"payload": math.nan}]}), "jobs[0].payload"),
        (pack({"jobs": [{"payload": [{"a": -math.inf}]}]}), "jobs[0].payload"),
        (pack({"jobs": [{"payload": {1: 2}}]}), "jobs[0].payload"),
        (pack({"jobs": [{"payload": msgspec.msgpack.Ext(5, b"x")}]}), "jobs[0].payload"),
        (pack({"jobs": [{"payload": msgspec.msgpack.Ext(-1, b"\0\0\0\1")}]}), "jobs[0].payload"),
        (pack({"jobs": [{"payload": ["a\x7fc"]}]}).replace(b"\x7f", b"\xff"), "jobs[0].payload"),
        (pack({"jobs": [{"queue": "a\x7fc"}]}).replace(b"\x7f", b"\xff"), "jobs[0].queue"),
        (b"\x81\xa4jobs\x91\x81\xa7payload" + b"\x91" * 50_000 + b"\xc0", "body"),
        (b"\x81\xa4jobs\x91\x81\xa7payload\xdd\xff\xff\xff\xff", "body"),
    ],
)
def test_messagepack_refused(body: bytes, field: str) -> None:
    error = refusal(body, "msgpack")
    assert error.status == 400
    assert error.errors[0].field.startswith(field)


@pytest.mark.parametrize("form", FORMS)
def test_a_batch_over_its_limit_is_too_large(form: Form) -> None:
    body = codec.encode({"jobs": [{}] * (messages.MAX_BATCH + 1)}, form)
    with pytest.raises(TooLarge) as caught:
        DECODER.decode(body, form)
    assert caught.value.status == 413
    assert caught.value.errors[0].field == "jobs"


def test_a_payload_is_measured_as_messagepack() -> None:
    fits = "x" * (messages.MAX_PAYLOAD_BYTES - 3)
    assert len(values.pack_value(fits, "payload")) == messages.MAX_PAYLOAD_BYTES
    with pytest.raises(TooLarge) as caught:
        values.pack_value(fits + "x", "payload")
    assert caught.value.errors[0].field == "payload"


def test_nesting_up_to_the_limit_is_fine() -> None:
    value: Any = 1
    for _ in range(values.MAX_DEPTH):
        value = [value]
    assert values.show_value(values.pack_value(value, "payload"), "json") == value
    with pytest.raises(InvalidRequest):
        values.pack_value([value], "payload")


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(values.MIN_INTEGER, values.MAX_INTEGER)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(VALUES)
def test_a_payload_means_the_same_in_both_forms(value: Any) -> None:
    as_json = DECODER.decode(codec.encode({"jobs": [{"payload": value}]}, "json"), "json")
    as_pack = DECODER.decode(codec.encode({"jobs": [{"payload": value}]}, "msgpack"), "msgpack")
    packed = values.pack_value(as_json.jobs[0].payload, "payload")
    assert packed == values.pack_value(as_pack.jobs[0].payload, "payload")
    assert values.show_value(packed, "json") == value
    shown = codec.encode({"payload": values.show_value(packed, "msgpack")}, "msgpack")
    assert msgspec.msgpack.decode(shown) == {"payload": value}


@given(VALUES)
def test_a_fingerprint_ignores_the_order_of_keys(value: Any) -> None:
    def turned(item: Any) -> Any:
        if isinstance(item, dict):
            return {key: turned(inner) for key, inner in reversed(item.items())}
        return [turned(inner) for inner in item] if isinstance(item, list) else item

    assert codec.fingerprint("q", value) == codec.fingerprint("q", turned(value))


def test_a_fingerprint_tells_requests_apart() -> None:
    assert len(codec.fingerprint("q", 1)) == 8
    assert codec.fingerprint("q", 1) != codec.fingerprint("q", 2)
    assert codec.fingerprint("q", 1) != codec.fingerprint("q", 1.0)
    assert codec.fingerprint("q", [1], 2) != codec.fingerprint("q", [1, 2])


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused_or_decoded(body: bytes) -> None:
    for form in FORMS:
        problem = None
        try:
            DECODER.decode(body, form)
        except TimeballError as error:
            problem = error.problem()
        if problem is not None:
            assert problem.status in (400, 413)
            assert problem.errors[0].field


@pytest.mark.parametrize(
    ("accept", "default", "form"),
    [
        ("", "msgpack", "msgpack"),
        ("*/*", "json", "json"),
        ("*/*", "msgpack", "msgpack"),
        ("application/msgpack", "json", "msgpack"),
        ("application/json", "msgpack", "json"),
        ("text/html, application/json;q=0.5", "msgpack", "json"),
        ("application/json;q=0.5, application/msgpack", "json", "msgpack"),
        ("application/json;q=0, */*;q=0.1", "msgpack", "msgpack"),
        ("application/problem+json", "msgpack", "json"),
        ("APPLICATION/MSGPACK", "json", "msgpack"),
    ],
)
def test_the_answer_takes_the_accepted_form(accept: str, default: Form, form: Form) -> None:
    assert codec.answer_form(accept, default) == form


@pytest.mark.parametrize(
    "accept", ["text/html", "application/json;q=0", "application/json;q=x", "application/json;q=7"]
)
def test_an_answer_that_nobody_accepts(accept: str) -> None:
    with pytest.raises(NotAcceptable):
        codec.answer_form(accept, "json")


def test_content_types() -> None:
    assert codec.body_form("application/json; charset=utf-8") == "json"
    assert codec.body_form("application/x-msgpack") == "msgpack"
    for unknown in ("", "text/plain", "application/x-www-form-urlencoded"):
        with pytest.raises(UnsupportedMediaType):
            codec.body_form(unknown)
