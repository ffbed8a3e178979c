"""The report of chaos: what it sums up, and what a node's configuration shows it."""

from __future__ import annotations

import io
import itertools
from collections import Counter
from pathlib import Path

from rich.console import Console

from timeball.bench.chaos.gaps import Gap
from timeball.bench.chaos.proxied import ProxiedCluster
from timeball.bench.chaos.report import render, summarise
from timeball.bench.chaos.storm import Round
from timeball.bench.checkers import Finding, Violation
from timeball.cluster.settings import load_settings


def round_of(number: int, gaps: list[Gap], *violations: Violation) -> Round:
    return Round(
        number=number,
        folder=Path(f"/kept/round-{number}"),
        seconds=10.0,
        findings={"lost": Finding("lost", 50, list(violations))},
        gaps=gaps,
        counts=Counter({"Delivered": 7, "executions": 5}),
    )


def printed(rounds: list[Round]) -> list[str]:
    text = io.StringIO()
    render(summarise(9, rounds), rounds, Console(file=text, width=200))
    return text.getvalue().rstrip().splitlines()


def test_the_losses_of_a_leader_are_summed_up_over_all_rounds() -> None:
    rounds = [
        round_of(1, [Gap("kill_leader", 1, 500.0, 600.0), Gap("kill_follower", 2, 9_000.0, 1.0)]),
        round_of(2, [Gap("mute_leader", 1, 1_600.0, 1_700.0), Gap("power_off", 2, None, 5.0)]),
    ]
    report = summarise(9, rounds)
    assert report.failover is not None
    assert (report.failover.count, report.failover.p50_ms) == (2, 500.0)
    assert (report.failover.p99_ms, report.failover.max_ms) == (1_600.0, 1_600.0)
    assert report.faults.keys() == {"kill_leader", "kill_follower", "mute_leader"}
    assert (report.violations, report.examined, report.seconds) == (0, {"lost": 100}, 20.0)
    assert report.counts == {"Delivered": 14, "executions": 10}
    lines = printed(rounds)
    assert lines[-1] == "violations: 0"
    assert any("MISSED" in line for line in lines)
    assert not any("kept" in line for line in lines)


def test_a_violation_is_shown_with_its_evidence_and_where_to_look() -> None:
    broken = round_of(2, [], Violation("lost", "job 7", "acknowledged, now unknown"))
    lines = printed([round_of(1, []), broken])
    assert lines[-1] == "violations: 1"
    assert "lost: job 7: acknowledged, now unknown" in lines
    assert "kept: /kept/round-2" in lines


def test_each_node_knows_its_own_addresses_and_its_peers_by_proxies(tmp_path: Path) -> None:
    cluster = ProxiedCluster.in_folder(tmp_path)
    ports: Counter[int] = Counter()
    for me, other in itertools.product(cluster.settings.nodes, repeat=2):
        settings = load_settings(cluster.config_of(me.name))
        assert settings.secret == cluster.settings.secret
        shown = settings.node(other.name)
        assert (shown == other) == (me is other)
        ports.update((shown.raft.port, shown.http.port))
    ports.update(int(url.rpartition(":")[2]) for url in cluster.client_urls)
    assert len(ports) == 2 * 3 + 2 * 6 + 3
    assert set(ports.values()) == {1}, "each is used for one thing"
    assert {path.stat().st_mode & 0o777 for path in tmp_path.glob("*.toml")} == {0o600}
