"""The simulator's timekeepers: each keeps one recurring job, and does to it all that one can.

It puts the job by name, or creates it; pauses, resumes, triggers, backfills, updates and cancels
it, and puts another under the same name. What it heard no answer to it asks again. No two requests
have the same payload, so a delivery tells which definition it is of.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

from sim_clients import Client, Surroundings
from sim_schedules import new_schedule
from sim_timetable_events import QUEUE, Asked, Explained, Told

from timeball.bench.evidence import instant_ms
from timeball.bench.history import CancelAcknowledged
from timeball.client import messages

LATE_MS = 2_000
"""How late a timetable may be in a cluster that is well."""
LOOKS_S = 6.0
"""Between two looks at a timetable; what stands at one beat is late by then."""
MOST_S = 45.0
"""How long timetables have to catch up after the faults."""


class Timekeeper(Client):
    """Keeps one timetable after the other until the run's end."""

    def __init__(self, around: Surroundings, name: str, rng: random.Random, place: int) -> None:
        super().__init__(around, name, rng)
        self.ended = asyncio.Event()
        """Whether it will ask for nothing any more."""
        self._first_payload = place * 1_000_000
        self._numbers = 0
        self._lines = 0
        self._named = rng.random() < 0.75
        self._pause_s = rng.choice([0.5, 1.5, 4.0])
        self._begin_anew()
        self.process.start(self._keep())

    def _begin_anew(self) -> None:
        """What comes next is about another job."""
        self._lines += 1
        self._job_id = ""
        self._version = 0
        self._schedule: messages.Timetable | None = None
        self._paused = False
        self._style = self.rng.choice(["left alone", "paused", "edited", "edited"])

    async def _keep(self) -> None:
        around, rng = self.around, self.rng
        while True:
            await asyncio.sleep(rng.expovariate(1 / self._pause_s))
            if around.true_ms() >= around.ends_ms:
                break
            await self._act()
        self.ended.set()

    async def _act(self) -> None:
        rng = self.rng
        if not self._job_id:
            await self._make()
            return
        chance = rng.random()
        if self._paused and chance < 0.4:
            await self._resume()
        elif chance < 0.2:
            await self._trigger()
        elif chance < 0.28:
            await self._backfill()
        elif chance < 0.34:
            await self._cancel()
        elif chance < 0.5 and self._style != "left alone":
            await self._pause()
        elif chance < 0.95 and self._style == "edited":
            await (self._make() if self._named and rng.random() < 0.4 else self._update())

    # --- what it asks for --------------------------------------------------------------------

    async def _ask(
        self,
        action: str,
        method: str,
        path: str,
        body: Any = None,
        *,
        kind: Any,
        headers: dict[str, str] | None = None,
        **facts: Any,
    ) -> Any:
        """The answer to a request, both of which are recorded; None if there was none."""
        around = self.around
        self._numbers += 1
        number = self._numbers
        around.record(
            Asked(
                at_us=(around.true_ms() + around.earliest_lead_ms) * 1000,
                source=self.name,
                number=number,
                action=action,
                line=self._lines,
                judge_us=around.judge_us(),
                named=self._named,
                job_id=self._job_id,
                **facts,
            )
        )
        doubts = self.doubts
        answer = await self.ask(method, path, body, kind=kind, headers=headers)
        if answer is not None:
            around.record(
                Told(
                    at_us=around.judge_us(),
                    source=self.name,
                    number=number,
                    doubtful=self.doubts > doubts,
                    **_told(answer),
                )
            )
        if isinstance(answer, messages.Problem) and answer.status in (404, 409):
            self._begin_anew()
        return answer

    def _new_payload(self) -> int:
        return self._first_payload + self._numbers + 1

    async def _make(self) -> None:
        """Put the job, or create one that has no name; a put may change nothing."""
        rng = self.rng
        payload = self._new_payload()
        schedule = self._schedule
        if schedule is None or (self._style == "edited" and rng.random() < 0.5):
            schedule = new_schedule(rng, self.around.true_ms())
        facts = {"payload": payload, "schedule": schedule}
        attempts = rng.choice([1, 2, 4])
        definition: dict[str, Any] = {
            "queue": QUEUE,
            "payload": payload,
            "schedule": schedule,
            "priority": rng.choice([1, 5, 9]),
            "retry": messages.Retry(max_attempts=attempts, initial_ms=100, max_ms=500),
            "timeout_ms": rng.choice([None, None, 1_500]),
        }
        if self._named:
            path, body = f"/v1/jobs/by-name/{self.name}", messages.JobPut(**definition)
            answer = await self._ask("put", "PUT", path, body, kind=messages.JobChanged, **facts)
        else:
            headers = {"timeball-request-id": self.new_id()}
            answer = await self._ask(
                "create",
                "POST",
                "/v1/jobs",
                messages.NewJob(**definition),
                kind=messages.JobCreated,
                headers=headers,
                **facts,
            )
        if isinstance(answer, messages.Problem):
            self._expect(answer, 400)
        elif answer is not None:
            self._job_id, self._schedule = answer.job_id, schedule
            self._version = answer.version if self._named else 1

    async def _update(self) -> None:
        rng = self.rng
        payload, schedule, parts = None, None, {}
        chance = rng.random()
        if chance < 0.6:
            payload = parts["payload"] = self._new_payload()
        if chance < 0.1 or 0.6 < chance < 0.85:
            schedule = parts["schedule"] = new_schedule(rng, self.around.true_ms())
        if chance > 0.8:
            parts["priority"] = rng.choice([1, 5, 9])
        version = None
        if rng.random() < 0.5:
            version = self._version + (rng.random() < 0.2)
        headers = {} if version is None else {"if-match": f'"{version}"'}
        answer = await self._ask(
            "update",
            "PATCH",
            f"/v1/jobs/{self._job_id}",
            messages.JobUpdate(**parts),
            kind=messages.JobChanged,
            headers=headers,
            payload=payload,
            schedule=schedule,
            if_version=version,
        )
        if isinstance(answer, messages.JobChanged):
            self._version = answer.version
        elif answer is not None:
            self._expect(answer, 400, 404, 409, 412)
            if answer.status == 412:
                await self._read_again()

    async def _read_again(self) -> None:
        path = f"/v1/jobs/{self._job_id}?consistency=strong"
        view = await self.ask("GET", path, kind=messages.JobView)
        if isinstance(view, messages.JobView):
            self._version = view.version

    async def _pause(self) -> None:
        answer = await self._ask(
            "pause",
            "POST",
            f"/v1/jobs/{self._job_id}/pause",
            messages.PauseRequest("the timekeeper rests"),
            kind=messages.JobChanged,
        )
        self._expect(answer, 404, 409)
        if isinstance(answer, messages.JobChanged):
            self._paused = True
            await asyncio.sleep(self.rng.choice([0.0, 0.0, 1.0, 12.0]))

    async def _resume(self) -> None:
        catch_up = self.rng.random() < 0.5
        answer = await self._ask(
            "resume",
            "POST",
            f"/v1/jobs/{self._job_id}/resume",
            messages.ResumeRequest("catch_up" if catch_up else "skip"),
            kind=messages.JobChanged,
            catch_up=catch_up,
        )
        self._expect(answer, 404, 409)
        if isinstance(answer, messages.JobChanged):
            self._paused = False

    async def _trigger(self) -> None:
        request_id = self.new_id()
        path = f"/v1/jobs/{self._job_id}/trigger"
        for _ in range(self.rng.choice([1, 1, 2, 3])):
            answer = await self._ask(
                "trigger",
                "POST",
                path,
                kind=messages.JobTriggered,
                headers={"timeball-request-id": request_id},
                request_id=request_id,
            )
            if not isinstance(answer, messages.JobTriggered):
                self._expect(answer, 404, 409)
                return

    async def _backfill(self) -> None:
        now_ms = self.around.true_ms()
        start_ms = now_ms - self.rng.randint(0, 20_000)
        until_ms = start_ms + self.rng.randint(0, 8_000)
        answer = await self._ask(
            "backfill",
            "POST",
            f"/v1/jobs/{self._job_id}/backfill",
            messages.BackfillRequest(start_ms, until_ms),
            kind=messages.JobBackfilled,
            start_ms=start_ms,
            until_ms=until_ms,
        )
        self._expect(answer, 400, 404, 409)

    async def _cancel(self) -> None:
        around = self.around
        sent_us = around.judge_us()
        path = f"/v1/jobs/{self._job_id}/cancel"
        answer = await self._ask("cancel", "POST", path, kind=messages.JobCancelled)
        self._expect(answer, 404)
        if isinstance(answer, messages.JobCancelled):
            around.record(
                CancelAcknowledged(
                    at_us=around.judge_us(),
                    source=self.name,
                    job_id=answer.job_id,
                    status=answer.status,
                    sent_us=sent_us,
                )
            )
        self._begin_anew()

    def _expect(self, answer: Any, *statuses: int) -> None:
        if isinstance(answer, messages.Problem) and answer.status not in statuses:
            self.around.broken(f"a timekeeper was refused: {answer}")


