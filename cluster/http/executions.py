"""Executions: look at and list them; the reports of the workers that hold them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import chain
from typing import Any, Final, cast

from timeball.client import messages
from timeball.client.errors import Conflict, LeaseLost, NotFound, TimeballError
from timeball.cluster.http.codec import BodyDecoder
from timeball.cluster.http.exchange import Answered, Handler, Request
from timeball.cluster.http.freshness import FRESHNESS
from timeball.cluster.http.paging import (
    fitting,
    read_choice,
    read_cursor,
    read_job,
    read_limit,
    read_query,
    read_queue,
    read_span,
    read_tag,
    write_cursor,
)
from timeball.cluster.http.routes import Route
from timeball.cluster.http.services import Propose, Services, propose_all
from timeball.cluster.http.values import EMPTY, pack_value
from timeball.cluster.http.views import EXECUTION_STATES, execution_state, execution_view
from timeball.cluster.http.waiting import APPLIED, preferred_wait_s
from timeball.cluster.state import operations
from timeball.cluster.state.listing import Span
from timeball.cluster.state.records import Execution
from timeball.cluster.state.verdicts import Verdict

MAX_OPERATION_BYTES: Final = 256 * 1024
MAX_ID_SHOWN: Final = 64
"""What an answer repeats of an execution id; no real one is longer."""
_OVERHEAD_BYTES: Final = 256
_CLIPPED: Final = " […]"
_CUT_BEFORE: Final = "[…] "

# Names of the module: an attribute of another one is looked up at each use.
_decode_execution_id: Final = messages.decode_execution_id
_Success: Final = operations.Success
_Report: Final = messages.Report
_UNKNOWN: Final = Verdict.UNKNOWN
_VERDICTS: Final[dict[Verdict, tuple[messages.ReportVerdict, int]]] = {
    Verdict.ACCEPTED: ("accepted", 200),
    Verdict.DUPLICATE: ("duplicate", 200),
    Verdict.STALE: ("stale", 409),
    Verdict.FINISHED: ("finished", 409),
    Verdict.UNKNOWN: ("unknown", 404),
}


Ids = Sequence[str]
Items = Sequence[Any]
Reporting = Awaitable[list[messages.Report]]
Kind = Callable[[list[Any]], operations.AnyOperation]
"""An operation that is a batch of reports."""
Report = Callable[[Ids, Items, str], Awaitable[list[Any]]]
"""Reports on the executions of these ids, in the order of the ids; `prefix` begins the name of a
field of an item, with its place where there are several."""


class Executions:
    """The handlers of executions."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        """The table of this noun; each report has a batch form and a form for one."""
        table: list[tuple[str, Report, type[Any], type[Any], type[Any]]] = [
            ("start", self._start, messages.Holds, messages.SingleHold, messages.Reports),
            (
                "heartbeat",
                self._heartbeat,
                messages.Heartbeats,
                messages.SingleBeat,
                messages.HeartbeatAnswers,
            ),
            (
                "complete",
                self._complete,
                messages.Successes,
                messages.SingleSuccess,
                messages.Reports,
            ),
            ("fail", self._fail, messages.Failures, messages.SingleFailure, messages.Reports),
            ("release", self._release, messages.Holds, messages.SingleHold, messages.Reports),
        ]
        routes = [
            Route(method="GET", pattern="/v1/executions", handler=self.list_page),
            Route(method="GET", pattern="/v1/executions/{execution_id}", handler=self.get),
        ]
        for verb, report, batch, single, answer in table:
            for pattern, handler in (
                (f"/v1/executions/{verb}", _batch_handler(report, batch, answer)),
                (f"/v1/executions/{{execution_id}}/{verb}", _single_handler(report, single)),
            ):
                routes.append(
                    Route(method="POST", pattern=pattern, handler=handler, leader=True, write=True)
                )
        return routes

    # --- reading -----------------------------------------------------------------------------

    async def get(self, request: Request) -> Answered:
        """One execution with its attempts."""
        parameters = read_query(request.query, FRESHNESS)
        services = self._services
        await services.wait_until_fresh(parameters)
        execution = self._find(request)
        headers: dict[str, str] = {}
        wait_s = preferred_wait_s(request.headers.get("prefer", ""))
        if wait_s and services.ends.has_room:
            await services.ends.wait(execution, wait_s)
            execution = self._find(request)
            headers[APPLIED] = f"wait={wait_s}"
        view = execution_view(execution, request.answer_form, services.wall_clock_ms())
        return Answered(message=view, headers=headers)

    def _find(self, request: Request) -> Execution:
        text = request.parameters["execution_id"]
        try:
            execution = self._services.state.execution(*_decode_execution_id(text))
        except ValueError:
            execution = None
        if execution is None:
            raise _no_execution(text)
        return execution

    async def list_page(self, request: Request) -> Answered:
        """A page of executions."""
        services = self._services
        span = ("due_after", "due_before")
        known = (*FRESHNESS, "queue", "job", "state", "tag", *span, "limit", "cursor")
        parameters = read_query(request.query, known)
        limit = read_limit(parameters)
        queue = read_queue(parameters)
        job_id = read_job(parameters)
        state = read_choice(parameters, "state", EXECUTION_STATES)
        tag = read_tag(parameters)
        due = read_span(parameters, "due")
        position = read_cursor(parameters, "executions", 2)
        await services.wait_until_fresh(parameters)
        services.require_known_queue(queue)
        after = (position[0], position[1]) if position else None
        if job_id is None:
            page = services.state.list_executions(
                after=after,
                limit=limit,
                queue=queue,
                state=EXECUTION_STATES[state] if state else None,
                tag=tag,
                due=due,
            )
            found, following = page.items, page.next_after
        else:
            found, following = self._of_job(job_id, queue, state, tag, due, after, limit)
        whole = len(found)
        found = that_fit(found)
        if len(found) < whole:
            following = (found[-1].job.id, found[-1].nominal_ms)
        if state is not None:
            # `retry` and `scheduled` are one state in the log and two for people.
            found = [execution for execution in found if execution_state(execution) == state]
        return list_answer(
            services, request, found, write_cursor("executions", following) if following else None
        )

    def _of_job(
        self,
        job_id: int,
        queue: str | None,
        state: str | None,
        tag: str | None,
        due: Span,
        after: tuple[int, int] | None,
        limit: int,
    ) -> tuple[list[Execution], tuple[int, int] | None]:
        job = self._services.state.job(job_id)
        if job is None:
            raise NotFound.at("job", f"no job {str(job_id)!r}")
        found = [
            execution
            for execution in reversed(self._services.state.executions_of(job))
            if (after is None or (job_id, execution.nominal_ms) < after)
            and queue in (None, job.queue)
            and state in (None, execution_state(execution))
            and (tag is None or tag in job.options.tags)
            and due.holds(execution.due_ms)
        ]
        page = found[:limit]
        return page, (job_id, page[-1].nominal_ms) if len(found) > limit else None

    # --- reports -----------------------------------------------------------------------------

    def _start(self, ids: Ids, items: Items, _prefix: str) -> Reporting:
        return self._report(ids, items, _hold, operations.Start)

    def _release(self, ids: Ids, items: Items, _prefix: str) -> Reporting:
        return self._report(ids, items, _hold, operations.Release)

    def _complete(self, ids: Ids, items: Items, prefix: str) -> Reporting:
        def build(job: int, nominal_ms: int, item: Any, place: int) -> operations.Success:
            result = EMPTY
            if item.result is not None:
                result = pack_value(item.result, prefix.format(place) + "result")
            return _Success(job, nominal_ms, item.token, result, item.started_ms or 0)

        return self._report(ids, items, build, operations.Succeed)

    def _fail(self, ids: Ids, items: Items, _prefix: str) -> Reporting:
        return self._report(ids, items, _failure, operations.Fail)

    async def _report(
        self,
        ids: Ids,
        items: Items,
        build: Callable[[int, int, Any, int], Any],
        kind: Kind,
    ) -> list[messages.Report]:
        """Propose one report for each id that can name an execution; answer all."""
        built: list[Any] = []
        nothing: set[int] = set()
        for place, (text, item) in enumerate(zip(ids, items, strict=True)):
            try:
                job, nominal_ms = _decode_execution_id(text)
            except ValueError:
                nothing.add(place)  # it names nothing that ever existed: unknown
            else:
                built.append(build(job, nominal_ms, item, place))
        verdicts = await report_all(self._services.propose, kind, built)
        if nothing:
            named = [place for place in range(len(ids)) if place not in nothing]
            told = dict(zip(named, verdicts, strict=True))
            verdicts = [told.get(place, _UNKNOWN) for place in range(len(ids))]
        return [answer_report(text, verdict) for text, verdict in zip(ids, verdicts, strict=True)]

    async def _heartbeat(self, ids: Ids, items: Items, prefix: str) -> list[messages.Heartbeat]:
        dispatcher = self._services.dispatcher
        answers: list[messages.Heartbeat] = []
        told = [_progress(item, prefix, place) for place, item in enumerate(items)]
        for text, item, progress in zip(ids, items, told, strict=True):
            try:
                job, nominal_ms = _decode_execution_id(text)
            except ValueError:
                answers.append(messages.Heartbeat(text[:MAX_ID_SHOWN], "unknown", 0))
                continue
            beat = dispatcher.heartbeat(job, nominal_ms, item.token, progress)
            instruction = cast("messages.Instruction | None", beat.instruction)
            answers.append(
                messages.Heartbeat(text, beat.verdict, beat.lease_remaining_ms, instruction)
            )
        return answers


def _hold(job: int, nominal_ms: int, item: Any, _place: int) -> tuple[int, int, int]:
    return job, nominal_ms, item.token


def _progress(item: Any, prefix: str, place: int) -> bytes | None:
    if item.progress is None:
        return None
    field = prefix.format(place) + "progress"
    return pack_value(item.progress, field, messages.MAX_PROGRESS_BYTES)


def _failure(job: int, nominal_ms: int, item: Any, _place: int) -> operations.Failure:
    return operations.Failure(
        job,
        nominal_ms,
        item.token,
        clip(item.error_type, messages.MAX_ERROR_TYPE),
        clip(item.message, messages.MAX_ERROR_MESSAGE),
        -1 if item.retry_after_ms is None else item.retry_after_ms,
        item.non_retryable,
        item.started_ms or 0,
        clip_beginning(item.backtrace, messages.MAX_BACKTRACE),
    )


def _batch_handler(report: Report, batch: type[Any], answer: type[Any]) -> Handler:
    decoder = BodyDecoder(batch)

    async def handle(request: Request) -> Answered:
        read_query(request.query, ())
        items = decoder.decode(request.body, request.body_form).items
        ids = [item.execution_id for item in items]
        return Answered(answer(await report(ids, items, "items[{}].")))

    return handle


def _single_handler(report: Report, single: type[Any]) -> Handler:
    decoder = BodyDecoder(single)

    async def handle(request: Request) -> Answered:
        read_query(request.query, ())
        body = decoder.decode(request.body, request.body_form)
        (answer,) = await report([request.parameters["execution_id"]], [body], "")
        refusal = _refusal(answer)
        if refusal is not None:
            raise refusal
        return Answered(answer)

    return handle


async def report_all(propose: Propose, kind: Kind, items: list[Any]) -> Sequence[Verdict]:
    """Propose reports in as few operations as hold them; their verdicts, in order."""
    if not items:
        return ()
    answers = await propose_all(propose, [kind(part) for part in _split(items)])
    return answers[0] if len(answers) == 1 else [*chain.from_iterable(answers)]


def answer_report(execution_id: str, verdict: Verdict) -> messages.Report:
    """What a report came to, with the status that the single form answers with."""
    told, status = _VERDICTS[verdict]
    return _Report(execution_id[:MAX_ID_SHOWN], told, status)


def _refusal(answer: messages.Report | messages.Heartbeat) -> TimeballError | None:
    match answer.verdict:
        case "stale" | "lost":
            return LeaseLost("the token is not the latest one granted: stop the work")
        case "finished":
            return Conflict("the execution is terminal with another outcome")
        case "unknown":
            return _no_execution(answer.execution_id)
        case _:
            return None


def that_fit(found: list[Execution]) -> list[Execution]:
    """Those of a page, from the first, whose results, and attempts' errors and progress, fit into
    an answer."""
    return found[: fitting(map(_shown_size, found))]


def _shown_size(execution: Execution) -> int:
    attempts = execution.attempts
    errors = [attempt.error for attempt in attempts if attempt.error is not None]
    texts = sum(len(one.error_type) + len(one.message) + len(one.backtrace) for one in errors)
    return len(execution.result) + texts + sum(len(attempt.progress) for attempt in attempts)


def list_answer(
    services: Services, request: Request, found: Sequence[Execution], cursor: str | None
) -> Answered:
    """A page of executions."""
    now_ms = services.wall_clock_ms()
    views = [execution_view(execution, request.answer_form, now_ms) for execution in found]
    message = messages.ExecutionList(
        executions=views, cursor=cursor, applied_index=services.applied_index
    )
    return Answered(message=message)


def clip(text: str, longest: int) -> str:
    """An error text of an attempt, clipped with a mark rather than refused."""
    return text if len(text) <= longest else text[: longest - len(_CLIPPED)] + _CLIPPED


def clip_beginning(text: str, longest: int) -> str:
    """The end of a backtrace, which is where the error was raised, with a mark."""
    return text if len(text) <= longest else _CUT_BEFORE + text[len(_CUT_BEFORE) - longest :]


def _split(items: list[Any]) -> list[list[Any]]:
    """Runs of reports that each fit one operation."""
    parts: list[list[Any]] = []
    size = MAX_OPERATION_BYTES
    for item in items:
        weight = _OVERHEAD_BYTES
        if type(item) is operations.Success:
            weight += len(item.result)
        elif type(item) is operations.Failure:
            weight += 4 * (len(item.error_type) + len(item.message) + len(item.backtrace))
        if size + weight > MAX_OPERATION_BYTES:
            parts.append([])
            size = 0
        parts[-1].append(item)
        size += weight
    return parts


def _no_execution(text: str) -> NotFound:
    return NotFound.at("execution_id", f"no execution {text[:MAX_ID_SHOWN]!r}")
