"""Dead letters: list, replay and purge them, by name or by what they died of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar, get_args

from timeball.client import messages
from timeball.client.errors import InvalidRequest
from timeball.cluster.http.codec import BodyDecoder, check_queue_name
from timeball.cluster.http.exchange import Answered, Request
from timeball.cluster.http.executions import MAX_ID_SHOWN, list_answer, that_fit
from timeball.cluster.http.freshness import FRESHNESS
from timeball.cluster.http.instants import parse_instant
from timeball.cluster.http.paging import (
    Position,
    read_choice,
    read_cursor,
    read_cursor_text,
    read_instant,
    read_job,
    read_job_text,
    read_limit,
    read_query,
    read_queue,
    write_cursor,
)
from timeball.cluster.http.routes import Route
from timeball.cluster.http.services import Services
from timeball.cluster.state.listing import DeadFilter
from timeball.cluster.state.operations import PurgeDead, Replay
from timeball.cluster.state.records import Execution
from timeball.cluster.state.verdicts import Verdict

T = TypeVar("T")
Move = type[Replay] | type[PurgeDead]
_CURSOR: Final = "dead"
_FILTERS = ("queue", "job", "error_type", "reason", "died_after", "died_before")
_REASONS: tuple[messages.DeadReason, ...] = get_args(messages.DeadReason)
_replay = BodyDecoder(messages.Replay)
_purge = BodyDecoder(messages.Purge)
_selection = BodyDecoder(messages.DeadSelection)


class DeadLetters:
    """The handlers of dead letters."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        """The table of this noun."""
        return [
            Route(method="GET", pattern="/v1/dead", handler=self.list_page),
            *(
                Route(method="POST", pattern=pattern, handler=handler, leader=True, write=True)
                for pattern, handler in (
                    ("/v1/dead/replay", self.replay),
                    ("/v1/dead/purge", self.purge),
                    ("/v1/dead/replay-matching", self.replay_matching),
                    ("/v1/dead/purge-matching", self.purge_matching),
                )
            ),
        ]

    async def list_page(self, request: Request) -> Answered:
        """A page of dead executions, the latest dead first."""
        services = self._services
        parameters = read_query(request.query, (*FRESHNESS, *_FILTERS, "limit", "cursor"))
        limit = read_limit(parameters)
        wanted = DeadFilter(
            queue=read_queue(parameters),
            job=read_job(parameters),
            error_type=_read_error_type(parameters),
            reason=read_choice(parameters, "reason", _REASONS),
            **_read_span(
                read_instant(parameters, "died_after"), read_instant(parameters, "died_before")
            ),
        )
        position = read_cursor(parameters, _CURSOR, 2)
        await services.wait_until_fresh(parameters)
        services.require_known_queue(wanted.queue)
        page = services.state.list_dead(after=_place(position), limit=limit, wanted=wanted)
        found, following = that_fit(page.items), page.next_after
        if len(found) < len(page.items):
            following = (found[-1].finished_ms, found[-1].token)
        cursor = None if following is None else write_cursor(_CURSOR, following)
        return list_answer(services, request, found, cursor)

    async def replay(self, request: Request) -> Answered:
        """Give dead executions a new attempt budget."""
        read_query(request.query, ())
        body: messages.Replay = _replay.decode(request.body, request.body_form)
        results = await self._move_named(Replay, body.execution_ids, _replayed)
        return Answered(message=messages.ReplayAnswers(results=results))

    async def purge(self, request: Request) -> Answered:
        """Forget dead executions."""
        read_query(request.query, ())
        body: messages.Purge = _purge.decode(request.body, request.body_form)
        results = await self._move_named(PurgeDead, body.execution_ids, _purged)
        return Answered(message=messages.PurgeAnswers(results=results))

    async def replay_matching(self, request: Request) -> Answered:
        """Give a page of a selection a new attempt budget."""
        return await self._move_matching(request, Replay)

    async def purge_matching(self, request: Request) -> Answered:
        """Forget a page of a selection."""
        return await self._move_matching(request, PurgeDead)

    async def _move_named(
        self, move: Move, ids: Sequence[str], answer: Callable[[str, Verdict], T]
    ) -> list[T]:
        verdicts = [Verdict.UNKNOWN] * len(ids)
        named: list[tuple[int, tuple[int, int]]] = []
        for place, text in enumerate(ids):
            try:
                named.append((place, messages.decode_execution_id(text)))
            except ValueError:
                continue  # it names nothing that ever existed: unknown
        if named:
            operation = move([(*identity, 0) for _, identity in named])
            answers: list[Any] = await self._services.propose(operation)
            for (place, _), verdict in zip(named, answers, strict=True):
                verdicts[place] = Verdict(verdict)
        return [
            answer(text[:MAX_ID_SHOWN], verdict)
            for text, verdict in zip(ids, verdicts, strict=True)
        ]

    async def _move_matching(self, request: Request, move: Move) -> Answered:
        """Look at what the leader has applied, and name each death that is found to the log."""
        services = self._services
        read_query(request.query, ())
        body: messages.DeadSelection = _selection.decode(request.body, request.body_form)
        wanted, position = _read_selection(body)
        await services.wait_until_fresh({"consistency": "strong"})
        services.require_known_queue(wanted.queue)
        page = services.state.list_dead(after=_place(position), limit=body.limit, wanted=wanted)
        moved = 0
        if page.items:
            operation = move([_death(execution) for execution in page.items])
            verdicts: list[Any] = await services.propose(operation)
            moved = verdicts.count(Verdict.ACCEPTED)
        cursor = None if page.next_after is None else write_cursor(_CURSOR, page.next_after)
        return Answered(
            message=messages.DeadMoved(
                matched=len(page.items),
                moved=moved,
                cursor=cursor,
                applied_index=services.applied_index,
            )
        )


def _read_selection(body: messages.DeadSelection) -> tuple[DeadFilter, Position | None]:
    if body.queue is not None:
        check_queue_name(body.queue)
    wanted = DeadFilter(
        queue=body.queue,
        job=read_job_text(body.job_id, "job_id"),
        error_type=body.error_type,
        reason=body.reason,
        **_read_span(body.died_after, body.died_before),
    )
    return wanted, read_cursor_text(body.cursor, _CURSOR, 2)


def _read_span(after: str | int | None, before: str | int | None) -> dict[str, int]:
    span = {}
    if after is not None:
        span["died_after_ms"] = parse_instant(after, "died_after")
    if before is not None:
        span["died_before_ms"] = parse_instant(before, "died_before")
    return span


def _read_error_type(parameters: dict[str, str]) -> str | None:
    text = parameters.get("error_type")
    if text is not None and len(text) > messages.MAX_ERROR_TYPE:
        raise InvalidRequest.at("error_type", f"longer than {messages.MAX_ERROR_TYPE} characters")
    return text


def _place(position: Position | None) -> tuple[int, int] | None:
    return None if position is None else (position[0], position[1])


def _death(execution: Execution) -> tuple[int, int, int]:
    return execution.job.id, execution.nominal_ms, execution.token


def _replayed(execution_id: str, verdict: Verdict) -> messages.Replayed:
    match verdict:
        case Verdict.ACCEPTED:
            return messages.Replayed(execution_id, "replayed")
        case Verdict.UNKNOWN:
            return messages.Replayed(execution_id, "unknown")
        case Verdict.EXPIRED:
            return messages.Replayed(execution_id, "expired")
        case Verdict.KEY_TAKEN:
            return messages.Replayed(execution_id, "key_taken")
        case _:  # not dead, or its job has been cancelled
            return messages.Replayed(execution_id, "not_dead")


def _purged(execution_id: str, verdict: Verdict) -> messages.Purged:
    match verdict:
        case Verdict.ACCEPTED:
            return messages.Purged(execution_id, "purged")
        case Verdict.UNKNOWN:
            return messages.Purged(execution_id, "unknown")
        case _:
            return messages.Purged(execution_id, "not_dead")
