"""Tiny versions of every bench: they run, and what must never be is not. No speed is asserted."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from timeball.bench.load import benches
from timeball.bench.load.benches import Options
from timeball.bench.load.driver import RunFailed
from timeball.bench.load.plot import plot
from timeball.bench.load.render import failures
from timeball.bench.load.scale import scale
from timeball.cluster.localcluster import LocalCluster

pytestmark = pytest.mark.asyncio(loop_scope="module")

NEVER = ("early", "lost", "double_accepted", "duplicates", "refused")
NAMED = (
    *("rate_requested", "rate_achieved", "seconds", "executions", "redelivered", "fire_lag_ms"),
    *("wheel_lag_ms", "commit_ms", "loop_stall_ms", "cpu_us_per_execution", "rss_mb"),
    *("settings", "versions", "machine", *NEVER),
)
TIMEBALL = str(Path(sys.executable).parent / "timeball")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalCluster]:
    """Nodes for the benches that end none of them; what they leave pending is nobody else's."""
    async with LocalCluster.in_folder(tmp_path_factory.mktemp("bench")) as cluster:
        yield cluster


def show(_text: str, _share: float) -> None:
    """Nobody looks."""


def tiny(cluster: LocalCluster, **other: Any) -> Options:
    fields: dict[str, Any] = {"rate": 200.0, "seconds": 1.0, "warmup_s": 0.5, "executions": 300}
    return Options(**{**fields, "batch": 20, "urls": cluster.urls, **other})


def is_empty(folder: Path) -> bool:
    return not list(folder.iterdir())


def clean(figures: dict[str, Any]) -> bool:
    return {name: figures[name] for name in NEVER} == dict.fromkeys(NEVER, 0)


async def test_failover_as_users_run_it_loses_nothing_and_measures_the_gap() -> None:
    command = [
        *(TIMEBALL, "bench", "failover", "--rate", "100", "--seconds", "2.5", "--warmup", "0.5"),
        *("--workers", "1", "--batch", "10", "--kill-leader-every", "1", "--json", "-"),
    ]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    figures = json.loads(output)
    assert set(NAMED) <= set(figures)
    assert clean(figures)
    assert figures["executions"] == 250
    assert figures["account"]["accepted"] == figures["account"]["acknowledged"] == 300
    assert 0 < len(figures["failover"]["gaps_ms"]) <= figures["failover"]["kills"]
    assert figures["cpu_us_per_execution"]["leader"] is None  # it was not one and the same


@pytest.mark.parametrize(
    "other",
    [
        {"batch": 1, "workers": 2, "submitters": 2},
        {"mode": "preloaded", "workers": 1, "pending": 100},
    ],
    ids=["unbatched", "preloaded beside pending jobs"],
)
async def test_fire_lag_in_each_mode(
    cluster: LocalCluster, tmp_path: Path, other: dict[str, Any]
) -> None:
    figures, observed = await benches.fire_lag(tmp_path, tiny(cluster, **other), show)
    assert clean(figures)
    assert figures["executions"] == 200
    assert figures["account"]["delivered"] == 300
    stalls = figures["loop_stall_ms"]
    assert sorted(stalls["by_node"]) == cluster.names
    assert stalls["max"] == stalls["by_node"][stalls["node"]] > 0
    lag = figures["fire_lag_ms"]
    assert 0 <= lag["p50"] <= lag["p90"] <= lag["p99"] <= lag["p999"] <= lag["max"]
    picture = tmp_path / "lag.png"
    plot(figures, observed, picture)
    assert picture.read_bytes().startswith(b"\x89PNG")


