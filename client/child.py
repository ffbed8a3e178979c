"""The process in which handlers of the kind "process" run: one at a time, told when to end.

It speaks with its worker over one pipe, in pickles, for both are the same program:

    worker → child   Run        handle this delivery
                     Interrupt  it is lost, cancelled, or the worker stops
    child → worker   Progress   how far it has come
                     bytes of the encoded result; `Failed`; None: it ended as it was told to

When the pipe ends its worker is dead, and so are its leases, soon: what runs is told that it is
lost, and the process ends after `ORPHAN_GRACE_MS`.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import NamedTuple

import msgspec

from timeball.client.context import ExecutionCancelled, ExecutionContext, enter_execution
from timeball.client.errors import LeaseLost
from timeball.client.messages import Delivery
from timeball.client.outcomes import Failed, encode_result, failed

TELLING_MS = 250
"""Between two tellings of progress: of what a handler tells meanwhile, the latest is sent."""
ORPHAN_GRACE_MS = 1_000
"""How long a handler may clean up after its worker has died."""


class Run(NamedTuple):
    """Handle a delivery. The function is pickled by its name, apart: to load it may fail."""

    function: bytes
    delivery: bytes


class Interrupt(NamedTuple):
    """Tell the handler of `token` to end: `lost` says why, `cancelled` that its job was."""

    token: int
    lost: str
    cancelled: bool


class Progress(NamedTuple):
    """The handler of `token` has come so far, in MessagePack."""

    token: int
    packed: bytes


def serve(pipe: Connection) -> None:
    """Run what comes over the pipe until it ends."""
    for number in (signal.SIGINT, signal.SIGTERM):
        # A terminal or a service manager sends it to all processes: the worker drains, and its
        # handlers with it. A function, since what is ignored stays so in programs started here.
        signal.signal(number, lambda *_: None)
    _Child(pipe).work()


class _Child:
    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._runs: SimpleQueue[tuple[Run, ExecutionContext]] = SimpleQueue()
        self._context: ExecutionContext | None = None
        self._speaking = threading.Lock()
        self._news = threading.Event()
        self._teller: threading.Thread | None = None
        threading.Thread(target=self._listen, daemon=True).start()

    def work(self) -> None:
        while True:
            run, context = self._runs.get()
            enter_execution(context)
            answer: bytes | Failed | None
            try:
                function: Callable[[ExecutionContext], object] = pickle.loads(run.function)
                answer = bytes(encode_result(function(context)))
            except BaseException as error:  # noqa: BLE001 - it goes to the worker
                told_to = isinstance(error, ExecutionCancelled | LeaseLost) and context.interrupted
                answer = None if told_to else failed(error)
            self._context = None
            with self._speaking:
                self._pipe.send(answer)

    def _listen(self) -> None:
        while True:
            try:
                message = self._pipe.recv()
            except (EOFError, OSError):
                self._orphaned()
            if isinstance(message, Run):
                delivery = msgspec.msgpack.decode(message.delivery, type=Delivery)
                self._context = ExecutionContext(delivery)
                self._context.tell_progress = self._has_news
                self._runs.put((message, self._context))
            elif isinstance(message, Interrupt):
                self._interrupt(message)

    def _has_news(self) -> None:
        """The handler told progress; it is sent by a thread of its own, at a bounded rate."""
        if not self._news.is_set():
            self._news.set()
            if self._teller is None:
                self._teller = threading.Thread(target=self._tell, daemon=True)
                self._teller.start()

    def _tell(self) -> None:
        while self._news.wait():
            self._news.clear()
            context = self._context
            if context is not None and context.packed_progress is not None:
                with contextlib.suppress(OSError), self._speaking:
                    self._pipe.send(Progress(context.token, context.packed_progress))
            threading.Event().wait(TELLING_MS / 1_000)

    def _interrupt(self, message: Interrupt) -> None:
        context = self._context
        if context is None or context.token != message.token:
            return
        if message.lost:
            context.lose(message.lost)
        elif message.cancelled:
            context.cancel()
        else:
            context.stop()

    def _orphaned(self) -> None:
        if (context := self._context) is not None:
            context.lose("the worker died")
            threading.Event().wait(ORPHAN_GRACE_MS / 1_000)
        os._exit(1)
