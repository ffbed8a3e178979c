"""Tasks: functions whose calls are jobs, with arguments checked by their annotations.

    @task(queue="mail", retry=Retry(max_attempts=3))
    async def send(to: str, copies: int = 1) -> str: ...

    await send.submit(client, to="ann")             # a job
    await send("ann")                               # a plain call, as in tests
    await Worker(client, tasks=[send]).run()        # runs the jobs

A task's job has an `Envelope` as its payload, so programs in other languages can make one, too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Sequence
from typing import (
    Any,
    Generic,
    ParamSpec,
    TypedDict,
    TypeVar,
    Union,
    Unpack,
    get_type_hints,
    overload,
)

import msgspec
from msgspec import UNSET, UnsetType

from timeball.client.blocking import SyncClient
from timeball.client.client import Client
from timeball.client.context import ExecutionContext
from timeball.client.errors import InvalidRequest
from timeball.client.handlers import Handling, RunIn, check_importable, handling, is_async
from timeball.client.messages import Idempotency, JobCreated, Retry, Schedule

P = ParamSpec("P")
R = TypeVar("R")


class Envelope(msgspec.Struct, frozen=True, omit_defaults=True):
    """The payload of a task's job: the task's name and its arguments by name.

    `headers` carry what belongs to the call but is no argument, such as a trace.
    """

    task: str
    args: dict[str, Any] = {}
    headers: dict[str, str] = {}


class UnknownTask(Exception):
    """The worker has no task of the name that the payload carries: an attempt that failed.

    It is tried again by the retry policy, for a newer worker may know it.
    """


class InvalidArguments(Exception):
    """The payload's arguments do not fit the task: an attempt that failed, as `UnknownTask`."""


class Options(TypedDict, total=False):
    """How a task's jobs are created: the fields of `NewJob` but for the payload."""

    queue: str
    schedule: Schedule | None
    priority: int
    partition_key: str
    retry: Retry | None
    timeout_ms: int | None
    idempotency_key: str | None
    idempotency: Idempotency | None
    concurrency_key: str
    requires: Sequence[str]
    tags: Sequence[str]
    expires_at: str | int | None
    expires_after_ms: int | None


class Task(Generic[P, R]):
    """A function whose calls can be handed in as jobs; made by `task`."""

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str | None = None,
        run_in: RunIn | None = None,
        options: Options | None = None,
    ) -> None:
        self.function = function
        self.name = name or str(getattr(function, "__name__", type(function).__name__))
        self.options: Options = options or {}
        self._run_in = run_in
        self._signature = inspect.signature(function)
        self._arguments = _arguments_type(function, self._signature, self.name)
        self.handling = handling(self._handler(), run_in, f"the task {self.name!r}")
        self.__doc__ = function.__doc__
        self.__module__ = function.__module__
        self.__qualname__ = getattr(function, "__qualname__", self.name)

    def __repr__(self) -> str:
        return f"<task {self.name!r} of queue {self.queue!r}>"

    def __reduce__(self) -> str:
        return self.__qualname__  # pickled by name, as functions are

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function here and now."""
        return self.function(*args, **kwargs)

    @property
    def queue(self) -> str:
        """The queue of its jobs."""
        return self.options.get("queue", "default")

    def with_options(self, **options: Unpack[Options]) -> Task[P, R]:
        """Make the same task with other options: ``send.with_options(priority=9).submit(…)``."""
        changed: Options = {**self.options, **options}
        return Task(self.function, name=self.name, run_in=self._run_in, options=changed)

    @overload
    def submit(
        self, client: Client, /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, JobCreated]: ...

    @overload
    def submit(self, client: SyncClient, /, *args: P.args, **kwargs: P.kwargs) -> JobCreated: ...

    def submit(self, client: Client | SyncClient, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Create a job that calls the function with these arguments; to be awaited or not, as
        the client's `create`.

        Raises TypeError for arguments that the function does not take, `InvalidRequest` (naming
        the argument) for a value that its annotation does not allow, and what `create` raises.
        """
        return client.create(payload=self.envelope(*args, **kwargs), **self.options)

    def envelope(self, *args: P.args, **kwargs: P.kwargs) -> Envelope:
        """Make the payload of a call; raises as `submit`."""
        try:
            bound = self._signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise TypeError(f"{self.name}: {error}") from None
        plain: dict[str, Any] = {}
        for name, value in bound.items():
            try:
                plain[name] = msgspec.to_builtins(value)
            except (TypeError, ValueError, OverflowError, RecursionError) as error:
                raise InvalidRequest.at(f"{self.name}.{name}", str(error)) from error
        try:
            msgspec.convert(plain, self._arguments)
        except msgspec.ValidationError as error:
            raise _refusal(self.name, error) from error
        return Envelope(self.name, plain)

    def arguments(self, args: dict[str, Any]) -> dict[str, Any]:
        """Make the function's arguments of a payload's. Raises `InvalidArguments`."""
        try:
            given = msgspec.convert(args, self._arguments)
        except msgspec.ValidationError as error:
            raise InvalidArguments(f"{self.name}: {error}") from error
        values = {name: getattr(given, name) for name in given.__struct_fields__}
        return {name: value for name, value in values.items() if value is not UNSET}

    def _handler(self) -> Callable[[ExecutionContext], Any]:
        return self._handle_async if is_async(self.function) else self._handle

    def _handle(self, context: ExecutionContext) -> R:
        function: Callable[..., R] = self.function
        return function(**self.arguments(envelope_of(context.payload).args))

    async def _handle_async(self, context: ExecutionContext) -> object:
        function: Callable[..., Any] = self.function
        return await function(**self.arguments(envelope_of(context.payload).args))