async def test_each_node_takes_a_snapshot_in_the_measured_window(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    options = tiny(cluster, seconds=3.0, workers=1, snapshot_meanwhile=True)
    figures, _ = await benches.fire_lag(tmp_path, options, show)
    assert clean(figures)
    assert figures["snapshots"]["taken"] == 3
    assert figures["snapshots"]["seconds_max"] > 0


async def test_the_peak_is_searched_for_and_each_rate_told(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    options = tiny(cluster, lowest=100.0, highest=150.0, p99_ms=60_000.0, workers=1)
    figures, observed = await benches.peak(tmp_path, options, show)
    assert clean(figures)
    assert set(NAMED) <= set(figures)
    tried = figures["probes"]
    assert [probe["rate"] for probe in tried[:1]] == [100.0]
    held = [probe["rate"] for probe in tried if probe["held"]]
    assert figures["rate_held"] == max(held, default=None)
    assert all(bool(probe["why_not"]) != probe["held"] for probe in tried)
    assert figures["rate_requested"] == (max(held) if held else 100.0)
    assert observed.plan.rate == figures["rate_requested"]
    assert is_empty(tmp_path)  # a probe leaves nothing behind


async def test_submit_and_claim(cluster: LocalCluster, tmp_path: Path) -> None:
    (tmp_path / "submit").mkdir()
    submitted = await benches.submit(tmp_path / "submit", tiny(cluster), show)
    assert (submitted["jobs"], submitted["refused"]) == (300, 0)
    assert submitted["jobs_per_s"] > 0
    claimed = await benches.claim(tmp_path, tiny(cluster), show)
    assert clean(claimed)
    assert claimed["executions"] == 300
    assert claimed["leases_per_s"] > 0


async def test_a_burst_comes_in_the_order_of_creation(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    figures = await benches.burst(tmp_path, tiny(cluster), show)
    assert clean(figures)
    assert figures["executions"] == 300
    assert figures["out_of_order"] == 0
    assert 0 <= figures["first_ms"] <= figures["all_in_hands_ms"]


async def test_what_a_full_cluster_refuses_is_counted_and_nothing_is_lost(tmp_path: Path) -> None:
    full = LocalCluster.in_folder(tmp_path / "nodes", limits={"max_pending": 50})
    async with full as cluster:
        options = tiny(cluster, mode="preloaded", workers=1)
        figures, _ = await benches.fire_lag(tmp_path, options, show)
    assert failures(figures) == []
    account = figures["account"]
    assert (account["acknowledged"], account["accepted"], figures["lost"]) == (50, 50, 0)
    assert figures["refused"] == 250


async def test_scale_weighs_pending_executions_and_restarts(tmp_path: Path) -> None:
    options = Options(
        rate=100.0, seconds=1.0, warmup_s=0.5, batch=20, workers=1, pending=2_000, keyed=True
    )
    figures, _ = await scale(tmp_path, options, show)
    assert clean(figures)
    assert figures["scale"]["pending"] == 2_000
    for weighed in (figures["scale"], figures["scale_with_keys"]):
        assert len(weighed["snapshots"]) == 3
        for taken in weighed["snapshots"].values():
            assert taken["mb"] > 0
            assert taken["s"] > 0
            assert taken["stall_ms"] is not None
        assert all(size > 0 for size in weighed["bytes_per_pending"].values())
        assert weighed["restart_to_ready_s"] > 0
        assert weighed["power_off_to_serving_s"] > 0
    for role in ("leader", "follower", "worker", "submitter"):
        assert figures["cpu_us_per_execution"][role] is not None
    assert figures["rss_mb"]["leader"] > 0
    assert figures["commit_ms"]["p50"] > 0
    assert figures["settings"]["nodes"]["fsync"] is True


async def test_what_cannot_be_measured_is_said(cluster: LocalCluster, tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="started here"):
        await scale(tmp_path, tiny(cluster), show)
    with pytest.raises(RunFailed, match="can be killed"):
        await benches.fire_lag(tmp_path, tiny(cluster, kill_leader_every_s=1.0), show)
    with pytest.raises(RunFailed, match="say how often"):
        await benches.failover(tmp_path, tiny(cluster), show)
