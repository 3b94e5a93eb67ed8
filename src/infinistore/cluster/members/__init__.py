"""Who is in the cluster: the registry, a member of it, and what a client learns from it."""
