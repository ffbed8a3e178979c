"""The nominal times of a stretch of the past, however many they are: counted, or walked.

Both answer the same questions about the times in `after_ms` < t <= `to_ms`: one for timetables
whose times are computed, the other for those of which each time has to be looked at.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from timeball.cluster.dispatch.timetable import count_between, first_after, last_times
from timeball.cluster.state.operations import Fate, Timetable
from timeball.cluster.state.records import FateKind


class Counted:
    """The times of a simple timetable, at a cost that hardly depends on their number."""

    def __init__(self, timetable: Timetable, after_ms: int, to_ms: int) -> None:
        self._timetable = timetable
        self._after_ms = after_ms
        self._to_ms = to_ms
        self.count = count_between(timetable, after_ms, to_ms)

    def cut(self, keep: int) -> int:
        """After which instant the newest `keep` lie."""
        if keep >= self.count:
            return self._after_ms
        if keep == 0:
            return self._to_ms
        timetable, to_ms = self._timetable, self._to_ms
        width_ms = 1_024
        while count_between(timetable, to_ms - width_ms, to_ms) <= keep:
            width_ms *= 2
        low_ms, high_ms = to_ms - width_ms, to_ms  # more than that after low, not after high
        while high_ms - low_ms > 1:
            middle_ms = (low_ms + high_ms) // 2
            if count_between(timetable, middle_ms, to_ms) <= keep:
                high_ms = middle_ms
            else:
                low_ms = middle_ms
        return high_ms

    def fate(self, after_ms: int, to_ms: int, kind: FateKind, reason: str) -> Fate | None:
        """The same fate for all times in a part of the stretch; None if there are none."""
        count = count_between(self._timetable, after_ms, to_ms)
        if not count:
            return None
        first_ms = first_after(self._timetable, after_ms)
        assert first_ms is not None
        (last_ms,) = last_times(self._timetable, after_ms, to_ms, 1)
        return Fate(first_ms, last_ms, count, kind, reason)


class Walked:
    """The given times, which are all that there are from `after_ms` to the last of them."""

    def __init__(self, after_ms: int, times: Sequence[int]) -> None:
        self._after_ms = after_ms
        self._times = times
        self.count = len(times)

    def cut(self, keep: int) -> int:
        """After which instant the newest `keep` lie."""
        if keep >= self.count:
            return self._after_ms
        return self._times[self.count - keep - 1]

    def fate(self, after_ms: int, to_ms: int, kind: FateKind, reason: str) -> Fate | None:
        """The same fate for all times in a part of the stretch; None if there are none."""
        begin, end = bisect_right(self._times, after_ms), bisect_right(self._times, to_ms)
        if begin >= end:
            return None
        return Fate(self._times[begin], self._times[end - 1], end - begin, kind, reason)
