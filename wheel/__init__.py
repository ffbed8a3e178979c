"""Timing: the hierarchical wheel, time buckets and ready queues. Pure."""
