"""Runs the simulator: `python tests/simulation/simulate.py --help`, or `make simulate`."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "raft"), str(HERE.parent / "mutants")]

import sim_interpreted  # noqa: E402

if "--unsafe" in sys.argv:  # a rule that is taken out has to be Python
    sim_interpreted.install()

from sim_command import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
