"""Lets the tests of this folder import the harness that lies beside them."""

import sys
from pathlib import Path

from hypothesis import settings

# A busy machine is no fault of the code under test.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
sys.path.insert(0, str(Path(__file__).parent))
