"""The client: what a program uses of a server."""
