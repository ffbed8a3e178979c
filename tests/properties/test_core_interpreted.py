"""The compiled core and the interpreted one are one state machine, and one dispatch.

Nodes of one cluster may run either: where there is no C compiler the same sources are interpreted.
So the same entries must come to the same state, the same dump, the same verdicts and the same
happenings in both, and stop both with the same words; and a leader must propose and answer the
same.

One of them is this process, the other a process that imports a copy of the sources. With a build
that was made with TIMEBALL_COMPILE=0 (or without a C compiler) nothing lies compiled beside the
sources: then both are interpreted, and what is compared is two processes whose strings hash
differently. That must not show either.
"""

from __future__ import annotations

import importlib.util
import os
import random
import shutil
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import msgspec
import pytest
from core_replay import Came, Life, Work, do
from state_model import EPOCH_MS
from test_state_fuzz import DUMP, INTEGERS, OPERATIONS, hostile
from test_state_model import Driver

from timeball.cluster.state.machine import Applied, StateMachine
from timeball.cluster.state.operations import (
    Claim,
    ClusterSettings,
    CreateJobs,
    Fail,
    Failure,
    KeyRule,
    Lead,
    NewJob,
    Options,
    RetryPolicy,
    Start,
    Succeed,
    Success,
    encode_entry,
)

ROOT = Path(__file__).resolve().parents[2]
LAYERS = ("client", "wheel", "cluster")
STEPS = 400
DAYS = 15
HOSTILE, HOSTILE_ENTRIES = 20, 120


