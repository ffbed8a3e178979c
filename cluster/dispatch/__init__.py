"""The leader's work: from time buckets to granted leases."""
