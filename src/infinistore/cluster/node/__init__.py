"""One node of a cluster: its agent, and what it does."""
