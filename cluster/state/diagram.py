"""The life of an execution as a diagram, drawn from the table of transitions.

``python -m timeball.cluster.state.diagram`` prints it. It stays interpreted, for what is
compiled can not be run as a program.
"""

from __future__ import annotations

import sys

from timeball.cluster.state.transitions import TRANSITIONS


def render_mermaid() -> str:
    """The table as a Mermaid state diagram, one arrow per row."""
    lines = ["stateDiagram-v2", "    [*] --> scheduled: create"]
    for source, event, target, guard in TRANSITIONS:
        label = event.name.lower() + (f" ({guard})" if guard else "")
        lines.append(f"    {source.name.lower()} --> {target.name.lower()}: {label}")
    leaving = {row.source for row in TRANSITIONS}
    reached = {row.target for row in TRANSITIONS}
    lines += [f"    {state.name.lower()} --> [*]" for state in sorted(reached - leaving)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(render_mermaid())
