"""The cluster: replicated state, consensus, dispatch and the HTTP face of a node."""
