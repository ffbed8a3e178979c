"""The documents say what is so: every route, problem, test and decision that they name exists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

from timeball.client import errors
from timeball.cluster.http.nouns import all_routes
from timeball.cluster.state import poison

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PROTOCOL = (DOCS / "protocol.md").read_text("utf-8")
NOTHING = cast("Any", None)
"""Routes are a table: they need nothing of a node until they are asked."""


def test_the_protocol_names_every_route_and_no_other() -> None:
    served = {f"{route.method} {route.pattern}" for route in all_routes(NOTHING, NOTHING)}
    assert set(re.findall(r"`((?:GET|POST|PUT|PATCH|DELETE) /[^`?]*)`", PROTOCOL)) == served


def test_the_protocol_names_every_problem_with_its_status() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| ([0-9, ]+) \|", PROTOCOL, re.MULTILINE)
    told = {code: {int(status) for status in statuses.split(",")} for code, statuses in rows}
    kinds = set(errors._CLASSES.values())
    assert told.keys() == {kind.code for kind in kinds}
    assert all(kind.status in told[kind.code] for kind in kinds)


def test_the_protocol_names_every_reason_for_a_death() -> None:
    section = PROTOCOL.partition("\n## Dead letters\n")[2].partition("\n### ")[0]
    rows = re.findall(r"^\| `([a-z_:]+)` \| (.+) \|$", section, re.MULTILINE)
    assert dict(rows[1:] if rows[0][0] == "reason" else rows) == poison.REASONS


def test_every_test_that_a_document_names_exists() -> None:
    named = [
        match
        for page in DOCS.rglob("*.md")
        for match in re.findall(r"(tests/[\w/]+\.py)::(\w+)", page.read_text("utf-8"))
    ]
    assert len(named) > 20
    for path, name in named:
        assert re.search(rf"def {name}\(", (ROOT / path).read_text("utf-8")), f"{path}::{name}"


def test_every_alert_watches_metrics_that_a_node_exports() -> None:
    rules = (ROOT / "configs" / "alerts.yml").read_text("utf-8")
    watched = set(re.findall(r"\btimeball_\w+", rules))
    source = (ROOT / "cluster" / "metrics.py").read_text("utf-8")
    assert watched
    for name in watched:
        family = re.sub(r"_(count|sum|bucket|total)$", "", name)
        bare = family.removeprefix("timeball_")
        assert f'"{family}"' in source or f'"{bare}"' in source, name
    named = set(re.findall(r"^ +- alert: (\w+)", rules, re.MULTILINE))
    operations = (DOCS / "operations.md").read_text("utf-8")
    assert all(f"`{name}`" in operations for name in named)


def test_every_link_within_the_tree_leads_somewhere() -> None:
    for page in (ROOT / "README.md", *DOCS.rglob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_list_of_decisions_is_complete() -> None:
    folder = DOCS / "decisions"
    listed = set(re.findall(r"\((\d{4}-[\w-]+\.md)\)", (folder / "README.md").read_text("utf-8")))
    assert listed == {page.name for page in folder.glob("0*.md")}
