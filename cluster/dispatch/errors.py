"""What the dispatch package refuses, and why.

::

    TimetableError      a timetable that cannot be, or broke its promise to rise
    NotServing          this node does not dispatch (any more)
    TooManyClaims       as many claims wait as this node allows
"""

from __future__ import annotations


class TimetableError(ValueError):
    """A timetable is not valid: `field` names what is wrong, `detail` says what would be right."""

    def __init__(self, field: str, detail: str) -> None:
        super().__init__(f"{field}: {detail}")
        self.field = field
        self.detail = detail


class NotServing(Exception):
    """This node does not lead, or ceased to: nothing was granted; ask the leader."""


class TooManyClaims(Exception):
    """As many claims wait on this node as it allows; try again later."""
