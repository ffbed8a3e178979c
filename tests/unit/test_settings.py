"""The configuration file: what is read, and what each mistake is answered with."""

from __future__ import annotations

from pathlib import Path

import pytest

from timeball.cluster.settings import ConfigError, Limits, Process, load_settings, parse_settings
from timeball.cluster.state.operations import ClusterSettings

PATH = Path("/etc/timeball.toml")
EXAMPLE = Path(__file__).parents[2] / "configs" / "three-nodes.toml"
HEAD = """
name = "harbour"
secret = "0123456789abcdef"
"""
NODES = """
[[nodes]]
name = "a"
raft = "127.0.0.1:7101"
http = "127.0.0.1:7001"
[[nodes]]
name = "b"
raft = "127.0.0.1:7102"
http = "127.0.0.1:7002"
[[nodes]]
name = "c"
raft = "127.0.0.1:7103"
http = "[::1]:7003"
"""


def test_a_whole_file_is_read() -> None:
    settings = parse_settings(HEAD + NODES, PATH)
    assert settings.name == "harbour"
    assert settings.secret == b"0123456789abcdef"
    assert [node.name for node in settings.nodes] == ["a", "b", "c"]
    assert settings.node("c").http.host == "::1"
    assert settings.node("c").http_url == "http://[::1]:7003"
    assert settings.queues is None
    assert settings.data_dir("a") == Path("/etc/data/a")


def test_defaults_are_those_of_the_replicated_state() -> None:
    assert Limits().for_state() == ClusterSettings()


def test_the_example_is_valid(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("a secret of the whole cluster\n")
    config = tmp_path / "three-nodes.toml"
    config.write_text(EXAMPLE.read_text("utf-8"), "utf-8")
    settings = load_settings(config)
    assert settings.secret == b"a secret of the whole cluster"
    assert settings.limits == Limits()
    assert settings.data_dir("b") == Path("/var/lib/timeball/b")


def test_the_example_explains_every_setting() -> None:
    lines = EXAMPLE.read_text("utf-8").splitlines()
    set_or_told = {line.removeprefix("# ").partition(" = ")[0] for line in lines if " = " in line}
    for table in (Limits, Process):
        assert set(table.__struct_fields__) <= set_or_told
    assert {"name", "secret_file", "queues", "raft", "http"} <= set_or_told


@pytest.mark.parametrize(
    ("text", "field", "detail"),
    [
        ('secret = "0123456789abcdef"\n' + NODES, "name", "required field is missing"),
        (HEAD, "nodes", "required field is missing"),
        (HEAD + "colour = 1\n" + NODES, "colour", "unknown field"),
        (HEAD + NODES + "port = 1\n", "nodes[2].port", "unknown field"),
        (HEAD + NODES + "[limits]\nkeep_dead = true\n", "limits.keep_dead", "Expected `int`"),
        (HEAD + NODES + "[limits]\nkeep_dead = -1\n", "limits.keep_dead", "Expected `int` >= 0"),
        (HEAD + NODES + '[process]\nlog_level = "loud"\n', "process.log_level", "Invalid"),
        (HEAD + NODES + '[process]\ndata_dir = "here"\n', "process.data_dir", "{node}"),
        (HEAD + "queues = []\n" + NODES, "queues", "no queue"),
        (HEAD + 'queues = ["a b"]\n' + NODES, "queues[0]", "Expected `str` matching"),
        (HEAD + 'secret_file = "s"\n' + NODES, "secret", "either secret or secret_file"),
        (HEAD + NODES.replace('name = "b"', 'name = "a"'), "nodes", "name a is used twice"),
        (HEAD + NODES.replace("7102", "7001"), "nodes", "address 127.0.0.1:7001 is used twice"),
        (HEAD + NODES.replace("127.0.0.1:7102", "7102"), "nodes[1].raft", "not host:port"),
        (HEAD + NODES.replace(":7102", ":0"), "nodes[1].raft", "not host:port"),
        (HEAD + NODES.replace("127.0.0.1:7102", "a..b:7102"), "nodes[1].raft", "not host:port"),
        (HEAD + NODES.replace("127.0.0.1:7102", "\\u0000:7102"), "nodes[1].raft", "not host:port"),
        (HEAD + NODES.replace("127.0.0.1:7102", "x" * 64 + ":1"), "nodes[1].raft", "not host:port"),
        (HEAD + NODES + '[process]\ndata_dir = "\\u0000{node}"', "process.data_dir", "regex"),
        (NODES.join(['name = "x"\nsecret_file = "\\u0000"', ""]), "secret_file", "regex"),
        (HEAD + NODES.replace(":7102", ":65536"), "nodes[1].raft", "not host:port"),
        (HEAD + NODES.partition('[[nodes]]\nname = "c"')[0], "nodes", "1, 3 or 5 nodes, not 2"),
        (HEAD.replace("0123456789abcdef", "short") + NODES, "secret", "at least 16"),
        (NODES.replace("127.0.0.1:7101", "10.0.0.1:7101"), "name", "missing"),
    ],
)
def test_a_mistake_names_its_field(text: str, field: str, detail: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_settings(text, PATH)
    assert caught.value.field == field
    assert detail in caught.value.detail
    assert str(caught.value) == f"{PATH}: {field}: {caught.value.detail}"
    assert "\n" not in str(caught.value)


def test_an_exposed_node_needs_a_secret() -> None:
    one = 'name = "x"\n[[nodes]]\nname = "a"\nraft = "127.0.0.1:1"\nhttp = "127.0.0.1:2"\n'
    assert parse_settings(one, PATH).secret == b""
    with pytest.raises(ConfigError, match=r"0\.0\.0\.0:2 can be reached from outside"):
        parse_settings(one.replace("127.0.0.1:2", "0.0.0.0:2"), PATH)


def test_an_unknown_node_is_told_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="no node is named 'd'; the nodes are a, b, c"):
        parse_settings(HEAD + NODES, PATH).node("d")


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    missing = tmp_path / "none.toml"
    with pytest.raises(ConfigError, match=r"none\.toml: cannot be read: no such file"):
        load_settings(missing)
    broken = tmp_path / "broken.toml"
    broken.write_text("name = \n")
    with pytest.raises(ConfigError, match="is not valid TOML"):
        load_settings(broken)
    config = tmp_path / "config.toml"
    config.write_text('name = "x"\nsecret_file = "secret"\n' + NODES)
    with pytest.raises(ConfigError, match=r"secret_file: .*secret: no such file"):
        load_settings(config)
