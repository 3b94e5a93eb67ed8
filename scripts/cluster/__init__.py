"""The proof of the cluster: nodes as processes, loads, and the figures of what must hold."""
