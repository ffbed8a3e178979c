"""The runner of commands: real processes, whose ends are waited for, not timed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from timeball.client import ExecutionContext
from timeball.client.errors import LeaseLost
from timeball.client.messages import Delivery
from timeball.client.runners import CommandRunner, child, command
from timeball.client.runners.command import (
    CommandFailed,
    CommandNotNow,
    CommandRefused,
    CommandTimedOut,
)
from timeball.client.runners.facts import NotTold
from timeball.client.worker import CANCEL_GRACE_MS

LONG_MS = 3_600_000


def context(payload=None, **fields) -> ExecutionContext:
    told = {
        "execution_id": "7-1764480000000", "job_id": "7", "queue": "mail", "token": 4_097,
        "attempt": 2, "max_attempts": 5, "nominal_ms": 1, "due_ms": 3, "lease_ms": 10_000,
        "timeout_ms": 0, "idempotency_key": "night-7", "payload": payload, **fields,
    }  # fmt: skip
    return ExecutionContext(Delivery(**told))


async def until(true: Callable[[], bool]) -> None:
    """Wait for what other processes do: they tell nobody."""
    async with asyncio.timeout(20):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def until_there(path: Path) -> str:
    """Wait until a command has written a line to a file."""
    await until(lambda: is_there(path) and path.read_text().endswith("\n"))
    return text_of(path)


def is_there(path: Path) -> bool:
    return path.exists()


def text_of(path: Path) -> str:
    return path.read_text()


def state_of(pid: int) -> str:
    """The state of a process, a letter; X if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def is_gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody reaped has."""
    return state_of(pid) in "ZX"


async def test_the_payload_is_json_on_the_standard_input() -> None:
    assert await CommandRunner("cat")(context({"to": "ann", "n": [1, None]})) == {
        "to": "ann",
        "n": [1, None],
    }


async def test_the_payload_is_a_line_that_the_shell_can_read() -> None:
    assert await CommandRunner('read -r p && echo "got $p"')(context({"a": 1})) == 'got {"a":1}'


async def test_a_command_need_not_read_a_payload_larger_than_a_pipe() -> None:
    large = "\x01" * 60_000
    assert await CommandRunner("echo done")(context(large)) == "done"
    assert await CommandRunner("wc -c")(context(large)) == 60_000 * 6 + 3


async def test_the_environment_tells_the_execution_and_holds_the_workers_own(monkeypatch) -> None:
    monkeypatch.setenv("OF_THE_WORKER", "kept")
    told = 'echo "$TIMEBALL_TOKEN $TIMEBALL_ATTEMPT $TIMEBALL_IDEMPOTENCY_KEY $OF_THE_WORKER"'
    assert await CommandRunner(told)(context()) == "4097 2 night-7 kept"


async def test_the_payload_is_never_part_of_the_command(tmp_path: Path) -> None:
    evil = f"$(touch {tmp_path}/x); `touch {tmp_path}/x`; '; touch {tmp_path}/x; '"
    assert await CommandRunner("cat")(context(evil, idempotency_key=evil)) == evil
    assert not is_there(tmp_path / "x")


async def test_output_without_end_is_bounded() -> None:
    result = await CommandRunner("yes | head -c 3000000; echo last")(context())
    assert isinstance(result, str)
    assert result.startswith("[")
    assert result.endswith("last")
    assert len(result) < 64 * 1024


@pytest.mark.parametrize(
    ("script", "kind", "message"),
    [
        ("echo no such host >&2; exit 3", CommandFailed, "exit code 3: no such host"),
        ("exit 1", CommandFailed, "exit code 1"),
        ("kill -SEGV $$", CommandFailed, "killed by SIGSEGV"),
        ("(exit 137)", CommandFailed, "exit code 137, as the shell tells of SIGKILL"),
        ("exit 65", CommandRefused, "exit code 65"),
        ("echo busy >&2; exit 75", CommandNotNow, "exit code 75: busy"),
        ("/there/is/no/such/program", CommandFailed, "exit code 127: "),
    ],
)
async def test_exit_codes_are_outcomes(script, kind, message) -> None:
    with pytest.raises(kind) as raised:
        await CommandRunner(script, retry_after_ms=777)(context())
    assert str(raised.value).startswith(message)
    if kind is CommandNotNow:
        assert raised.value.after_ms == 777


async def test_chosen_codes_are_for_good_and_replace_65() -> None:
    runner = CommandRunner('exit "$TIMEBALL_ATTEMPT"', fatal={3, 4})
    with pytest.raises(CommandRefused):
        await runner(context(attempt=4))
    with pytest.raises(CommandFailed):
        await runner(context(attempt=65))


async def test_a_message_ends_with_the_last_words_of_a_long_complaint() -> None:
    script = "yes no | head -c 3000000 >&2; echo at last >&2; exit 9"
    with pytest.raises(CommandFailed) as raised:
        await CommandRunner(script)(context())
    assert str(raised.value).startswith("exit code 9: …")
    assert str(raised.value).endswith("at last")
    assert len(str(raised.value)) < 2_000


async def test_what_can_not_be_told_starts_nothing(tmp_path: Path) -> None:
    runner = CommandRunner(f"touch {tmp_path}/started")
    for wrong in (context({(1, 2): 3}), context(idempotency_key="a\0b")):
        with pytest.raises(NotTold):
            await runner(wrong)
    assert not is_there(tmp_path / "started")


async def test_a_command_out_of_time_is_ended_and_may_say_something(tmp_path: Path) -> None:
    script = f"trap 'echo interrupted >&2; exit 0' TERM; echo $$ > {tmp_path}/pid; sleep 600 & wait"
    with pytest.raises(CommandTimedOut, match=r"ended after 300 ms.*: interrupted"):
        await CommandRunner(script, timeout_ms=300, grace_ms=20_000)(context())
    assert is_gone(int(text_of(tmp_path / "pid")))


async def test_the_jobs_own_timeout_counts_too() -> None:
    with pytest.raises(CommandTimedOut, match="ended after 400 ms"):
        await CommandRunner("sleep 600", grace_ms=20_000)(context(timeout_ms=500))


async def test_who_ignores_sigterm_is_killed_with_its_whole_group(tmp_path: Path) -> None:
    script = (
        f"trap '' TERM; sleep 600 & echo $! > {tmp_path}/other; echo $$ > {tmp_path}/first; wait"
    )
    running = asyncio.create_task(CommandRunner(script, grace_ms=50)(context()))
    pids = [int(await until_there(tmp_path / name)) for name in ("first", "other")]
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await until(lambda: all(map(is_gone, pids)))


async def test_a_stopped_command_hears_sigterm(tmp_path: Path) -> None:
    script = (
        f"trap 'echo told > {tmp_path}/told; exit' TERM; echo $$ > {tmp_path}/pid; "
        "kill -STOP $$; sleep 600"
    )
    state = context()
    running = asyncio.create_task(CommandRunner(script, grace_ms=20_000)(state))
    pid = int(await until_there(tmp_path / "pid"))
    await until(lambda: state_of(pid) == "T")
    state.cancelled.set()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert is_there(tmp_path / "told")


@pytest.mark.parametrize("why", ["lost", "cancelled"])
async def test_a_lost_or_cancelled_execution_gets_the_whole_grace(tmp_path: Path, why) -> None:
    """With the grace for a stop, this command would be killed before it has cleaned up."""
    script = (
        f"trap 'sleep 1.2; echo clean > {tmp_path}/clean; exit' TERM; echo > {tmp_path}/up; "
        "while :; do sleep 0.05; done"
    )
    state = context()
    running = asyncio.create_task(CommandRunner(script, grace_ms=20_000)(state))
    await until_there(tmp_path / "up")
    if why == "lost":
        state.lose("a test")
        assert isinstance(state.error, LeaseLost)
    else:
        state.cancelled.set()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert is_there(tmp_path / "clean")


def test_the_grace_for_a_stop_fits_into_the_workers() -> None:
    assert command.STOP_GRACE_MS < CANCEL_GRACE_MS


async def test_a_second_cancellation_ends_everything_at_once(tmp_path: Path) -> None:
    script = f"trap '' TERM; echo $$ > {tmp_path}/pid; while :; do sleep 0.05; done"
    state = context()
    state.cancelled.set()
    running = asyncio.create_task(CommandRunner(script, grace_ms=LONG_MS)(state))
    pid = int(await until_there(tmp_path / "pid"))
    running.cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert is_gone(pid)


async def test_what_a_command_leaves_in_the_background_ends_with_it(tmp_path: Path) -> None:
    script = f"sleep 600 & echo $! > {tmp_path}/left; echo done"
    assert await CommandRunner(script)(context()) == "done"
    left = int(text_of(tmp_path / "left"))
    await until(lambda: is_gone(left))


async def test_who_leaves_the_group_holds_nothing_up(tmp_path: Path, monkeypatch) -> None:
    """It has the output in its hands, for ever; what was written before is the result."""
    monkeypatch.setattr(child, "LAST_OUTPUT_S", 0.2)
    leaves = (
        "import os, time; os.setsid(); "
        f"print(os.getpid(), file=open('{tmp_path}/left', 'w'), flush=True); time.sleep(600)"
    )
    script = (
        f'{sys.executable} -S -c "{leaves}" & echo done; '
        f"while ! [ -s {tmp_path}/left ]; do sleep 0.01; done"
    )
    assert await CommandRunner(script)(context()) == "done"
    left = int(text_of(tmp_path / "left"))
    assert not is_gone(left)
    os.kill(left, signal.SIGKILL)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def started(monkeypatch) -> list[subprocess.Popen[bytes]]:
    """The processes that a test has started."""
    processes: list[subprocess.Popen[bytes]] = []

    class Recorded(subprocess.Popen):
        def __init__(self, *arguments, **options) -> None:
            super().__init__(*arguments, **options)
            processes.append(self)

    monkeypatch.setattr(subprocess, "Popen", Recorded)
    return processes


async def test_nothing_stays_open_or_unreaped(started) -> None:
    before = open_files()
    for script in ("true", "exit 3", "kill -KILL $$"):
        for _ in range(5):
            with contextlib.suppress(CommandFailed):
                await CommandRunner(script)(context())
    assert open_files() == before
    assert len(started) == 15
    assert all(state_of(process.pid) == "X" for process in started)


async def test_a_command_that_can_not_start_leaves_nothing(monkeypatch, started) -> None:
    before = open_files()
    with monkeypatch.context() as patched:
        patched.setattr(child, "SHELL", "/there/is/no/shell")
        with pytest.raises(FileNotFoundError):
            await CommandRunner("true")(context())

    def refuse(pid: int) -> int:
        raise OSError("no descriptors left")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    with pytest.raises(OSError, match="no descriptors"):
        await CommandRunner("sleep 600")(context())
    assert open_files() == before
    assert [state_of(process.pid) for process in started] == ["X"]


async def test_many_commands_run_at_once() -> None:
    runner = CommandRunner(f"exec {sys.executable} -S -c 'print(1)'")
    assert await asyncio.gather(*(runner(context()) for _ in range(20))) == [1] * 20


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("", {}, "not empty"),
        (" ", {}, "not empty"),
        ("a\0b", {}, "for the shell"),
        ("true", {"fatal": [0]}, "got 0"),
        ("true", {"fatal": [65, 256]}, "got 256"),
        ("true", {"fatal": [75]}, "but 75"),
    ],
)
def test_wrong_settings_are_refused(text, options, message) -> None:
    with pytest.raises(ValueError, match=message):
        CommandRunner(text, **options)
