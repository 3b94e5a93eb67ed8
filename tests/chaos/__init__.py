"""Process chaos: a real server, real clients, faults between them, and a check of every byte."""
