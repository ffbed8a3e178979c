"""The hierarchical timing wheel: what falls due next, to the millisecond."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar, cast

T = TypeVar("T")

# One entry a level; the last one is the overflow, which has no last slot.
_SHIFTS: Final = (0, 8, 14, 20, 26)  # a slot of level L lasts 2**_SHIFTS[L] ms
_MASKS: Final = (255, 63, 63, 63)  # slots of the level, less one
_FIRST_SLOTS: Final = (0, 256, 320, 384)  # where the level begins in the flat list
_SLOTS: Final = 448
_OVERFLOW: Final = 4
_WHEEL_BITS: Final = _SHIFTS[_OVERFLOW]

# Level by the number of low bits in which a due time differs from the wheel's time.
_LEVEL_OF_BITS: Final = (*[0] * 9, *[1] * 6, *[2] * 6, *[3] * 6)

_MISSING: Final = object()
_STALE_ENTRIES_ALLOWED: Final = 64


class Timer(Generic[T]):
    """The handle of one inserted item: a name for `TimingWheel.cancel`.

    Equal only to itself, and without a reference to the item, so an item may
    keep its own timer and no cycle arises.
    """

    __slots__ = ("due_ms",)

    def __init__(self, due_ms: int) -> None:
        self.due_ms: Final = due_ms

    def __repr__(self) -> str:
        return f"Timer(due_ms={self.due_ms})"


class TimingWheel(Generic[T]):
    """Items by due time, fired in (due time, order of insertion).

    The tick is one millisecond. Each level's slots cover the one slot of the
    level above that the wheel's time is in, so a level counts the digits of
    the due time as a clock counts hours, minutes and seconds:

    ======== ===== ================== ================ =====================
    level    slots one slot lasts     the level spans  bits of the due time
    ======== ===== ================== ================ =====================
    0          256 1 ms               256 ms           0-7
    1           64 256 ms             16.384 s         8-13
    2           64 16.384 s           17 min 28.576 s  14-19
    3           64 17 min 28.576 s    18 h 38 min 29 s 20-25
    overflow   any 18 h 38 min 29 s   without end      26 and up
    ======== ===== ================== ================ =====================

    Worked example, wheel time 1000 = 3·256 + 232 (level 1 stands at slot 3):

    ========== ================================ ==============================
    due        highest digit that differs       place
    ========== ================================ ==============================
    1000       none                             level 0, slot 232
    1023       level 0: 255, not 232            level 0, slot 255
    1024       level 1: 4, not 3                level 1, slot 4
    20 000     level 2: 1, not 0                level 2, slot 1
    2 000 000  level 3: 1, not 0                level 3, slot 1
    2**63      above all levels                 overflow, block 2**37
    999        due before the wheel's time      late heap
    ========== ================================ ==============================

    When the wheel's time enters a slot of an upper level, the slot's items
    cascade: each goes to the lower level at which its due time first differs
    from the slot's start. Two facts follow, and the code leans on them:

    - An item's place is a function of its due time and the wheel's time, so
      `cancel` finds it without a pointer.
    - Slots numbered through all levels from level 0 up are in order of time,
      so the lowest set bit of one occupancy bitmap is the earliest slot. Empty
      time is skipped, never walked.

    The wheel's time only rises. Items due before it, because they were past
    due when they came or because the clock has stepped back since, wait in the
    late heap, which compares them with the `now_ms` that the caller gives: so
    they fire neither early nor twice, and a clock that steps back stalls
    nothing. A clock that jumps forward fires everything in between in order.

    The overflow is a mapping of blocks with a heap of their numbers: its cost
    is O(1) an item, and it is looked at when the levels below are empty.

    Costs: insert and cancel O(1) (O(log n) for past due items), a cancelled
    item's memory is free at once, firing moves an item at most once a level.
    """

    __slots__ = (
        "_block_numbers",
        "_blocks",
        "_count",
        "_floor",
        "_late",
        "_late_heap",
        "_late_inserts",
        "_moves_limit",
        "_occupied",
        "_run",
        "_run_at",
        "_slots",
        "_time",
    )

    def __init__(self, now_ms: int, *, moves_limit: int = 20_000) -> None:
        """Start an empty wheel at `now_ms` (epoch milliseconds, not negative).

        `moves_limit` bounds how many items one `advance` cascades, and thereby
        how long a slot with very many items can hold up its caller.
        """
        assert now_ms >= 0
        assert moves_limit >= 1
        self._moves_limit = moves_limit
        # Items due before _time have left the slots; those in slots are due at or after it.
        self._time = now_ms
        self._count = 0
        self._slots: list[dict[Timer[T], T]] = [{} for _ in range(_SLOTS)]
        self._occupied = 0
        self._blocks: dict[int, dict[Timer[T], T]] = {}
        self._block_numbers: list[int] = []
        self._late: dict[Timer[T], T] = {}
        self._late_heap: list[tuple[int, int, Timer[T]]] = []
        self._late_inserts = 0
        # While a slot of level L is being cascaded in steps, _floor is L: what
        # falls due within it still goes into it, behind those who came first.
        self._floor = 0
        # The timers of the slot under way, as they stood when its run began,
        # and how many of them are done.
        self._run: list[Timer[T]] = []
        self._run_at = 0

    def __len__(self) -> int:
        """Items inserted and neither fired nor cancelled."""
        return self._count

    def __contains__(self, timer: Timer[T]) -> bool:
        """Whether the timer is still to fire."""
        raise NotImplementedError

    def insert(self, due_ms: int, item: T) -> Timer[T]:
        """Fire `item` at the first `advance` whose `now_ms` is at or after `due_ms`.

        Any integer is a valid due time: past, negative, or far beyond the levels.
        """
        raise NotImplementedError

    def cancel(self, timer: Timer[T]) -> bool:
        """Take the timer's item out; False if it has fired or was cancelled before."""
        raise NotImplementedError

    def advance(self, now_ms: int, limit: int = 2000) -> list[T]:
        """Fire the items due at or before `now_ms`, by due time, first in first out.

        Returns at most `limit` of them. If more are due, or a cascade met the
        `moves_limit`, `next_expiry()` is at or before `now_ms` and the next
        call goes on from there; until then give way to other work.
        """
        raise NotImplementedError

    def next_expiry(self) -> int | None:
        """The instant at which to call `advance` next; None when the wheel is empty.

        It is exact for what is past due and for what level 0 holds (less than
        256 ms ahead); further ahead it is the start of the earliest slot, a
        lower bound of the earliest due time. So an idle node wakes at most
        once a level, five times, for one far item, and never too late.
        """
        raise NotImplementedError
