"""Connectors: how inference engines use the store. One module an engine, found by module path."""
