"""Other stores and transfer libraries as contenders: how each is started, with which settings.

A peer is installed beside the environment by `make peer-NAME`, into a folder of its own, and runs
in processes of its own: only the child in which a contender lives imports the peer's packages.
"""
