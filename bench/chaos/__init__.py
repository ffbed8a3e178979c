"""Chaos: a cluster of real processes under load and faults, and checkers over what was seen."""
