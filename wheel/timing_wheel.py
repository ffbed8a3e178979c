"""The hierarchical timing wheel: what falls due next, to the millisecond."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from itertools import islice
from typing import Final, Generic, TypeVar

from mypy_extensions import mypyc_attr

T = TypeVar("T")

# One entry a level; the last one is the overflow, which has no last slot.
_SHIFTS: Final = (0, 8, 14, 20, 26)  # a slot of level L lasts 2**_SHIFTS[L] ms
_MASKS: Final = (255, 63, 63, 63)  # slots of the level, less one
_FIRST_SLOTS: Final = (0, 256, 320, 384)  # where the level begins in the numbers of slots
_LEVEL_OF_SLOT: Final = (*[0] * 256, *[1] * 64, *[2] * 64, *[3] * 64)
_OVERFLOW: Final = 4
_WHEEL_BITS: Final = _SHIFTS[_OVERFLOW]

# Level by the number of low bits in which a due time differs from the wheel's time.
_LEVEL_OF_BITS: Final = (*[0] * 9, *[1] * 6, *[2] * 6, *[3] * 6)
# By the same: (shift, mask, first slot), all that is needed to number a slot.
_PLACES: Final = tuple(
    (_SHIFTS[level], _MASKS[level], _FIRST_SLOTS[level]) for level in _LEVEL_OF_BITS
)

_STALE_ENTRIES_ALLOWED: Final = 64


@mypyc_attr(acyclic=True)
class Timer:
    """The handle of one inserted item: a name for `TimingWheel.cancel`.

    Equal only to itself, and without a reference to the item, so an item may
    keep its own timer and no cycle arises.
    """

    __slots__ = ("due_ms",)

    def __init__(self, due_ms: int) -> None:
        """The handle of an item that is due then."""
        self.due_ms: Final = due_ms


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

    All items due at one instant are kept together, in order of insertion, and
    it is instants that stand in the slots: a slot of level 0 is one instant. When
    the wheel's time enters a slot of an upper level, the slot's instants
    cascade: each goes to the lower level at which it first differs from the
    slot's start. Three facts follow, and the code leans on them:

    - However many items an instant holds, it moves as one, and they keep their
      order.
    - An instant's place is a function of it and the wheel's time, so it is
      found without a pointer.
    - Slots numbered through all levels from level 0 up are in order of time,
      so the lowest set bit of one occupancy bitmap is the earliest slot. Empty
      time is skipped, never walked.

    The wheel's time only rises. Instants before it, of items that were past due
    when they came or since the clock had stepped back, wait in the late heap,
    which compares them with the `now_ms` that the caller gives: so they fire
    neither early nor twice, and a clock that steps back stalls nothing. A clock
    that jumps forward fires everything in between in order.

    The overflow is a mapping of blocks with a heap of their numbers: its cost
    is O(1) an instant, and it is looked at when the levels below are empty.

    Costs: insert and cancel O(1) (O(log n) for an instant before the wheel's
    time); a cancelled item is let go at once; an instant moves at most once a
    level, in steps of at most `moves_limit` instants a call.
    """

    __slots__ = (
        "_block_numbers",
        "_blocks",
        "_cascading",
        "_count",
        "_instants",
        "_late",
        "_moves_limit",
        "_occupied",
        "_run",
        "_run_due_ms",
        "_slots",
        "_time",
    )

    def __init__(self, now_ms: int, *, moves_limit: int = 5000) -> None:
        """Start an empty wheel at `now_ms` (epoch milliseconds, not negative).

        `moves_limit` bounds how many instants one `advance` cascades, and thereby
        how long a slot with very many can hold up its caller.
        """
        assert now_ms >= 0
        assert moves_limit >= 1
        self._moves_limit = moves_limit
        self._count = 0
        self._instants: dict[int, dict[Timer, T]] = {}  # none of them empty
        # Instants before _time are in the late heap, those in slots and blocks at or after it.
        self._time = now_ms
        self._occupied = 0
        self._slots: dict[int, set[int]] = {}  # of the upper levels, by number; none is empty
        self._blocks: dict[int, set[int]] = {}
        self._block_numbers: list[int] = []
        self._cascading: set[int] = set()  # instants of the slot entered that are still to move
        self._late: list[int] = []
        # The timers of the instant that is being fired in steps, those of the next steps.
        self._run: Iterator[Timer] = iter(())
        self._run_due_ms: int | None = None

    def __len__(self) -> int:
        """Items inserted and neither fired nor cancelled."""
        return self._count

    def __contains__(self, timer: Timer) -> bool:
        """Whether the timer is still to fire."""
        return timer in self._instants.get(timer.due_ms, ())

    def at(self, due_ms: int) -> Iterable[T]:
        """The items due at exactly this instant, in order of insertion; they stay. To be read
        before the wheel changes."""
        instant = self._instants.get(due_ms)
        return () if instant is None else instant.values()

    def insert(self, due_ms: int, item: T) -> Timer:
        """Fire `item` at the first `advance` whose `now_ms` is at or after `due_ms`.

        Any integer is a valid due time: past, negative, or far beyond the levels.
        """
        timer: Timer = Timer(due_ms)
        instant = self._instants.get(due_ms)
        if instant is None:
            instant = self._instants[due_ms] = {}
            self._enter(due_ms)
        instant[timer] = item
        self._count += 1
        return timer

    def cancel(self, timer: Timer) -> bool:
        """Take the timer's item out; False if it has fired or was cancelled before."""
        due_ms = timer.due_ms
        instant = self._instants.get(due_ms)
        if instant is None or timer not in instant:
            return False
        del instant[timer]
        self._count -= 1
        if not instant:
            del self._instants[due_ms]
            self._leave(due_ms)
        return True

    def advance(self, now_ms: int, limit: int = 2000) -> list[T]:
        """Fire the items due at or before `now_ms`, by due time, first in first out.

        Returns at most `limit` of them. If more are due, or a cascade met the
        `moves_limit`, `next_expiry()` is at or before `now_ms` and the next
        call goes on from there; until then give way to other work.
        """
        assert limit >= 1
        fired: list[T] = []
        moves_left = self._moves_limit
        self._fire_late(now_ms, limit, fired)
        while len(fired) < limit:
            if self._cascading:
                moves_left -= self._cascade(moves_left)
                if self._cascading:
                    break
            level, start = self._earliest()
            # The wheel's time comes to stand at now + 1, and no slot that holds
            # the wheel's time may be left above level 0: so that one cascades too.
            if start is None or start > (now_ms if level == 0 else now_ms + 1):
                if self._time <= now_ms:
                    self._time = now_ms + 1
                break
            self._time = start
            if level > 0:
                self._open(level, start)
            elif self._fire(start, limit, fired):
                self._occupied &= self._occupied - 1  # the lowest bit was this instant's
        self._count -= len(fired)
        return fired

    def next_expiry(self) -> int | None:
        """The instant at which to call `advance` next; None when the wheel is empty.

        It is exact for what is past due and for what level 0 holds (less than
        256 ms ahead); further ahead it is the start of the earliest slot, a
        lower bound of the earliest due time. So an idle node wakes at most
        once a level, five times, for one far item, and never too late.
        """
        late = self._late
        while late:
            if late[0] in self._instants:
                return late[0]
            heappop(late)
        return self._time if self._cascading else self._earliest()[1]

    def _enter(self, due_ms: int) -> None:
        """Find an instant its place."""
        bits = (due_ms ^ self._time).bit_length()
        if due_ms < self._time:
            heappush(self._late, due_ms)
        elif bits > _WHEEL_BITS:
            number = due_ms >> _WHEEL_BITS
            block = self._blocks.get(number)
            if block is None:
                block = self._blocks[number] = set()
                heappush(self._block_numbers, number)
            block.add(due_ms)
        else:
            shift, mask, first = _PLACES[bits]
            number = first + (due_ms >> shift & mask)
            self._occupied |= 1 << number
            if first:
                self._slots.setdefault(number, set()).add(due_ms)

    def _leave(self, due_ms: int) -> None:
        """Clear the place of an instant that has none of its items left."""
        bits = (due_ms ^ self._time).bit_length()
        if due_ms < self._time:
            self._sweep_late()
        elif due_ms in self._cascading:
            self._cascading.remove(due_ms)
        elif bits > _WHEEL_BITS:
            number = due_ms >> _WHEEL_BITS
            self._blocks[number].remove(due_ms)
            if not self._blocks[number]:
                del self._blocks[number]
                self._sweep_blocks()
        else:
            shift, mask, first = _PLACES[bits]
            number = first + (due_ms >> shift & mask)
            if first:
                self._slots[number].remove(due_ms)
                if self._slots[number]:
                    return
                del self._slots[number]
            self._occupied &= ~(1 << number)

    def _earliest(self) -> tuple[int, int | None]:
        """Level and start of the first slot that holds instants."""
        if self._occupied:
            number = (self._occupied & -self._occupied).bit_length() - 1
            level = _LEVEL_OF_SLOT[number]
            above = _SHIFTS[level + 1]
            slot = number - _FIRST_SLOTS[level]
            return level, (self._time >> above << above) + (slot << _SHIFTS[level])
        numbers = self._block_numbers
        while numbers and numbers[0] not in self._blocks:
            heappop(numbers)
        return _OVERFLOW, numbers[0] << _WHEEL_BITS if numbers else None

    def _open(self, level: int, start: int) -> None:
        """The wheel's time has entered the slot or block at `start`: its instants are to move."""
        if level == _OVERFLOW:
            self._cascading = self._blocks.pop(start >> _WHEEL_BITS)
        else:
            number = _FIRST_SLOTS[level] + (start >> _SHIFTS[level] & _MASKS[level])
            self._cascading = self._slots.pop(number)
            self._occupied &= ~(1 << number)

    def _cascade(self, limit: int) -> int:
        """Move instants of the slot entered to lower levels, at most `limit`; how many it moved."""
        cascading, moved = self._cascading, 0
        while cascading and moved < limit:
            self._enter(cascading.pop())
            moved += 1
        return moved

    def _fire_late(self, now_ms: int, limit: int, fired: list[T]) -> None:
        late = self._late
        while late and late[0] <= now_ms and len(fired) < limit:
            if late[0] not in self._instants or self._fire(late[0], limit, fired):
                heappop(late)

    def _fire(self, due_ms: int, limit: int, fired: list[T]) -> bool:
        """Fire items of an instant until `fired` has `limit`; True when these were its last."""
        instant = self._instants[due_ms]
        room = limit - len(fired)
        if len(instant) > room:
            fired += self._first_of(due_ms, instant, room)
            return False
        fired += instant.values()
        del self._instants[due_ms]
        if due_ms == self._run_due_ms:
            self._run, self._run_due_ms = iter(()), None
        return True

    def _first_of(self, due_ms: int, instant: dict[Timer, T], room: int) -> list[T]:
        """Take the first items out of an instant that holds more, at a cost that does not
        depend on how many were taken out before."""
        first: list[T] = []
        while len(first) < room:
            timers: list[Timer] = []
            if due_ms == self._run_due_ms:
                timers = list(islice(self._run, room - len(first)))
            if not timers:
                self._run, self._run_due_ms = iter(list(instant)), due_ms
            first += [instant.pop(timer) for timer in timers if timer in instant]
        return first

    def _sweep_late(self) -> None:
        """Drop stale numbers from the late heap once they are the greater part."""
        if len(self._late) > 2 * len(self._instants) + _STALE_ENTRIES_ALLOWED:
            self._late = sorted({due_ms for due_ms in self._late if due_ms in self._instants})

    def _sweep_blocks(self) -> None:
        """The same for the numbers of blocks."""
        if len(self._block_numbers) > 2 * len(self._blocks) + _STALE_ENTRIES_ALLOWED:
            self._block_numbers = sorted(self._blocks)
