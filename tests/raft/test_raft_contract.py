"""Pins the engine library: its version, its file, and each private name that the adapter uses.

When this fails after an upgrade, read the library's changes and check each override against the
new text: what calls it, with what arguments, and whether a new path leads around it. The tests by
fault id tell whether the safety rules still hold; only then renew the pins.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from importlib.metadata import version
from pathlib import Path

import pysyncobj
import pysyncobj.syncobj
import pysyncobj.transport

import timeball.cluster.raft as raft
from timeball.cluster.raft.engine import Engine, _Link, _Log

VERSION = "0.3.17"
SHA256 = "e8bdf06797085d734df86e24ab4802fe87893dff77268565ec036f7ad4a1cfe4"

READ_OR_SET = {
    "raftState",
    "raftCurrentTerm",
    "votedForNodeId",
    "raftLeader",
    "raftCommitIndex",
    "raftLastApplied",
    "raftLog",
    "needLoadDumpFile",
}
CALLED = {"setState", "setCurrentTerm"}
OVERRIDDEN = {
    "onMessageReceived": ["node", "message"],
    "onNodeConnected": ["node"],
    "onNodeDisconnected": ["node"],
    "sendAppendEntries": [],
    "applyLogEntries": [],
    "tryLogCompaction": [],
    "loadDumpFile": ["clearJournal"],
}
OVERRIDDEN_PLAIN = {"_onTick", "_checkCommandsToApply", "_applyCommand"}
FOLDER = Path(raft.__file__).parent


def library_source() -> str:
    return Path(pysyncobj.syncobj.__file__).read_text()


def test_the_library_is_the_one_that_was_read():
    assert version("pysyncobj") == VERSION
    assert hashlib.sha256(library_source().encode()).hexdigest() == SHA256


def test_exactly_the_pinned_private_names_are_used():
    used = set(re.findall(r"_SyncObj__(\w+)", (FOLDER / "engine.py").read_text()))
    assert used == READ_OR_SET | CALLED | set(OVERRIDDEN)


def test_each_private_name_still_exists_in_the_library():
    source = library_source()
    for name in READ_OR_SET:
        assert f"self.__{name} = " in source
    for name in CALLED | set(OVERRIDDEN):
        assert f"def __{name}(self" in source
        assert hasattr(pysyncobj.SyncObj, f"_SyncObj__{name}")
    for name in OVERRIDDEN_PLAIN:
        assert name in vars(pysyncobj.SyncObj)
        assert name in vars(Engine)


def test_each_override_takes_what_the_library_passes():
    for name, arguments in OVERRIDDEN.items():
        private = f"_SyncObj__{name}"
        for owner in (pysyncobj.SyncObj, Engine):
            signature = inspect.signature(vars(owner)[private])
            assert list(signature.parameters)[1:] == arguments


def test_no_other_module_touches_the_library():
    for path in FOLDER.glob("*.py"):
        if path.name != "engine.py":
            text = path.read_text()
            assert "import pysyncobj" not in text
            assert "from pysyncobj" not in text
            assert "_SyncObj__" not in text


def test_the_library_keeps_the_seams_that_are_built_upon():
    source = library_source()
    assert "self._poller = createPoller" in source
    assert "if transport is not None:" in source
    assert pysyncobj.syncobj._RAFT_STATE.FOLLOWER == 0
    assert pysyncobj.syncobj._RAFT_STATE.CANDIDATE == 1
    assert pysyncobj.syncobj._RAFT_STATE.LEADER == 2
    for name in ("_onMessageReceived", "_onNodeConnected", "_onNodeDisconnected", "send"):
        assert hasattr(pysyncobj.transport.Transport, name)
    assert {"__getitem__", "__len__", "setCurrentTerm", "_destroy"} <= set(vars(_Log))
    assert "send" in vars(_Link)


def test_no_pickle_is_used_by_the_consensus_layer():
    for path in FOLDER.glob("*.py"):
        assert not re.search(r"^\s*(import|from) .*pickle", path.read_text(), re.MULTILINE)
