"""What a large number of pending executions costs: memory, snapshots, stalls and restarts."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from timeball.bench.load.benches import Options, fill, observe_fire_lag
from timeball.bench.load.driver import Driver, Observed, RunFailed, Show
from timeball.bench.load.figures import Figures, fire_lag_figures, longest_stalls
from timeball.bench.load.probes import SNAPSHOT_BYTES, SNAPSHOT_S, Samples
from timeball.cluster.localcluster import LocalCluster


async def scale(folder: Path, options: Options, show: Show) -> tuple[Figures, Observed]:
    """Many pending executions: their memory, the lag beside them, snapshots, restarts.

    With `keyed`, all but the lag is measured once more, in a second cluster whose pending jobs
    have idempotency keys. Raises RunFailed when the cluster was not started here.
    """
    plain = msgspec.structs.replace(options, keyed=False)
    async with Driver.opened(folder, show, urls=options.urls, limits=options.limits) as driver:
        weight = await _weigh(driver, plain)
        observed = await observe_fire_lag(driver, plain)
        figures = fire_lag_figures(observed, driver)
        figures["scale"] = weight | await _save_and_restart(driver)
    if options.keyed:
        keyed_folder = folder / "keyed"
        keyed_folder.mkdir()
        async with Driver.opened(keyed_folder, show, limits=options.limits) as driver:
            figures["scale_with_keys"] = await _weigh(driver, options)
            figures["scale_with_keys"] |= await _save_and_restart(driver)
    figures["settings"]["pending"] = options.pending
    return figures, observed


async def _weigh(driver: Driver, options: Options) -> Figures:
    """Have the jobs pending, and tell their memory."""
    if driver.cluster is None:
        raise RunFailed("memory and restarts are measured of nodes that were started here")
    empty, before = driver.usage(), await driver.metrics()
    began = time.monotonic()
    await fill(driver, options)
    filled_s = time.monotonic() - began
    full = driver.usage()
    return {
        "pending": options.pending,
        "fill_s": round(filled_s, 2),
        "fill_stall_ms": _longest_stall(before, await driver.metrics()),
        "rss_mb": {name: usage.rss_mb for name, usage in full.items()},
        "bytes_per_pending": {
            name: round((usage.rss_mb - empty[name].rss_mb) * 2**20 / max(1, options.pending))
            for name, usage in full.items()
        },
    }


async def _save_and_restart(driver: Driver) -> Figures:
    """Have each node take a snapshot, then end processes in two ways and start them again."""
    cluster = driver.cluster
    assert cluster is not None
    snapshots = {name: await _snapshot(driver, name) for name in cluster.names}
    leader = (await driver.view()).node
    follower = next(name for name in cluster.names if name != leader)
    return {
        "snapshots": snapshots,
        "restart_to_ready_s": await _restart(driver, cluster, follower),
        "power_off_to_serving_s": await _power_off(driver, cluster),
    }


async def _snapshot(driver: Driver, name: str) -> Figures | None:
    """What one node's snapshot took, and the longest stall of any node then; None: it took none."""
    assert driver.cluster is not None
    before = await driver.metrics()
    taken = await driver.take_snapshot(driver.cluster.url(name))
    if not taken:
        return None
    return {
        "mb": round(taken[SNAPSHOT_BYTES] / 2**20, 2),
        "s": round(taken[SNAPSHOT_S], 3),
        "stall_ms": _longest_stall(before, await driver.metrics()),
    }


def _longest_stall(before: dict[str, Samples], after: dict[str, Samples]) -> float | None:
    both = {name: (before[name], after[name]) for name in before.keys() & after.keys()}
    return max(longest_stalls(both).values(), default=None)


async def _restart(driver: Driver, cluster: LocalCluster, name: str) -> float:
    """One node in good order; seconds until its next process is ready."""
    driver.show("Restarting a follower", 0.5)
    await cluster.stop_node(name)
    began = time.monotonic()
    await driver.restart(name)
    return round(time.monotonic() - began, 3)


async def _power_off(driver: Driver, cluster: LocalCluster) -> float:
    """SIGKILL for all at once; seconds from the first start until all are ready and one serves."""
    driver.show("Killing all nodes, and starting them again", 0.8)
    for name in cluster.names:
        await cluster.kill(name)
    began = time.monotonic()
    await driver.restart(*cluster.names)
    return round(time.monotonic() - began, 3)
