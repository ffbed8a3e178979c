"""Makes the faults of a plan happen, and undoes them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from sim_disk import TYPICAL_SYNC_S
from sim_faults import LEADER, Fault
from sim_net import DELAY_S

if TYPE_CHECKING:
    from sim_node import Place
    from sim_run import Simulation

Undo = Callable[[], None]


class Injector:
    """One for a run. A fault that finds nothing to act upon does nothing."""

    def __init__(self, run: Simulation, rng: random.Random) -> None:
        self._run = run
        self._rng = rng
        self._undo: dict[int, Undo] = {}
        self._number = 0

    def schedule(self, faults: list[Fault]) -> None:
        for fault in faults:
            self._run.loop.call_at_for(None, fault.at_ms / 1000, self._begin, fault)

    def heal(self) -> None:
        """Undo all that is still wrong, and let nothing else begin."""
        for undo in list(self._undo.values()):
            undo()
        self._undo.clear()
        for place in self._run.places.values():
            place.disk.mend()
            place.disk.sync_s = TYPICAL_SYNC_S
            self._run.set_skew(place, 0)
            place.start()

    def _begin(self, fault: Fault) -> None:
        run = self._run
        if run.healed:
            return
        who = run.leader_name() if fault.who == LEADER else fault.who
        if who is None:
            return
        run.log("fault", fault.kind, who, fault.other, fault.for_ms, fault.amount)
        undo = getattr(self, f"_{fault.kind}")(fault, run.places[who])
        if undo is not None:
            self._number += 1
            number = self._number
            self._undo[number] = undo
            ends = run.loop.time() + fault.for_ms / 1000
            run.loop.call_at_for(None, ends, self._end, number)

    def _end(self, number: int) -> None:
        undo = self._undo.pop(number, None)
        if undo is not None:
            undo()

    # --- processes and hosts -------------------------------------------------------------------

    def _kill(self, fault: Fault, place: Place, *, power: bool = False) -> Undo | None:
        if not place.up:
            return None
        self._run.kill(place, power=power)
        return place.start

    def _power(self, fault: Fault, place: Place) -> Undo | None:
        return self._kill(fault, place, power=True)

    def _kill_all(self, fault: Fault, _place: Place, *, power: bool = False) -> Undo:
        places = list(self._run.places.values())
        for place in places:
            self._run.kill(place, power=power)
        order = self._rng.sample(places, len(places))
        return lambda: [place.start() for place in order] and None

    def _blackout(self, fault: Fault, place: Place) -> Undo:
        return self._kill_all(fault, place, power=True)

    def _terminate(self, fault: Fault, place: Place) -> Undo | None:
        if not place.up:
            return None
        self._run.terminate(place)
        return place.start

    def _stop(self, fault: Fault, place: Place) -> Undo | None:
        if not place.up:
            return None
        process = place.process
        process.stop()
        return process.resume

    # --- disks ---------------------------------------------------------------------------------

    def _slow_disk(self, fault: Fault, place: Place) -> Undo:
        place.disk.sync_s = fault.amount

        def undo() -> None:
            place.disk.sync_s = TYPICAL_SYNC_S

        return undo

    def _full_disk(self, fault: Fault, place: Place) -> Undo:
        place.disk.fill()
        return place.disk.mend

    def _failing_disk(self, fault: Fault, place: Place) -> Undo:
        place.disk.break_syncs()
        return place.disk.mend

    def _rot(self, fault: Fault, place: Place) -> Undo | None:
        if not self._run.others_hold_everything(place):
            return None
        self._run.log("rotten", place.name, place.disk.rot())
        return None

    def _wipe(self, fault: Fault, place: Place) -> Undo | None:
        if not self._run.others_hold_everything(place):
            return None
        self._run.kill(place)
        place.disk.wipe()
        return place.start

    def _snapshot(self, fault: Fault, place: Place) -> None:
        self._run.ask_snapshot(place)

    # --- clocks --------------------------------------------------------------------------------

    def _clock(self, fault: Fault, place: Place) -> None:
        self._run.set_skew(place, place.skew_ms + int(fault.amount))

    # --- the network ---------------------------------------------------------------------------

    def _others(self, place: Place) -> list[str]:
        return [name for name in self._run.places if name != place.name]

    def _cut_all(self, pairs: list[tuple[str, str]]) -> Undo:
        undos = [self._run.network.cut(*pair) for pair in pairs]
        return lambda: [undo() for undo in undos] and None

    def _isolate(self, fault: Fault, place: Place) -> Undo:
        others = self._others(place)
        pairs = [(place.name, other) for other in others]
        return self._cut_all(pairs + [(b, a) for a, b in pairs])

    def _deafen(self, fault: Fault, place: Place) -> Undo:
        return self._cut_all([(other, place.name) for other in self._others(place)])

    def _partition(self, fault: Fault, _place: Place) -> Undo:
        names = self._rng.sample(list(self._run.places), len(self._run.places))
        left, right = names[: int(fault.amount)], names[int(fault.amount) :]
        pairs = [(a, b) for a in left for b in right]
        return self._cut_all(pairs + [(b, a) for a, b in pairs])

    def _cut(self, fault: Fault, place: Place) -> Undo | None:
        if place.name == fault.other:
            return None
        return self._cut_all([(place.name, fault.other)])

    def _break(self, fault: Fault, place: Place) -> None:
        if place.name != fault.other:
            self._run.network.break_link(place.name, fault.other)

    def _flap(self, fault: Fault, place: Place) -> Undo | None:
        """The path comes and goes."""
        if place.name == fault.other:
            return None
        run = self._run
        undo: list[Undo] = []
        over = False

        def turn() -> None:
            if undo:
                undo.pop()()
            elif not over:
                undo.append(self._cut_all([(place.name, fault.other), (fault.other, place.name)]))
            if not over:
                run.loop.call_at_for(None, run.loop.time() + fault.amount, turn)

        def end() -> None:
            nonlocal over
            over = True
            if undo:
                undo.pop()()

        turn()
        return end

    def _slow(self, fault: Fault, place: Place) -> Undo | None:
        if place.name == fault.other:
            return None
        conditions = self._run.network.between(place.name, fault.other)
        conditions.delay_s = fault.amount

        def undo() -> None:
            conditions.delay_s = DELAY_S

        return undo

    def _between_nodes(self, field: str, amount: float) -> Undo:
        run = self._run
        links = [run.network.between(a, b) for a in run.places for b in run.places if a != b]
        for link in links:
            setattr(link, field, amount)
        return lambda: [setattr(link, field, 0.0) for link in links] and None

    def _lossy(self, fault: Fault, _place: Place) -> Undo:
        return self._between_nodes("loss", fault.amount)

    def _unordered(self, fault: Fault, _place: Place) -> Undo:
        return self._between_nodes("reordering", fault.amount)

    def _repeating(self, fault: Fault, _place: Place) -> Undo:
        return self._between_nodes("repetition", fault.amount)

    # --- clients -------------------------------------------------------------------------------

    def _crash_worker(self, fault: Fault, _place: Place) -> None:
        self._run.crash_worker()

    def _cut_client(self, fault: Fault, place: Place) -> Undo:
        name = self._rng.choice(self._run.client_names())
        pairs = [(name, place.name), (place.name, name)]
        if self._rng.random() < 0.5:
            pairs.pop(self._rng.randrange(2))
        return self._cut_all(pairs)
