"""The main job on a real small model: prefill and decode vLLM through the store, beside plain vLLM.

Run as `python -m demo`, or `make demo`. `prompts` and `verdict` are pure; `children`, `engines` and
`client` run and ask processes; `run` is the order of things; `report` prints and writes.
"""
