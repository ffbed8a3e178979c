"""Lets the tests of this folder import the simulator, and what it takes of other tests."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "raft"), str(HERE.parent / "mutants")]
