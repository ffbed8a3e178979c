"""Consensus: the hardened engine, its journal, transport and snapshots."""
