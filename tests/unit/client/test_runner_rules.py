"""What runners tell and understand: facts, results, limits, pace and replies."""

from __future__ import annotations

import msgspec
import pytest

from timeball.client.messages import MAX_PAYLOAD_BYTES, Delivery
from timeball.client.runners import facts, replies
from timeball.client.runners.limits import Limits, limits
from timeball.client.runners.pace import MAX_PAUSE_MS, Pace
from timeball.client.runners.results import MAX_OUTPUT_BYTES, Tail, last_words, result_of


def delivery(**fields) -> Delivery:
    told = {
        "execution_id": "7-1764480000000", "job_id": "7", "queue": "mail", "token": 4_097,
        "attempt": 2, "max_attempts": 5, "nominal_ms": 1, "due_ms": 3, "lease_ms": 10_000,
        "timeout_ms": 0, "idempotency_key": "7-1764480000000", "payload": None, **fields,
    }  # fmt: skip
    return Delivery(**told)


# --- facts -----------------------------------------------------------------------------------


def test_the_environment_tells_every_fact() -> None:
    assert facts.environment(delivery()) == {
        "TIMEBALL_EXECUTION_ID": "7-1764480000000",
        "TIMEBALL_JOB_ID": "7",
        "TIMEBALL_QUEUE": "mail",
        "TIMEBALL_TOKEN": "4097",
        "TIMEBALL_ATTEMPT": "2",
        "TIMEBALL_MAX_ATTEMPTS": "5",
        "TIMEBALL_NOMINAL_MS": "1",
        "TIMEBALL_DUE_MS": "3",
        "TIMEBALL_TIMEOUT_MS": "0",
        "TIMEBALL_IDEMPOTENCY_KEY": "7-1764480000000",
    }


def test_headers_tell_every_fact() -> None:
    told = facts.headers(delivery(idempotency_key="night 7"))
    assert told["Idempotency-Key"] == "night%207"
    assert told["Timeball-Execution-Id"] == "7-1764480000000"
    assert told["Timeball-Token"] == "4097"
    assert len(told) == len(facts.FACTS)


def test_a_fact_that_no_environment_can_hold_is_named() -> None:
    with pytest.raises(facts.NotTold, match="TIMEBALL_IDEMPOTENCY_KEY"):
        facts.environment(delivery(idempotency_key="a\0b"))


def test_no_two_keys_become_one_header() -> None:
    keys = ["é", "%C3%A9", "a b", "a%20b", "a+b", "a\r\nb", "a", "A", "a\0"]
    told = [facts.in_header(key) for key in keys]
    assert len(set(told)) == len(keys)
    assert all(text.isascii() and text.isprintable() and " " not in text for text in told)


def test_a_payload_without_json_is_refused_for_good() -> None:
    assert facts.payload_json({"a": [1, None, b"x"]}) == b'{"a":[1,null,"eA=="]}'
    with pytest.raises(facts.NotTold, match="no form in JSON"):
        facts.payload_json({(1, 2): 3})


# --- results ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("output", "result"),
    [
        (b"", None),
        (b" \n", None),
        (b'{"sent": 3}\n', {"sent": 3}),
        (b"17", 17),
        (b"3 mails sent\n", "3 mails sent"),
        (b"a\n\nb\n", "a\n\nb"),
        (b'{"a": 1}\n{"a": 2}\n', '{"a": 1}\n{"a": 2}'),
        (b"caf\xe9", "caf\N{REPLACEMENT CHARACTER}"),
        (b"NaN", "NaN"),
        (b'"\xff"', '"\N{REPLACEMENT CHARACTER}"'),
        (b"99999999999999999999999", "99999999999999999999999"),
        (b"[" * 5_000, "[" * 5_000),
    ],
)
def test_an_output_becomes_json_or_text(output, result) -> None:
    assert result_of(output) == result


@pytest.mark.parametrize("output", [b"x" * 70_000, b"\xff" * 65_000, b"\xe2\x82\xac" * 30_000])
def test_a_long_output_keeps_its_end_and_says_so(output) -> None:
    tail = Tail(MAX_OUTPUT_BYTES)
    for start in range(0, len(output), 997):
        tail.add(output[start : start + 997])
    result = result_of(tail.kept, tail.dropped)
    assert len(msgspec.msgpack.encode(result)) <= MAX_PAYLOAD_BYTES
    assert isinstance(result, str)
    assert result.startswith("[")
    assert "bytes left out] " in result


def test_json_of_which_a_part_is_missing_is_no_json() -> None:
    assert result_of(b"17", dropped=5) == "[5 bytes left out] 17"


def test_json_that_grows_over_the_limit_becomes_text() -> None:
    output = b"[" + b"1.5," * 10_000 + b"1]"
    assert len(output) < MAX_OUTPUT_BYTES
    result = result_of(output)
    assert isinstance(result, str)


def test_a_tail_is_bounded() -> None:
    tail = Tail(4)
    for part in (b"ab", b"cde", b"", b"fghijkl"):
        tail.add(part)
    assert (tail.kept, tail.dropped) == (b"ijkl", 8)


