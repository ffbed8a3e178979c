"""One entry of the log, and the part of the log that is kept in memory."""

from __future__ import annotations

import msgspec


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One entry. Empty data is a barrier, which a leader writes when its term begins."""

    data: bytes
    index: int
    term: int


class MemoryLog:
    """The entries that memory holds, behind one sentinel that stands for all before them.

    The sentinel keeps the index and term of the entry before the first, so that the log is never
    empty and each entry has one before it. Index 0 and term 0 stand before the very first.
    """

    def __init__(self, base_index: int = 0, base_term: int = 0) -> None:
        self._entries = [Entry(b"", base_index, base_term)]
        self._base = base_index

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, position: int) -> Entry:
        return self._entries[position]

    @property
    def base_index(self) -> int:
        return self._base

    @property
    def last_index(self) -> int:
        return self._base + len(self._entries) - 1

    @property
    def last_term(self) -> int:
        return self._entries[-1].term

    def term_at(self, index: int) -> int | None:
        """The term of the entry at `index`; None outside of what memory holds."""
        position = index - self._base
        return self._entries[position].term if 0 <= position < len(self._entries) else None

    def get(self, index: int) -> Entry:
        assert index > self._base, "the entry is not in memory any more"
        return self._entries[index - self._base]

    def slice(self, start: int, max_entries: int, max_bytes: int) -> list[Entry]:
        """Entries from `start` on, up to both limits, but at least one if there is any."""
        assert start > self._base, "the entries are not in memory any more"
        first = start - self._base
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
        term = self.term_at(index)
        while index - 1 > floor and self.term_at(index - 1) == term:
            index -= 1
        return index

    def last_index_up_to_term(self, index: int, term: int) -> int:
        """The last index, at most `index`, whose entry is of `term` or older."""
        index = min(index, self.last_index)
        while index > self._base and self._entries[index - self._base].term > term:
            index -= 1
        return index

    def append(self, entry: Entry) -> None:
        assert entry.index == self.last_index + 1, "entries must follow one another"
        assert entry.term >= self.last_term, "terms never fall along the log"
        self._entries.append(entry)

    def truncate_from(self, index: int) -> None:
        assert index > self._base, "what is before the log cannot be cut"
        del self._entries[index - self._base :]

    def forget_to(self, index: int) -> None:
        """Drop the entries up to `index` from memory; it becomes the sentinel."""
        if index <= self._base:
            return
        term = self.term_at(index)
        assert term is not None
        self._entries[: index - self._base + 1] = [Entry(b"", index, term)]
        self._base = index

    def reset(self, base_index: int, base_term: int) -> None:
        """Forget everything and continue after `base_index`."""
        self._entries = [Entry(b"", base_index, base_term)]
        self._base = base_index
