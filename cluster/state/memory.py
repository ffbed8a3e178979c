"""What the state remembers for a while: requests and claims (idempotency keys: `keys`).

Each memory forgets by log-time and by size, oldest first, a bounded number per entry.
A record that is too old counts as forgotten even before its turn to be removed, so the
window is exact. The lookup is spread over many small dicts, because one large dict
rebuilds in one go, on all nodes at the same entry. Which small dict a key is in
depends on the process's string hashing; nothing that can be seen does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Generic, TypeVar

from timeball.cluster.state.fifo import Fifo
from timeball.cluster.state.values import Remembered

_SHARDS: Final = 64


R = TypeVar("R", bound=Remembered)


class Memory(Generic[R]):
    """Records by key, forgotten oldest first."""

    __slots__ = ("_order", "_shards", "total")

    def __init__(self) -> None:
        self._order: Fifo[R] = Fifo()
        self._shards: list[dict[str, R]] = [{} for _ in range(_SHARDS)]
        self.total = 0
        """The sum of the weights held."""

    def __iter__(self) -> Iterator[R]:
        """Those of this moment, oldest first."""
        return iter(self._order)

    def __len__(self) -> int:
        return len(self._order)

    def find(self, key: str, now_ms: int, window_ms: int) -> R | None:
        """The record of `key`, unless it is `window_ms` old or older."""
        record = self._shards[hash(key) % _SHARDS].get(key)
        if record is None or record.since_ms + window_ms <= now_ms:
            return None
        return record

    def add(self, record: R) -> None:
        """Remember a record that is not older than any other; it hides one of the same key."""
        self._shards[hash(record.key) % _SHARDS][record.key] = record
        self._order.append(record)
        self.total += record.weight()

    def trim(self, now_ms: int, window_ms: int, limit: int, steps: int) -> None:
        """Forget what is too old or beyond `limit`, at most `steps` records."""
        order = self._order
        for _ in range(min(steps, len(order))):
            oldest = order.oldest
            if self.total <= limit and oldest.since_ms + window_ms > now_ms:
                return
            order.take()
            self.total -= oldest.weight()
            shard = self._shards[hash(oldest.key) % _SHARDS]
            if shard.get(oldest.key) is oldest:
                del shard[oldest.key]
