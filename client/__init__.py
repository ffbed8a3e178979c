"""What users import: wire types, clients and the worker."""