def test_last_words() -> None:
    assert last_words(b"  no such file \n", 80) == "no such file"
    assert last_words(b"0123456789", 4) == "…789"


# --- limits ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("timeout_ms", "own_ms", "grace_ms", "expected"),
    [
        (0, None, 5_000, Limits(None, 5_000)),
        (0, 30_000, 5_000, Limits(30_000, 5_000)),
        (60_000, None, 5_000, Limits(54_000, 5_000)),
        (60_000, 90_000, 5_000, Limits(54_000, 5_000)),
        (60_000, 10_000, 5_000, Limits(10_000, 5_000)),
        (2_000, None, 5_000, Limits(1_600, 200)),
    ],
)
def test_limits(timeout_ms, own_ms, grace_ms, expected) -> None:
    assert limits(timeout_ms, own_ms, grace_ms) == expected


@pytest.mark.parametrize("timeout_ms", [100, 1_000, 5_000, 7_000, 60_000, 3_600_000])
@pytest.mark.parametrize("own_ms", [None, 1, 950, 5_500, 53_999, 54_001])
@pytest.mark.parametrize("grace_ms", [0, 500, 5_000, 100_000])
def test_an_attempt_is_over_before_the_cluster_ends_it(timeout_ms, own_ms, grace_ms) -> None:
    bound = limits(timeout_ms, own_ms, grace_ms)
    assert bound.run_ms is not None
    assert bound.run_ms > 0
    assert 0 <= bound.grace_ms <= grace_ms
    assert bound.run_ms + bound.grace_ms < timeout_ms
    assert own_ms is None or bound.run_ms <= own_ms


# --- pace ------------------------------------------------------------------------------------


def test_a_busy_server_is_left_alone_and_then_asked_less() -> None:
    pace = Pace(8)
    for _ in range(8):
        assert pace.wait_ms(0) == 0
        pace.sent()
    assert pace.wait_ms(0) is None, "no more than 8 at once"
    pace.too_much(100, 2_000)
    pace.ended()
    assert pace.wait_ms(100) == 2_000
    pace.too_much(200, 1_000)
    assert pace.wait_ms(1_200) == 900, "a later refusal takes nothing back"
    for _ in range(7):
        pace.ended()
    assert (pace.window, pace.wait_ms(2_100)) == (4, 0), "halved once for one burst"
    pace.went_well()
    assert pace.window == 5
    for _ in range(9):
        pace.went_well()
    assert pace.window == 8


def test_there_is_always_one_request_and_no_pause_without_end() -> None:
    pace = Pace(1)
    pace.too_much(0, 10**9)
    assert pace.window == 1
    assert pace.wait_ms(MAX_PAUSE_MS) == 0


# --- replies ---------------------------------------------------------------------------------

WALL_MS = 1_764_480_000_000
"""2025-11-30T05:20:00Z."""


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("", 777),
        ("soon", 777),
        ("-1", 777),
        ("0", 0),
        ("120", 120_000),
        (" 7 ", 7_000),
        ("9" * 400, replies.MAX_RETRY_AFTER_MS),
        ("Sun, 30 Nov 2025 05:21:30 GMT", 90_000),
        ("Sun, 30 Nov 2025 05:19:00 GMT", 0),
        ("Sun, 30 Nov 9999 05:19:00 GMT", replies.MAX_RETRY_AFTER_MS),
        ("Sun, 99 Nov 2025 05:19:00 GMT", 777),
    ],
)
def test_retry_after(header, expected) -> None:
    assert replies.retry_after(header, WALL_MS, 777) == expected


def judge(status, body=b"", *, cut=False, location="", fatal=replies.FATAL_STATUSES):
    return replies.judge(
        status, body, cut=cut, retry_after_ms=5, location=location, fatal=frozenset(fatal)
    )


def test_a_success_gives_its_body() -> None:
    assert judge(200, b'{"id": 3}') == {"id": 3}
    assert judge(204) is None
    assert judge(202, b"done") == "done"
    assert judge(200, b"12", cut=True) == "[cut] 12"


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_sets_the_next_attempt(status) -> None:
    with pytest.raises(replies.ServerBusy, match=f"status {status}: no") as raised:
        judge(status, b"no")
    assert raised.value.after_ms == 5


@pytest.mark.parametrize("status", sorted(replies.FATAL_STATUSES))
def test_what_is_wrong_with_the_request_is_for_good(status) -> None:
    with pytest.raises(replies.RequestRefused):
        judge(status)


@pytest.mark.parametrize("status", [401, 403, 404, 408, 409, 423, 500, 501, 502, 504])
def test_what_may_pass_is_a_failure(status) -> None:
    with pytest.raises(replies.RequestFailed, match=f"status {status}: why"):
        judge(status, b"why")


def test_the_user_chooses_what_is_for_good() -> None:
    with pytest.raises(replies.RequestRefused):
        judge(404, fatal={404})
    with pytest.raises(replies.RequestFailed):
        judge(400, fatal={404})


def test_a_redirect_is_named_and_not_followed() -> None:
    with pytest.raises(replies.RequestFailed, match="redirect to /there"):
        judge(302, location="/there")
