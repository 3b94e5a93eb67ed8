"""The router: one OpenAI-compatible front for prefill and decode vLLM servers.

`choice` decides and `bodies` rewrites, both pure; `upstream` and `probe` talk to the servers;
`front` answers the clients; `daemon` runs it all.
"""
