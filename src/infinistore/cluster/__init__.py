"""One pool over many servers: who is there, whose a key is, and a client that uses them all."""