@overload
def task(function: Callable[P, R], /) -> Task[P, R]: ...


@overload
def task(
    *, name: str | None = None, run_in: RunIn | None = None, **options: Unpack[Options]
) -> Callable[[Callable[P, R]], Task[P, R]]: ...


def task(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    run_in: RunIn | None = None,
    **options: Unpack[Options],
) -> Any:
    """Make a task of a function: ``@task``, or ``@task(queue=…, retry=…)`` with `Options`.

    Each parameter is annotated with a type that msgspec can check. `name` (by default the
    function's) goes into the payloads: it must stay the same while jobs wait. `run_in` is where
    a worker runs it, as of a handler.

    Raises TypeError for a function that can not be a task, naming the parameter.
    """

    def make(function: Callable[..., Any]) -> Task[..., Any]:
        return Task(function, name=name, run_in=run_in, options=options)

    return make if function is None else make(function)


class TaskRoute:
    """Finds the task that a payload names."""

    def __init__(self, queue: str, tasks: Sequence[Task[..., Any]]) -> None:
        self._queue = queue
        self._tasks = {each.name: each for each in tasks}

    @classmethod
    def by_queue(cls, tasks: Sequence[Task[..., Any]]) -> dict[str, TaskRoute]:
        """Make the routes of some tasks. Raises ValueError when two of a queue share a name."""
        queues: dict[str, dict[str, Task[..., Any]]] = {}
        for each in tasks:
            if not isinstance(each, Task):
                raise TypeError(f"not a task: {each!r}; a handler is given with its queue")
            named = queues.setdefault(each.queue, {})
            if each.name in named:
                raise ValueError(f"two tasks of the queue {each.queue!r} are named {each.name!r}")
            check_importable(each.handling, f"the task {each.name!r}")
            named[each.name] = each
        return {queue: cls(queue, list(named.values())) for queue, named in queues.items()}

    def __call__(self, context: ExecutionContext) -> Handling:
        name = envelope_of(context.payload).task
        if name not in self._tasks:
            known = ", ".join(sorted(self._tasks))
            raise UnknownTask(f"{name!r} is not a task of this worker for the queue "
                              f"{self._queue!r}, which has {known}")  # fmt: skip
        return self._tasks[name].handling


def envelope_of(payload: object) -> Envelope:
    """Read a payload as a task's. Raises `InvalidArguments`."""
    try:
        return msgspec.convert(payload, Envelope)
    except msgspec.ValidationError as error:
        raise InvalidArguments(f"the payload is not a task's: {error}") from error


def _arguments_type(
    function: Callable[..., Any], signature: inspect.Signature, name: str
) -> type[msgspec.Struct]:
    """Make a type of a function's parameters; what has a default may be left out."""
    hints = get_type_hints(function, include_extras=True)
    fields: list[tuple[str, Any, Any] | tuple[str, Any]] = []
    for parameter in signature.parameters.values():
        what = f"the parameter {parameter.name!r} of the task {name!r}"
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"{what} is no single one that can be given by its name")
        if parameter.name not in hints:
            raise TypeError(f"{what} has no annotation")
        kind = hints[parameter.name]
        try:
            msgspec.json.schema(kind)
        except (TypeError, NotImplementedError) as error:
            raise TypeError(f"{what} has a type that can not be checked: {error}") from error
        if parameter.default is parameter.empty:
            fields.append((parameter.name, kind))
        else:
            fields.append((parameter.name, Union[kind, UnsetType], UNSET))  # noqa: UP007
    return msgspec.defstruct(f"{name} arguments", fields, kw_only=True, forbid_unknown_fields=True)


def _refusal(task: str, error: msgspec.ValidationError) -> InvalidRequest:
    detail, _, place = str(error).partition(" - at `$.")
    return InvalidRequest.at(f"{task}.{place.rstrip('`')}" if place else task, detail)
