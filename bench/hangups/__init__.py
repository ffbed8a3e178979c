"""Pollers that hang up: what their claims leave behind, and for how long."""
