"""Runs the simulator: `python tests/simulation/simulate.py --help`, or `make simulate`."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "raft"), str(HERE.parent / "mutants")]

from sim_command import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
