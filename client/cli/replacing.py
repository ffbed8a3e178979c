"""What `timeball cluster replace` says while a node gets an empty disk and earns its vote."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from timeball.client.client import Client
from timeball.client.errors import NotFound, TimeballError
from timeball.client.messages import Replacement

POLL_S = 0.5


class NotInTime(Exception):
    """The node does not vote yet; the message says how far it is."""


def refusal(view: Replacement) -> str | None:
    """Why the node must not be replaced now; None if the others can spare it."""
    if len(view.voters) >= view.quorum:
        return None
    having = ", ".join(view.voters) or "none"
    return (
        f"{view.node} must not be replaced now: besides it {view.quorum} members must vote and be "
        f"in touch, but {len(view.voters)} do ({having}). Bring the others back first, with the "
        "disks that they had"
    )


def advice(view: Replacement) -> str:
    """What the operator has to do."""
    stop = f"stop {view.node}, " if view.connected else ""
    if view.standing in ("blank", "joining"):
        return f"{view.node} has a new disk already"
    return (
        f"{', '.join(view.voters)} vote and can spare {view.node}. Now {stop}put an empty data "
        f"folder in its place, and start {view.node} with the same configuration"
    )


def state(view: Replacement, before: Replacement) -> str:
    """How far the node is, in a few words."""
    if not view.connected:
        return "is down"
    if view.standing in ("blank", "joining"):
        percent = 100 * view.match_index // max(1, view.commit_index)
        if view.snapshot_percent is not None:
            return f"joins: {view.snapshot_percent} % of a snapshot has arrived"
        return f"joins: holds {min(percent, 100)} % of the log"
    if view.standing is None or view.incarnation is None:
        return "is connected, and has not answered yet"
    if votes_anew(view, before):
        return "votes"
    return "still votes with the disk that it had"


def votes_anew(view: Replacement, before: Replacement) -> bool:
    """Whether the node votes, and not with the disk that it had a vote with before."""
    known = before.incarnation if before.standing == "voter" else None
    return view.standing == "voter" and view.incarnation not in (None, known)


async def watch(
    client: Client, before: Replacement, wait_s: float, tell: Callable[[str], None]
) -> Replacement:
    """Wait until the node votes with its new disk, and tell each change; raises NotInTime."""
    said = ""
    try:
        async with asyncio.timeout(wait_s):
            while True:
                try:
                    view = await client.replacement(before.node)
                    line = f"{before.node} {state(view, before)}"
                except NotFound:
                    raise
                except TimeballError as error:
                    view, line = None, f"no answer: {error.detail or error.title}"
                if line != said:
                    tell(line)
                    said = line
                if view is not None and view.connected and votes_anew(view, before):
                    return view
                await asyncio.sleep(POLL_S)
    except TimeoutError as error:
        last = said or "nothing was heard"
        raise NotInTime(
            f"{before.node} does not vote with a new disk after {wait_s} s; the last: {last}"
        ) from error