def _told(answer: Any) -> dict[str, Any]:
    match answer:
        case messages.Problem():
            return {"status": str(answer.status)}
        case messages.JobTriggered():
            return {
                "status": answer.status,
                "job_id": answer.job_id,
                "executions": (answer.execution_id,),
            }
        case messages.JobBackfilled():
            return {
                "status": "changed",
                "job_id": answer.job_id,
                "executions": tuple(answer.created),
            }
        case messages.JobChanged():
            return {"status": answer.status, "job_id": answer.job_id, "version": answer.version}
    return {"status": answer.status, "job_id": answer.job_id}


class Closing:
    """Looks at all timetables when the faults are over, has them explained, and ends them."""

    def __init__(self, auditor: Client) -> None:
        self._auditor = auditor
        self._around = auditor.around

    async def close(self) -> list[str]:
        """What is wrong with them. Raises nothing: a cluster that does not answer is stuck."""
        around, loop = self._around, self._around.loop
        ends = loop.time() + MOST_S
        calm = 0
        late = ["stuck: nobody has looked at the timetables"]
        while calm < 2 and loop.time() < ends:
            late = await self._late()
            calm = 0 if late else calm + 1
            await asyncio.sleep(LOOKS_S if calm == 1 else 0.5)
        for job in await self._jobs() or []:
            answer = await self._ask("GET", job, "/explain?limit=1000&consistency=strong")
            if isinstance(answer, messages.JobExplained):
                around.record(
                    Explained(
                        at_us=around.judge_us(),
                        source=self._auditor.name,
                        answer=answer,
                        payload=job.payload,
                        created_ms=instant_ms(job.created_at),
                    )
                )
            else:
                late.append(f"stuck: {job.job_id}: is not explained: {answer}")
            if job.state == "active":
                await self._ask("POST", job, "/cancel")
        return late

    async def _late(self) -> list[str]:
        """Which timetables do not go on."""
        jobs = await self._jobs()
        if jobs is None:
            return ["stuck: the timetables are not listed"]
        return [told for job in jobs for told in self._lateness(job)]

    def _lateness(self, job: messages.JobView) -> list[str]:
        timetable = job.timetable
        assert timetable is not None
        if timetable.parked is not None:
            return [f"parked: {job.job_id}: {timetable.parked}"]
        if timetable.ended or timetable.paused is not None:
            return []
        late_ms = self._around.true_ms() - instant_ms(timetable.planned_at) - job.schedule.jitter_ms
        if late_ms <= LATE_MS:
            return []
        return [f"stuck: {job.job_id}: its timetable stands at {timetable.planned_at}: {late_ms}"]

    async def _jobs(self) -> list[messages.JobView] | None:
        found: list[messages.JobView] = []
        cursor = ""
        while True:
            path = f"/v1/jobs?queue={QUEUE}&limit=1000&consistency=strong{cursor}"
            page = await self._auditor.ask("GET", path, kind=messages.JobList)
            if isinstance(page, messages.Problem) and page.status == 404:
                return []  # nobody has created any
            if not isinstance(page, messages.JobList):
                return None
            found += page.jobs
            if page.cursor is None:
                return found
            cursor = f"&cursor={page.cursor}"

    async def _ask(self, method: str, job: messages.JobView, path: str) -> Any:
        kind = messages.JobExplained if method == "GET" else messages.JobCancelled
        return await self._auditor.ask(method, f"/v1/jobs/{job.job_id}{path}", kind=kind)
