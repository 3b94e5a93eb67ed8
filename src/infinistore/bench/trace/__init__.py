"""Placement and eviction: traces through eviction policies, mixed sizes through a pool."""
