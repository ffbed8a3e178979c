"""The ready queue: which due items a claim on one named queue gets, and in which order."""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar
from zlib import crc32

T = TypeVar("T", bound=Hashable)

PRIORITIES: Final = 10
"""Priorities are the integers from 0 to 9; 9 goes first."""

_STALE_ENTRIES_ALLOWED: Final = 64


def partition_of(key: str | bytes | int, partitions: int) -> int:
    """The partition, 0 to `partitions` - 1, of a partition key or an execution id.

    The same on every node, in every run and release (CRC-32 of the key's UTF-8
    or decimal text), unlike `hash`.
    """
    raise NotImplementedError


class ReadyQueue(Generic[T]):
    """Due items of one named queue.

    `take` gives, in this order:

    1. the higher priority first, over the whole queue;
    2. within one priority one item from each partition in turn, going on where
       the last `take` of that priority stopped, so that a flood in one
       partition delays another's next item by one item, not by the flood;
    3. within one partition and priority by (due time, sequence).

    Only the heads of the partitions are compared: a take costs O(log n) an
    item, whatever waits behind the heads.
    """

    def __init__(self, partitions: int = 16) -> None:
        """Start empty, with the given number of partitions."""
        assert partitions >= 1
        raise NotImplementedError

    def __len__(self) -> int:
        """Items that wait to be taken."""
        raise NotImplementedError

    def __contains__(self, item: T) -> bool:
        """Whether `item` waits to be taken."""
        raise NotImplementedError

    def push(self, item: T, *, partition: int, priority: int, due_ms: int, sequence: int) -> None:
        """Let `item` wait; it must not be waiting already.

        `partition` is 0 to partitions - 1 (see `partition_of`), `priority` 0 to
        9. Items of equal due time and sequence go first in, first out.
        """
        raise NotImplementedError

    def take(self, limit: int) -> list[T]:
        """Remove and return the next items in order, at most `limit`."""
        raise NotImplementedError

    def discard(self, item: T) -> bool:
        """Remove `item`, as when it is cancelled; False if it does not wait here."""
        raise NotImplementedError

    def oldest_due_ms(self) -> int | None:
        """The earliest due time of all that wait; None when nothing does."""
        raise NotImplementedError
