"""Runs the simulator: `python tests/simulation/run.py --help`, or `make simulate SEEDS=1000`."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "raft")]

from sim_command import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
