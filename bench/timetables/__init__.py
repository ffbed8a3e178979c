"""Timetables under faults that strike on the full second: no nominal time missing, none twice."""
