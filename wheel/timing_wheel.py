"""The hierarchical timing wheel: what falls due next, to the millisecond."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

from msgspec import Struct

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

# By level: (shift, mask, first slot), all that is needed to number a slot.
_WHEEL_LEVELS: Final = tuple(zip(_SHIFTS, _MASKS, _FIRST_SLOTS, strict=False))
# The same by number of bits, when levels below the floor (the index) are closed.
_PLACES: Final = tuple(
    tuple(_WHEEL_LEVELS[max(level, floor)] for level in _LEVEL_OF_BITS)
    for floor in range(_OVERFLOW)
)

_STALE_ENTRIES_ALLOWED: Final = 64


class Timer(Struct, Generic[T], eq=False, frozen=True, gc=False):
    """The handle of one inserted item: a name for `TimingWheel.cancel`.

    Equal only to itself, and without a reference to the item, so an item may
    keep its own timer and no cycle arises.
    """

    due_ms: int


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

    Costs: insert and cancel O(1) (O(log n) for items due before the wheel's
    time); a cancelled item is let go at once; firing moves an item at most
    once a level, in steps of at most `moves_limit` items a call.
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
        "_places",
        "_run",
        "_run_at",
        "_slots",
        "_time",
        "_wheel_bits",
    )

    def __init__(self, now_ms: int, *, moves_limit: int = 5000) -> None:
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
        self._set_floor(0)
        # The timers of the slot under way, as they stood when its run began,
        # and how many of them are done.
        self._run: list[Timer[T]] = []
        self._run_at = 0

    def __len__(self) -> int:
        """Items inserted and neither fired nor cancelled."""
        return self._count

    def __contains__(self, timer: Timer[T]) -> bool:
        """Whether the timer is still to fire."""
        if timer.due_ms < self._time:
            return timer in self._late
        return self._place_of(timer) is not None

    def insert(self, due_ms: int, item: T) -> Timer[T]:
        """Fire `item` at the first `advance` whose `now_ms` is at or after `due_ms`.

        Any integer is a valid due time: past, negative, or far beyond the levels.
        """
        timer: Timer[T] = Timer(due_ms)
        self._count += 1
        time = self._time
        if due_ms < time:
            self._late_inserts += 1
            self._late[timer] = item
            heappush(self._late_heap, (due_ms, self._late_inserts, timer))
            return timer
        bits = (due_ms ^ time).bit_length()
        if bits > self._wheel_bits:
            self._block(due_ms >> _WHEEL_BITS)[timer] = item
            return timer
        shift, mask, first = self._places[bits]
        index = first + (due_ms >> shift & mask)
        slot = self._slots[index]
        if not slot:
            self._occupied |= 1 << index
        slot[timer] = item
        return timer

    def cancel(self, timer: Timer[T]) -> bool:
        """Take the timer's item out; False if it has fired or was cancelled before."""
        due_ms, time = timer.due_ms, self._time
        if due_ms < time:
            if timer not in self._late:
                return False
            del self._late[timer]
            self._sweep_late()
        else:
            place = self._place_of(timer)
            if place is None:
                return False
            level, slot = place
            del slot[timer]
            if not slot:
                self._vacate(level, due_ms)
        self._count -= 1
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
        if self._late:
            self._fire_late(now_ms, limit, fired)
        while len(fired) < limit:
            while self._floor and moves_left:
                moves_left -= self._cascade(moves_left)
            if self._floor:
                break
            level, start = self._earliest()
            # The wheel's time comes to stand at now + 1, and no slot that holds
            # the wheel's time may be left above level 0: so that one cascades too.
            if start is None or start > (now_ms if level == 0 else now_ms + 1):
                if self._time <= now_ms:
                    self._time = now_ms + 1
                break
            self._time = start
            if level == 0:
                self._fire_slot(start, limit, fired)
            else:
                self._set_floor(level)
        self._count -= len(fired)
        return fired

    def next_expiry(self) -> int | None:
        """The instant at which to call `advance` next; None when the wheel is empty.

        It is exact for what is past due and for what level 0 holds (less than
        256 ms ahead); further ahead it is the start of the earliest slot, a
        lower bound of the earliest due time. So an idle node wakes at most
        once a level, five times, for one far item, and never too late.
        """
        if self._late:
            heap = self._late_heap
            while heap[0][2] not in self._late:
                heappop(heap)
            return heap[0][0]
        if self._floor:
            return self._time if self._count else None
        return self._earliest()[1]

    def _set_floor(self, floor: int) -> None:
        """Close the levels below `floor` to insertions; 0 opens them all."""
        self._floor = floor
        self._wheel_bits = _WHEEL_BITS if floor < _OVERFLOW else -1
        self._places = _PLACES[floor % _OVERFLOW]

    def _earliest(self) -> tuple[int, int | None]:
        """Level and start of the first slot that holds items."""
        if self._occupied:
            index = (self._occupied & -self._occupied).bit_length() - 1
            level = 0
            while level + 1 < _OVERFLOW and index >= _FIRST_SLOTS[level + 1]:
                level += 1
            above = _SHIFTS[level + 1]
            slot = index - _FIRST_SLOTS[level]
            return level, (self._time >> above << above) + (slot << _SHIFTS[level])
        numbers = self._block_numbers
        while numbers and numbers[0] not in self._blocks:
            heappop(numbers)
        return _OVERFLOW, numbers[0] << _WHEEL_BITS if numbers else None

    def _fire_late(self, now_ms: int, limit: int, fired: list[T]) -> None:
        heap, late = self._late_heap, self._late
        while heap and heap[0][0] <= now_ms and len(fired) < limit:
            timer = heappop(heap)[2]
            if timer in late:
                fired.append(late.pop(timer))
        self._sweep_late()

    def _fire_slot(self, due_ms: int, limit: int, fired: list[T]) -> None:
        """Fire what level 0 holds for `due_ms`, until `fired` has `limit` items."""
        slot = self._slots[due_ms & _MASKS[0]]
        room = limit - len(fired)
        if len(slot) <= room:
            fired.extend(slot.values())
            slot.clear()
        else:
            fired.extend(item for _, item in self._next_of(slot, room))
        if not slot:
            self._vacate(0, due_ms)

    def _cascade(self, limit: int) -> int:
        """Move items of the slot under way to lower levels, at most `limit`; how many it moved."""
        time, slots = self._time, self._slots
        slot = self._slot(self._floor, time)
        moved = self._next_of(slot, limit)
        places = _PLACES[0]
        for timer, item in moved:
            due_ms = timer.due_ms
            shift, mask, first = places[(due_ms ^ time).bit_length()]
            index = first + (due_ms >> shift & mask)
            target = slots[index]
            if not target:
                self._occupied |= 1 << index
            target[timer] = item
        if not slot:
            self._vacate(self._floor, time)
            self._set_floor(0)
        return len(moved)

    def _next_of(self, slot: dict[Timer[T], T], limit: int) -> list[tuple[Timer[T], T]]:
        """Take the first items out of a slot, at most `limit`, at a cost that does not
        depend on how many were taken out before."""
        if len(slot) <= limit:
            pairs = list(slot.items())
            slot.clear()
            return pairs
        if self._run_at >= len(self._run):
            self._run, self._run_at = list(slot), 0
        step = self._run[self._run_at : self._run_at + limit]
        self._run_at += len(step)
        return [(timer, slot.pop(timer)) for timer in step if timer in slot]

    def _place_of(self, timer: Timer[T]) -> tuple[int, dict[Timer[T], T]] | None:
        """The slot that holds a timer due at or after the wheel's time, and its level."""
        due_ms = timer.due_ms
        bits = (due_ms ^ self._time).bit_length()
        level = _LEVEL_OF_BITS[bits] if bits <= _WHEEL_BITS else _OVERFLOW
        slot = self._slot(level, due_ms)
        if timer in slot:
            return level, slot
        # It may not have been moved yet from the slot that is being cascaded.
        if level < self._floor:
            slot = self._slot(self._floor, due_ms)
            if timer in slot:
                return self._floor, slot
        return None

    def _slot(self, level: int, due_ms: int) -> dict[Timer[T], T]:
        """The slot or block to which `due_ms` belongs at `level`; to read or delete from."""
        if level == _OVERFLOW:
            return self._blocks.get(due_ms >> _WHEEL_BITS) or {}
        shift, mask, first = _WHEEL_LEVELS[level]
        return self._slots[first + (due_ms >> shift & mask)]

    def _block(self, number: int) -> dict[Timer[T], T]:
        """The overflow block of that number, made if there is none."""
        block = self._blocks.get(number)
        if block is None:
            block = self._blocks[number] = {}
            heappush(self._block_numbers, number)
        return block

    def _vacate(self, level: int, due_ms: int) -> None:
        """Mark the slot of `due_ms` at `level` as empty and give its memory back."""
        if level == _OVERFLOW:
            self._blocks.pop(due_ms >> _WHEEL_BITS, None)
            if len(self._block_numbers) > 2 * len(self._blocks) + _STALE_ENTRIES_ALLOWED:
                self._block_numbers = sorted(self._blocks)
        else:
            index = _FIRST_SLOTS[level] + ((due_ms >> _SHIFTS[level]) & _MASKS[level])
            self._slots[index].clear()
            self._occupied &= ~(1 << index)
        if level == self._floor and self._time >> _SHIFTS[level] == due_ms >> _SHIFTS[level]:
            self._run, self._run_at = [], 0

    def _sweep_late(self) -> None:
        """Drop cancelled timers from the late heap once they are the greater part."""
        if not self._late:
            self._late.clear()  # an emptied dict keeps its table until it is cleared
            self._late_heap.clear()
        elif len(self._late_heap) > 2 * len(self._late) + _STALE_ENTRIES_ALLOWED:
            self._late_heap = [entry for entry in self._late_heap if entry[2] in self._late]
            heapify(self._late_heap)
