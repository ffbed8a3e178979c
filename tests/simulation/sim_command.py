"""The command of the simulator (`simulate.py`): runs seeds, replays one, shortens a failing one.

A failing seed is printed with how to replay it, and its trace and plan are written to files.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import time
from pathlib import Path

import msgspec
from sim_faults import EVERYTHING, Fault, Plan, plan
from sim_run import Outcome, simulate
from sim_shrink import shrink
from sim_unsafe import UNSAFE, unsafe

PROGRESS_S = 5.0


def main(arguments: list[str] | None = None) -> int:
    """The exit code: 1 when any seed broke something."""
    asked = _parser().parse_args(arguments)
    if asked.plan is not None:
        chosen = [msgspec.json.decode(asked.plan.read_bytes(), type=Plan)]
    elif asked.seed is not None:
        chosen = [plan(asked.seed, asked.only)]
    else:
        seeds = range(asked.first, asked.first + asked.seeds)
        chosen = [plan(seed, asked.only) for seed in seeds]
    failed = _run_all(chosen, asked)
    if asked.shrink and failed:
        _shorten(failed[0], asked)
    print(f"seeds: {len(chosen)} violations: {len(failed)}")
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="simulate.py", description=__doc__)
    parser.add_argument("--seeds", type=int, default=50, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="replay this seed alone, and keep its trace")
    parser.add_argument("--plan", type=Path, help="replay a plan that was written before")
    parser.add_argument("--shrink", action="store_true", help="leave out faults while it fails")
    parser.add_argument(
        "--only", nargs="+", default=(), choices=sorted(EVERYTHING), help="these kinds of faults"
    )
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--traces", type=Path, default=Path("build/simulation"))
    parser.add_argument(
        "--unsafe", choices=sorted(UNSAFE), help="put back a fault that production has mended"
    )
    parser.add_argument(
        "--until", nargs="+", default=(), metavar="RULE", help="end when one of these is broken"
    )
    return parser


def _run_all(chosen: list[Plan], asked: argparse.Namespace) -> list[Plan]:
    """The plans that broke something."""
    failed: list[Plan] = []
    began = time.monotonic()
    tell_at = began + PROGRESS_S
    work = [(one, asked.unsafe) for one in chosen]
    jobs = min(asked.jobs, len(chosen))
    alone = len(chosen) == 1
    with multiprocessing.Pool(jobs, _settle) as pool:
        for number, outcome in enumerate(pool.imap_unordered(_one, work), 1):
            if outcome.violations:
                failed.append(outcome.plan)
                _tell(outcome, asked)
            if _rules(outcome) & {*asked.until}:
                print(f"broken: {' '.join(sorted(_rules(outcome)))}", flush=True)
                break
            if alone:
                _keep(outcome, asked)
                print(f"seed {outcome.plan.seed}: trace {outcome.trace_hash}")
            elif time.monotonic() >= tell_at or number == len(chosen):
                tell_at = time.monotonic() + PROGRESS_S
                rate = number / (time.monotonic() - began)
                print(f"{number} of {len(chosen)} seeds, {rate:.1f} a second", flush=True)
    return sorted(failed, key=lambda one: one.seed)


def _settle() -> None:
    gc.collect()
    gc.freeze()


def _one(work: tuple[Plan, str | None]) -> Outcome:
    chosen, switched = work
    with unsafe(switched):
        return simulate(chosen)


def _keep(outcome: Outcome, asked: argparse.Namespace) -> tuple[Path, Path]:
    """Write the trace and the plan of a run."""
    asked.traces.mkdir(parents=True, exist_ok=True)
    name = f"seed-{outcome.plan.seed}" + (f"-{asked.unsafe}" if asked.unsafe else "")
    trace, kept = asked.traces / f"{name}.trace", asked.traces / f"{name}.plan.json"
    trace.write_text(outcome.trace)
    kept.write_bytes(msgspec.json.format(msgspec.json.encode(outcome.plan)))
    return trace, kept


def _tell(outcome: Outcome, asked: argparse.Namespace) -> None:
    trace, kept = _keep(outcome, asked)
    switched = f" --unsafe {asked.unsafe}" if asked.unsafe else ""
    only = f" --only {' '.join(asked.only)}" if asked.only else ""
    print(f"seed {outcome.plan.seed} broke something:")
    for violation in outcome.violations[:10]:
        print(f"    {violation}")
    print(f"  trace: {trace}\n  plan: {kept}")
    print(
        f"  replay: python tests/simulation/simulate.py --seed {outcome.plan.seed}{only}{switched}"
    )
    print(
        f"  shorten: python tests/simulation/simulate.py --plan {kept} --shrink{switched}",
        flush=True,
    )


def _shorten(failed: Plan, asked: argparse.Namespace) -> None:
    """Leave out faults while the run still breaks the same rule."""
    rules = _rules(_one((failed, asked.unsafe)))

    def fails(faults: list[Fault]) -> bool:
        outcome = _one((msgspec.structs.replace(failed, faults=faults), asked.unsafe))
        return bool(_rules(outcome) & rules)

    faults = shrink(failed.faults, fails)
    outcome = _one((msgspec.structs.replace(failed, faults=faults), asked.unsafe))
    trace, kept = _keep(outcome, asked)
    print(f"shortened from {len(failed.faults)} faults to {len(faults)}: {kept}, {trace}")
    for fault in faults:
        print(f"    {fault}")
    for violation in outcome.violations[:5]:
        print(f"  {violation}")


def _rules(outcome: Outcome) -> set[str]:
    return {violation.partition(":")[0] for violation in outcome.violations}
