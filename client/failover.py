"""Which node to ask next, and when: the rules by which a call survives the loss of any node.

Pure: the clock's reading is an argument and the random numbers are handed in, so every rule
is tested in virtual time. One call makes a bounded number of attempts within its deadline:

    trouble            next attempt                              may it have happened?
    UNREACHABLE        the next node, at once                    no
    NO_LEADER          the next node, at once                    no
    BROKEN             the next node, at once                    yes
    TIMED_OUT          the next node, at once                    yes
    OUTCOME_UNKNOWN    the next node, after a pause              yes
    INTERNAL           the next node, after a pause              yes
    OVERLOADED         the next node, after a pause              no
    BEHIND             the next node, at once                    no
    STORAGE_FULL       the next node, at once                    no

"At once" holds until each node has been asked in this round; then there is a pause too. A
pause is what the cluster asked for (`Retry-After`) plus "full jitter": a uniform share of an
exponentially growing bound, which keeps many clients from returning in step. Every other
answer is final. A repeat keeps the method, the body and the request id of the first attempt.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

MAX_ATTEMPTS = 100
"""Most attempts of one call, whatever its deadline allows."""
LEAST_ATTEMPT_MS = 10
"""With less time than this before the deadline no further attempt is made."""


class Trouble(enum.Enum):
    """How an attempt can end that is worth another."""

    UNREACHABLE = "could not be reached"
    NO_LEADER = "knows no leader"
    BROKEN = "broke the connection before it answered"
    TIMED_OUT = "did not answer in time"
    OUTCOME_UNKNOWN = "does not know the outcome"
    INTERNAL = "failed inside"
    OVERLOADED = "is at its limit"
    BEHIND = "has not applied that far"
    STORAGE_FULL = "has no room on its disk"


class Rule(NamedTuple):
    """What a trouble means for the next attempt and for the truth about this one."""

    at_once: bool
    maybe_applied: bool


RULES = {
    Trouble.UNREACHABLE: Rule(at_once=True, maybe_applied=False),
    Trouble.NO_LEADER: Rule(at_once=True, maybe_applied=False),
    Trouble.BROKEN: Rule(at_once=True, maybe_applied=True),
    Trouble.TIMED_OUT: Rule(at_once=True, maybe_applied=True),
    Trouble.OUTCOME_UNKNOWN: Rule(at_once=False, maybe_applied=True),
    Trouble.INTERNAL: Rule(at_once=False, maybe_applied=True),
    Trouble.OVERLOADED: Rule(at_once=False, maybe_applied=False),
    Trouble.BEHIND: Rule(at_once=True, maybe_applied=False),
    Trouble.STORAGE_FULL: Rule(at_once=True, maybe_applied=False),
}


class Backoff(NamedTuple):
    """Bounds of the pauses: the nth pause is uniform in [0, min(cap, base × 2ⁿ⁻¹)]."""

    base_ms: int = 50
    cap_ms: int = 2_000

    def bound_ms(self, pauses: int) -> int:
        """Longest pause after `pauses` earlier ones."""
        return min(self.cap_ms, self.base_ms << min(pauses, 30))

    def draw_ms(self, pauses: int, rng: Random) -> int:
        """Draw a pause with full jitter."""
        return round(rng.uniform(0, self.bound_ms(pauses)))


class Nodes:
    """The nodes of a cluster in rotation, with the one that answered last in front.

    Shared by all calls of a client. Every node serves every request, so a client stays with
    the node that works and moves on when that one fails or names the leader.
    """

    def __init__(self, urls: Sequence[str]) -> None:
        assert urls, "a cluster has at least one node"
        self.urls = tuple(dict.fromkeys(urls))
        self.preferred = self.urls[0]

    def after(self, url: str) -> str:
        """Give the node behind `url` in the rotation."""
        return self.urls[(self.urls.index(url) + 1) % len(self.urls)]

    def answered(self, url: str) -> None:
        """Stay with a node that answered."""
        self.preferred = url

    def failed(self, url: str, leader: str) -> None:
        """Leave a node that failed: for the leader that it named, if it is one of ours.

        A leader's address that is not in the configuration (a container's name, say) may
        not be reachable from here and is not followed.
        """
        if leader in self.urls and leader != url:
            self.preferred = leader
        elif self.preferred == url:
            self.preferred = self.after(url)


class Next(NamedTuple):
    """The next attempt: ask `url` after `pause_ms`."""

    url: str
    pause_ms: int


class Attempts:
    """The attempts of one call. `deadline_ms` is a reading of the caller's monotonic clock."""

    def __init__(self, nodes: Nodes, backoff: Backoff, rng: Random, deadline_ms: int) -> None:
        self.maybe_applied = False
        self.count = 1
        self.url = nodes.preferred
        self._nodes = nodes
        self._backoff = backoff
        self._rng = rng
        self._deadline_ms = deadline_ms
        self._pauses = 0
        self._asked = {self.url}
        self._asked_to_wait_ms: list[int] = []

    def after(
        self, trouble: Trouble, now_ms: int, *, retry_after_ms: int = 0, leader: str = ""
    ) -> Next | None:
        """Choose the next attempt after a trouble at `now_ms`; None: the call has failed."""
        rule = RULES[trouble]
        self.maybe_applied |= rule.maybe_applied
        self._asked_to_wait_ms.append(max(0, retry_after_ms))
        self._nodes.failed(self.url, leader)
        pause_ms = 0
        fresh = self._unasked()
        if rule.at_once and fresh:
            self.url = fresh
        else:
            wanted_ms = 0 if rule.at_once else self._asked_to_wait_ms[-1]
            pause_ms = self._pause_ms(now_ms, max(wanted_ms, min(self._asked_to_wait_ms)))
            self._asked.clear()
            self._asked_to_wait_ms.clear()
            self.url = self._nodes.preferred
        if self.count >= MAX_ATTEMPTS or now_ms + pause_ms > self._deadline_ms - LEAST_ATTEMPT_MS:
            return None
        self._asked.add(self.url)
        self.count += 1
        return Next(self.url, pause_ms)

    def succeeded(self) -> None:
        """Remember the node that answered."""
        self._nodes.answered(self.url)

    def _unasked(self) -> str | None:
        candidate = self._nodes.preferred
        for _ in self._nodes.urls:
            if candidate not in self._asked:
                return candidate
            candidate = self._nodes.after(candidate)
        return None

    def _pause_ms(self, now_ms: int, wanted_ms: int) -> int:
        """Draw the pause; the jitter's bound shrinks so that a last attempt still fits."""
        left_ms = max(0, self._deadline_ms - now_ms - wanted_ms)
        bound_ms = min(self._backoff.bound_ms(self._pauses), left_ms // 2)
        self._pauses += 1
        return wanted_ms + round(self._rng.uniform(0, bound_ms))
