"""What the property tests share: models, which they import by name."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
