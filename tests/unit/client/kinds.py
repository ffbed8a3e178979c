"""Handlers that processes of their own can import."""

from __future__ import annotations

import os
import signal
import threading
import time

from timeball.client import NonRetryable, RetryLater, current_execution, task


def describe(context):
    """What a handler can see, in whichever thread or process."""
    assert current_execution() is context
    return [os.getpid(), threading.get_ident(), context.payload, context.token, context.attempt]


def misbehave(context):
    match context.payload:
        case "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exits":
            os._exit(139)
        case "leaves":
            raise SystemExit(3)
        case "later":
            raise RetryLater(250)
        case "poison":
            raise NonRetryable("never")
        case "unkept":
            return object()
    return [os.getpid(), context.payload]


def obedient(context):
    """Work in small steps until it is told to end."""
    for _ in range(3_000):
        context.raise_if_cancelled()
        context.interrupted.wait_in_thread(10)
    return "nobody told it"


def tell_and_wait(context):
    """Tell progress often, and then nothing more until it is told to end."""
    for number in range(2_000):
        context.progress(number)
    context.progress("last")
    context.interrupted.wait_in_thread(30_000)
    context.raise_if_cancelled()


def stubborn(context):
    time.sleep(30)


def mark_then_hang(context):
    """Write down who runs it, and go on although told to end."""
    with open(context.payload, "w") as file:
        file.write(str(os.getpid()))
    time.sleep(30)


def outlive_a_signal(context):
    """As when a terminal or a service manager signals every process of a group."""
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGINT)
    return "drained"


@task(run_in="process")
def square(number: int) -> list[int]:
    """A task for a process of its own."""
    return [number * number, os.getpid()]
