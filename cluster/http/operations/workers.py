"""What every request of a worker takes and answers."""

from __future__ import annotations

from timeball.client import messages
from timeball.cluster.http.description import (
    CONFLICT,
    FULL,
    LEASE_LOST,
    NOT_FOUND,
    Operation,
    Reply,
)
from timeball.cluster.http.operations.parameters import (
    REQUEST_ID,
)


def _report(
    verb: str, does: str, batch: type[messages.Request], single: type[messages.Request]
) -> dict[str, Operation]:
    """A report of a worker, in its batch form and for one execution."""
    beats = verb == "heartbeat"
    many = messages.HeartbeatAnswers if beats else messages.Reports
    one = messages.Heartbeat if beats else messages.Report
    return {
        f"POST /v1/executions/{verb}": Operation(
            id=f"{verb}Executions",
            does=f"{does}: a batch",
            kind="write",
            body=batch,
            replies={200: Reply(many, "A verdict for each, in order.")},
        ),
        f"POST /v1/executions/{{execution_id}}/{verb}": Operation(
            id=f"{verb}Execution",
            does=does,
            kind="write",
            body=single,
            replies={200: Reply(one, "The report counts.")},
            problems=(NOT_FOUND, CONFLICT, LEASE_LOST),
        ),
    }


def _instruct(verb: str, does: str, when: str) -> dict[str, Operation]:
    """Something that a worker is told."""
    return {
        f"POST /v1/workers/{{worker}}/{verb}": Operation(
            id=f"{verb}Worker",
            does=does,
            kind="write",
            body=messages.InstructionRequest,
            body_required=False,
            replies={200: Reply(messages.WorkerDetails, when)},
            problems=() if verb == "resume" else (FULL,),
        ),
    }


WORKERS = {
    "POST /v1/claims": Operation(
        id="claimExecutions",
        does="Lease due executions, waiting for them if need be",
        kind="write",
        body=messages.Claim,
        parameters=(REQUEST_ID,),
        replies={200: Reply(messages.Claimed, "What was leased; empty: nothing came due in time.")},
        problems=(NOT_FOUND, FULL),
    ),
    "POST /v1/claims/{request_id}/withdraw": Operation(
        id="withdrawClaim",
        does="Give back what a claim still holds",
        kind="write",
        replies={200: Reply(messages.Reports, "A verdict for each execution that was held.")},
    ),
    "POST /v1/claims/withdraw": Operation(
        id="withdrawClaims",
        does="Give back what claims still hold: a batch",
        kind="write",
        body=messages.Withdrawals,
        replies={200: Reply(messages.Reports, "A verdict for each execution that was held.")},
    ),
    **_report("start", "Tell that work has begun", messages.Holds, messages.SingleHold),
    **_report("heartbeat", "Extend a lease", messages.Heartbeats, messages.SingleBeat),
    **_report("complete", "Report success", messages.Successes, messages.SingleSuccess),
    **_report("fail", "Report a failed attempt", messages.Failures, messages.SingleFailure),
    **_report("release", "Give an execution back", messages.Holds, messages.SingleHold),
    "GET /v1/workers/{worker}": Operation(
        id="getWorker",
        does="Look at what a worker is told",
        kind="read",
        replies={200: Reply(messages.WorkerDetails, "What it is told: nothing, most are.")},
    ),
    **_instruct("quiet", "Tell a worker to claim no more", "It gets no more executions."),
    **_instruct("terminate", "Tell a worker to end", "It gets no more executions."),
    **_instruct("resume", "Take back what a worker is told", "It is told nothing any more."),
}