class Noted(StateMachine):
    """Notes the entries that it is to apply."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[tuple[int, bytes]] = []

    def apply(self, index: int, entry: bytes) -> Applied:
        self.entries.append((index, entry))
        return super().apply(index, entry)


def a_modelled_life(seed: int) -> Life:
    """Operations that fit the state, as a model draws them (see `test_state_model`)."""
    driver = Driver(random.Random(seed).choice)
    driver.one = noted = Noted()
    driver.compare = driver.mirror = lambda _: None
    driver.lead()
    for _ in range(STEPS):
        driver.step()
    return Life([], noted.entries)


def a_recorded_life(journal: Path) -> Life:
    """What an earlier release recorded (see `tests/golden`)."""
    spec = importlib.util.spec_from_file_location("golden_record", journal.parent / "record.py")
    assert spec is not None
    assert spec.loader is not None
    record = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(record)
    return Life([], record.load(journal))


def a_hostile_life(seed: int, wrong: float) -> Life:
    """Well-formed operations with values that nobody would propose, and some of wrong types."""
    rng = random.Random(seed)
    entries = []
    for index in range(20, 20 + HOSTILE_ENTRIES):
        operations = [hostile(OPERATIONS, rng, wrong) for _ in range(rng.randint(1, 3))]
        now_ms = rng.choice([EPOCH_MS, EPOCH_MS + index * 700, *INTEGERS[:4]])
        entries.append((index, msgspec.msgpack.encode([now_ms, operations])))
    return Life(DUMP, entries)


def a_life_of_large_numbers(base: int) -> Life:
    """An index so high that ids and tokens no longer fit a machine word, of which the compiled core
    keeps a bit for itself; and texts and attempts beyond what is kept of them."""
    policy = RetryPolicy(2**31 - 1, 1, 10_000, 1_000, 100)
    jobs = [
        NewJob("q", b"x", retry=policy, idempotency_key="k", fingerprint=b"f" * 64),
        NewJob("é" * 200, b"", options=Options("k\U0001f600", ("a",)), partition_key="p"),
        NewJob("q", b"", idempotency_key="held", key_rule=KeyRule(until_ended=True)),
    ]
    first = (base + 2) * 4096
    hold = (first, EPOCH_MS)
    steps: list[list[object]] = [[Lead("n1", ClusterSettings())], [CreateJobs("r", jobs)]]
    for attempt in range(40):
        token = (base + 2 * attempt + 3) * 4096
        steps += [
            [Claim("w\U0001f600" * 150, f"c{attempt}", 10_000, [hold, (first + 2, 0)])],
            [
                Start([(*hold, token)]),
                Fail([Failure(*hold, token, "E" * 300, "m" * 3_000, backtrace="é" * 9_000)]),
            ],
        ]
    steps += [[Succeed([Success(*hold, token, b"late")])], [CreateJobs("r", jobs)]]
    return Life(
        [],
        [
            (base + number, encode_entry(EPOCH_MS + 5_000 * (number - 2), step))
            for number, step in enumerate(steps, 1)
        ],
    )


@pytest.fixture(scope="module")
def work(compiled_modules: list[Path]) -> tuple[list[str], Work]:
    """All that both are to do, with the names of the lives."""
    lives = {f"modelled-{seed}": a_modelled_life(seed) for seed in range(12)}
    for journal in sorted((ROOT / "tests" / "golden").glob("level-*.journal")):
        lives[f"recorded-{journal.stem}"] = a_recorded_life(journal)
    for seed in range(HOSTILE):
        lives[f"hostile-{seed}"] = a_hostile_life(seed, 0.002 * (seed % 8))
    for bits in (40, 50, 51):
        lives[f"large-{bits}"] = a_life_of_large_numbers(2**bits - 20)
    modules = [".".join(("timeball", *path.with_suffix("").parts)) for path in compiled_modules]
    return list(lives), Work(modules, list(lives.values()), list(range(DAYS)), list(range(10)))


@pytest.fixture(scope="module")
def here(work: tuple[list[str], Work]) -> Came:
    """What came of it in this process."""
    return do(work[1])


@pytest.fixture(scope="module")
def there(work: tuple[list[str], Work], tmp_path_factory: pytest.TempPathFactory) -> Came:
    """What came of it in a process that imports a copy of the sources, and nothing compiled."""
    packages = tmp_path_factory.mktemp("interpreted")
    unwanted = shutil.ignore_patterns(
        "__pycache__", *(f"*{suffix}" for suffix in EXTENSION_SUFFIXES)
    )
    for layer in LAYERS:
        shutil.copytree(ROOT / layer, packages / "timeball" / layer, ignore=unwanted)
    paths = [str(packages), str(Path(__file__).parent)]
    done = subprocess.run(
        [sys.executable, "-P", Path(__file__).with_name("core_replay.py")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONHASHSEED": "7"},
        input=msgspec.msgpack.encode(work[1]), capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    return msgspec.msgpack.decode(done.stdout, type=Came)


def test_one_is_compiled_and_the_other_is_not(work, here: Came, there: Came) -> None:
    modules = work[1].modules
    beside = [name for name in modules if lies_compiled(name)]
    assert beside in ([], modules), "compiled as a whole, or not at all"
    assert here.compiled == beside
    assert there.compiled == []


def lies_compiled(name: str) -> bool:
    """Whether something compiled lies beside the source of a module."""
    source = ROOT.joinpath(*name.split(".")[1:])
    return any(source.with_name(source.name + suffix).exists() for suffix in EXTENSION_SUFFIXES)


def test_both_make_the_same_of_the_same_entries(work, here: Came, there: Came) -> None:
    for name, ours, theirs in zip(work[0], here.lives, there.lives, strict=True):
        for place, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            assert one == other, f"{name}, line {place}"


def test_some_of_the_entries_halt_and_most_do_not(work, here: Came) -> None:
    halts = dict(zip(work[0], here.halts, strict=True))
    # At index 2**51 ids are no machine words any more, and answers can not be remembered.
    assert {name for name, number in halts.items() if number} <= {
        "large-51",
        *(f"hostile-{seed}" for seed in range(HOSTILE)),
    }
    assert HOSTILE < sum(halts.values()) < HOSTILE * HOSTILE_ENTRIES / 2


def test_both_dispatch_alike(work, here: Came, there: Came) -> None:
    for seed, ours, theirs in zip(work[1].days, here.days, there.days, strict=True):
        for place, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            assert one == other, f"day {seed}, line {place}"


def test_both_count_alike_beyond_a_machine_word(work, here: Came, there: Came) -> None:
    for seed, ours, theirs in zip(work[1].sums, here.sums, there.sums, strict=True):
        for place, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            assert one == other, f"seed {seed}, line {place}"
