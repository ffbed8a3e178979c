"""The HTTP face of a node: parse, propose, render."""
