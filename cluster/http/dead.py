"""Dead letters: list and replay them."""

from __future__ import annotations

from typing import Any

from timeball.client import messages
from timeball.cluster.http.codec import BodyDecoder
from timeball.cluster.http.exchange import Answered, Request
from timeball.cluster.http.executions import MAX_ID_SHOWN, list_answer, that_fit
from timeball.cluster.http.freshness import FRESHNESS
from timeball.cluster.http.paging import (
    read_cursor,
    read_limit,
    read_query,
    read_queue,
    write_cursor,
)
from timeball.cluster.http.routes import Route
from timeball.cluster.http.services import Services
from timeball.cluster.state import operations
from timeball.cluster.state.verdicts import Verdict

_replay = BodyDecoder(messages.Replay)


class DeadLetters:
    """The handlers of dead letters."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        """The table of this noun."""
        return [
            Route(method="GET", pattern="/v1/dead", handler=self.list_page),
            Route(
                method="POST",
                pattern="/v1/dead/replay",
                handler=self.replay,
                leader=True,
                write=True,
            ),
        ]

    async def list_page(self, request: Request) -> Answered:
        """A page of dead executions, the latest dead first."""
        services = self._services
        parameters = read_query(request.query, (*FRESHNESS, "queue", "limit", "cursor"))
        limit = read_limit(parameters)
        queue = read_queue(parameters)
        position = read_cursor(parameters, "dead", 2)
        await services.wait_until_fresh(parameters)
        services.require_known_queue(queue)
        page = services.state.list_dead(
            after=(position[0], position[1]) if position else None, limit=limit, queue=queue
        )
        found, following = that_fit(page.items), page.next_after
        if len(found) < len(page.items):
            following = (found[-1].finished_ms, found[-1].token)
        cursor = None if following is None else write_cursor("dead", following)
        return list_answer(services, request, found, cursor)

    async def replay(self, request: Request) -> Answered:
        """Give dead executions a new attempt budget."""
        read_query(request.query, ())
        body: messages.Replay = _replay.decode(request.body, request.body_form)
        verdicts = [Verdict.UNKNOWN] * len(body.execution_ids)
        named: list[tuple[int, tuple[int, int]]] = []
        for place, text in enumerate(body.execution_ids):
            try:
                named.append((place, messages.decode_execution_id(text)))
            except ValueError:
                continue  # it names nothing that ever existed: unknown
        if named:
            operation = operations.Replay([identity for _, identity in named])
            answers: list[Any] = await self._services.propose(operation)
            for (place, _), verdict in zip(named, answers, strict=True):
                verdicts[place] = Verdict(verdict)
        results = [
            _replayed(text, verdict)
            for text, verdict in zip(body.execution_ids, verdicts, strict=True)
        ]
        return Answered(message=messages.ReplayAnswers(results=results))


def _replayed(text: str, verdict: Verdict) -> messages.Replayed:
    shown = text[:MAX_ID_SHOWN]
    match verdict:
        case Verdict.ACCEPTED:
            return messages.Replayed(shown, "replayed")
        case Verdict.UNKNOWN:
            return messages.Replayed(shown, "unknown")
        case _:  # not dead, or its job has been cancelled
            return messages.Replayed(shown, "not_dead")
