"""Load and its measurement: lean generators, exact accounting, one driver for every bench."""
