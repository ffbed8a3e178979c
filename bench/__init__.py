"""The harness behind the headline figures, and the demo."""
