"""`timeball worker` and its options, against a scripted peer on loopback."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from timeball.client.cli import main


def call(*arguments, url="http://127.0.0.1:1"):
    return CliRunner().invoke(main, ["worker", *arguments], env={"TIMEBALL_URLS": url})


EXEC = ("--exec", "true")
HTTP = ("--http", "http://127.0.0.1:1/")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give --exec COMMAND or --http URL, and not both"),
        ((*EXEC, *HTTP), "and not both"),
        (("--exec", " "), "not empty"),
        (("--exec", "true", "--fatal", "75"), "1 to 255 but 75, got 75"),
        (("--exec", "true", "--fatal", "404"), "got 404"),
        (("--exec", "true", "--header", "A: b"), "--header goes with --http"),
        (("--exec", "true", "--headers-file", "f"), "--headers-file goes with --http"),
        (("--exec", "true", "--ca", "f"), "--ca goes with --http"),
        ((*EXEC, "--concurrency", "0"), "--concurrency"),
        ((*EXEC, "--timeout", "10"), "'10' is not a length"),
        ((*EXEC, "--lease", "10ms"), "--lease"),
        ((*EXEC, "--url", "nowhere"), "--url"),
        ((*HTTP, "--kill-grace", "1s"), "--kill-grace goes with --exec"),
        (("--http", "ftp://a/b"), "not an http or https URL: 'ftp://a/b'"),
        ((*HTTP, "--fatal", "503"), "got 503"),
        ((*HTTP, "--header", "Secret"), "a header is written 'Name: value'"),
        ((*HTTP, "--header", "A: 1", "--header", "a: 2"), "the header a is given twice"),
        ((*HTTP, "--header", "Timeball-Token: 1"), "Timeball-Token is set for each execution"),
        ((*HTTP, "--headers-file", "/there/is/none"), "No such file"),
        ((*HTTP, "--ca", "/there/is/none"), "No such file"),
    ],
)
def test_wrong_options_are_clear_errors(arguments, message) -> None:
    result = call(*arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr


def test_a_queue_that_is_not_served_ends_it(kit) -> None:
    with kit.serving() as peer:
        missing = kit.problem("not-found", 404, detail="queue: 'nightly' is not served here")
        peer.then("/v1/claims", kit.Answer(404, missing))
        result = call(*EXEC, "--queue", "nightly", url=peer.url)
    assert result.exit_code == 1
    assert "queue: 'nightly' is not served here" in result.stderr
    assert "Traceback" not in result.stderr


def test_options_reach_the_claim_and_headers_may_come_from_a_file(kit, tmp_path: Path) -> None:
    (tmp_path / "headers").write_text("Authorization: Bearer x\n\n")
    with kit.serving() as peer:
        peer.then("/v1/claims", kit.Answer(404, kit.problem("not-found", 404, detail="no")))
        words = "--queue q --lease 4s --concurrency 7 --name w --timeout 5s --retry-after 1m"
        headers = ("--header", "X-A: b", "--headers-file", str(tmp_path / "headers"))
        call(*HTTP, *words.split(), *headers, url=peer.url)
    body = peer.to("/v1/claims")[0].body
    asked = {key: body[key] for key in ("queue", "lease_ms", "max_executions", "worker")}
    assert asked == {"queue": "q", "lease_ms": 4_000, "max_executions": 7, "worker": "w"}
