"""A cluster for users' own tests: real rules, virtual time, no sockets, no disk, no waiting.

    async def test_a_letter_is_sent_at_the_third_attempt():
        async with VirtualCluster(start="2026-03-08T06:00Z") as cluster:
            client = cluster.client()
            async with Worker(client, tasks=[send]):
                job = await send.submit(client, to="ann")
                await cluster.run_until_idle()
            assert len((await client.execution(job.execution_id)).attempts) == 3

`VirtualCluster` is for asyncio, `SyncVirtualCluster` for everything else. The guide is
docs/testing-your-jobs.md. A cluster runs the code of a node: `pip install 'timeball[server]'`.

This package is the one part of the client that imports the cluster, and nothing imports it
(decision 0020).
"""

try:
    from timeball.client.testing.blocking import SyncVirtualCluster
    from timeball.client.testing.cluster import Instant, NotIdle, VirtualCluster
    from timeball.client.testing.virtual_time import TimeStood
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"a virtual cluster runs the code of a node: pip install 'timeball[server]' ({error})",
        name=error.name,
    ) from error

__all__ = ["Instant", "NotIdle", "SyncVirtualCluster", "TimeStood", "VirtualCluster"]
