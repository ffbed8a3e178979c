"""The replicated state machine: pure and deterministic."""
