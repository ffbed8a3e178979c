"""One entry of the log, and the part of the log that is kept in memory."""

from __future__ import annotations

from bisect import bisect_right

import msgspec

_ENTRY_BYTES = 120
"""What memory holds of an entry beside its data, about."""

_SHED_SHARE = 16
"""Entries are shed a part of the bound at a time: to move those behind costs too."""


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One entry. Empty data is a barrier, which a leader writes when its term begins."""

    data: bytes
    index: int
    term: int


class MemoryLog:
    """What memory knows of the log: the term of each entry, and the newest entries themselves.

        base_index        held_index               last_index
        │  term known      │  term and data known   │
        ├──────────────────┼────────────────────────┤

    The entry at `base_index` stands for all before it: its index and term are known, so that each
    entry has one before it. Index 0 and term 0 stand before the very first. Entries up to
    `held_index` are durable and have to be read from the journal; those behind it take about
    `max_bytes`, but for what is not durable yet.

    Terms are kept as runs, one for each term: where it begins, and which it is.
    """

    def __init__(
        self, base_index: int = 0, base_term: int = 0, *, max_bytes: int = 8 * 1024 * 1024
    ) -> None:
        self._max_bytes = max_bytes
        self.reset(base_index, base_term)

    def reset(self, base_index: int, base_term: int) -> None:
        """Forget everything and continue after `base_index`."""
        self._entries: list[Entry] = []
        self._size = 0
        self._base = self._held = self._last = base_index
        self._run_starts = [base_index]
        self._run_terms = [base_term]

    def __len__(self) -> int:
        return self._last - self._base + 1

    @property
    def base_index(self) -> int:
        return self._base

    @property
    def held_index(self) -> int:
        """Memory holds the data of the entries above."""
        return self._held

    @property
    def last_index(self) -> int:
        return self._last

    @property
    def last_term(self) -> int:
        return self._run_terms[-1]

    def _run_at(self, index: int) -> int:
        """The position of the run that `index` is in."""
        return bisect_right(self._run_starts, index) - 1

    def term_at(self, index: int) -> int | None:
        """The term of the entry at `index`; None outside of what the log knows."""
        if not self._base <= index <= self._last:
            return None
        if index >= self._run_starts[-1]:
            return self._run_terms[-1]
        return self._run_terms[self._run_at(index)]

    def get(self, index: int) -> Entry:
        assert index > self._held, "the entry is not in memory any more"
        return self._entries[index - self._held - 1]

    def slice(self, start: int, max_entries: int, max_bytes: int) -> list[Entry]:
        """Entries from `start` on, up to both limits, but at least one if there is any."""
        assert start > self._held, "the entries are not in memory any more"
        first = start - self._held - 1
        chosen: list[Entry] = []
        size = 0
        for position in range(first, min(first + max_entries, len(self._entries))):
            entry = self._entries[position]
            size += len(entry.data)
            if chosen and size > max_bytes:
                break
            chosen.append(entry)
        return chosen

    def first_index_of_term(self, index: int, floor: int) -> int:
        """The first index above `floor` from which on all up to `index` share its term."""
        assert floor < index
        return max(self._run_starts[self._run_at(index)], floor + 1)

    def last_index_up_to_term(self, index: int, term: int) -> int:
        """The last index, at most `index`, whose entry is of `term` or older."""
        newer = bisect_right(self._run_terms, term)
        last = self._run_starts[newer] - 1 if newer < len(self._run_starts) else self._last
        return min(index, max(last, self._base))

    def append(self, entry: Entry) -> None:
        assert entry.index == self._last + 1, "entries must follow one another"
        assert entry.term >= self._run_terms[-1], "terms never fall along the log"
        self._entries.append(entry)
        self._size += len(entry.data) + _ENTRY_BYTES
        self._last = entry.index
        if entry.term != self._run_terms[-1]:
            self._run_starts.append(entry.index)
            self._run_terms.append(entry.term)

    def shed(self, durable_index: int) -> None:
        """Drop the data of the oldest entries, none above `durable_index`, if all take too much."""
        if self._size <= self._max_bytes:
            return
        target = self._max_bytes - self._max_bytes // _SHED_SHARE
        size = self._size
        until = min(durable_index - self._held, len(self._entries))
        count = 0
        while count < until and size > target:
            size -= len(self._entries[count].data) + _ENTRY_BYTES
            count += 1
        self._drop(count)

    def _drop(self, count: int) -> None:
        self._size -= self._size_of(self._entries[:count])
        del self._entries[:count]
        self._held += count

    def _size_of(self, entries: list[Entry]) -> int:
        return sum(len(entry.data) + _ENTRY_BYTES for entry in entries)

    def truncate_from(self, index: int) -> None:
        assert index > self._base, "what is before the log cannot be cut"
        kept = max(0, index - self._held - 1)
        self._size -= self._size_of(self._entries[kept:])
        del self._entries[kept:]
        self._held = min(self._held, index - 1)
        self._last = min(self._last, index - 1)
        while self._run_starts[-1] >= index:
            self._run_starts.pop()
            self._run_terms.pop()

    def forget_to(self, index: int) -> None:
        """Drop the entries up to `index`, data and term; it becomes the new base."""
        if index <= self._base:
            return
        assert index <= self._last
        if index > self._held:
            self._drop(index - self._held)
        run = self._run_at(index)
        del self._run_starts[:run], self._run_terms[:run]
        self._run_starts[0] = self._base = index
