"""Retry policies on the command line."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from timeball.client.cli import main
from timeball.client.cli.retrying import retry_options, revised, tell_retry
from timeball.client.messages import Retry


def policy_of(words, former=None):
    """The policy that options make, and how the command ended."""
    made = []

    @click.command()
    @retry_options
    def command(retrying):
        made.append(revised(former or Retry(), retrying))

    result = CliRunner().invoke(command, words)
    return (made[0] if made else None), result


@pytest.mark.parametrize(
    ("words", "retry"),
    [
        ("", Retry()),
        ("--max-attempts 2", Retry(2)),
        ("--backoff linear --retry-delay 5s", Retry(initial_ms=5_000, backoff="linear")),
        ("--backoff fixed --retry-delay 0ms", Retry(initial_ms=0, backoff="fixed")),
        ("--retry-delay 1s --retry-delay 2m", Retry(backoff="list", delays_ms=(1_000, 120_000))),
        ("--backoff list --retry-delay 1s", Retry(backoff="list", delays_ms=(1_000,))),
        ("--retry-delay 2h", Retry(initial_ms=7_200_000, max_ms=7_200_000)),
        (
            "--retry-cap 10s --retry-jitter 100 --non-retryable A --non-retryable b.B",
            Retry(max_ms=10_000, jitter_pct=100, non_retryable_errors=("A", "b.B")),
        ),
        ("--retry-jitter 0 --retry-cap 0ms", Retry(max_ms=0, jitter_pct=0)),
    ],
)
def test_options_make_a_policy(words, retry) -> None:
    made, result = policy_of(words.split())
    assert result.exit_code == 0, result.output
    assert made == retry


@pytest.mark.parametrize(
    ("words", "former", "retry"),
    [
        ("--max-attempts 9", Retry(2, 50, backoff="fixed"), Retry(9, 50, backoff="fixed")),
        (
            "--retry-delay 2s",
            Retry(backoff="list", delays_ms=(1, 2)),
            Retry(backoff="list", delays_ms=(2_000,)),
        ),
        ("--backoff fixed", Retry(backoff="list", delays_ms=(1, 2)), Retry(backoff="fixed")),
        ("--retry-delay 2s", Retry(max_ms=9_000_000), Retry(initial_ms=2_000, max_ms=9_000_000)),
    ],
)
def test_options_change_a_policy_and_leave_the_rest(words, former, retry) -> None:
    assert policy_of(words.split(), former)[0] == retry


def test_several_delays_are_no_other_backoff() -> None:
    made, result = policy_of(["--backoff", "fixed", "--retry-delay", "1s", "--retry-delay", "2s"])
    assert (made, result.exit_code) == (None, 2)
    assert "make a list, not --backoff fixed" in result.output


@pytest.mark.parametrize(
    ("retry", "told"),
    [
        (Retry(), "1s, then 2 times the one before; at most 1h"),
        (Retry(multiplier_pct=150), "1s, then 1.5 times the one before; at most 1h"),
        (Retry(backoff="linear"), "1s, then 1s longer than the one before; at most 1h"),
        (Retry(backoff="fixed", initial_ms=90_000), "always 90s; at most 1h"),
        (Retry(backoff="list", delays_ms=(0, 60_000)), "0s, 1m; at most 1h"),
    ],
)
def test_a_policy_is_told_in_words(retry, told) -> None:
    facts = dict(tell_retry(retry))
    assert facts["retry after"] == told
    assert facts["attempts"] == "at most 5"
    assert "retry after" not in dict(tell_retry(Retry(1)))


def test_a_created_job_has_the_policy_that_was_asked_for(kit) -> None:
    created = {"status": "created", "job_id": "7"}
    with kit.serving() as peer:
        peer.then("/v1/jobs", kit.Answer(201, created))
        words = "job create --retry-delay 1s --retry-delay 5s --non-retryable KeyError"
        result = CliRunner().invoke(main, words.split(), env={"TIMEBALL_URLS": peer.url})
        assert result.exit_code == 0, result.output
        retry = peer.seen[0].body["retry"]
    assert (retry["backoff"], retry["delays_ms"]) == ("list", [1_000, 5_000])
    assert retry["non_retryable_errors"] == ["KeyError"]
