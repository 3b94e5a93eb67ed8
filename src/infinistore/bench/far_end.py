"""The other process of the limits: `python -m infinistore.bench.far_end streams|echo ...`.

streams COUNT BYTES        prints its port, then serves plain sockets with so much memory
echo SOURCE SINK BYTES     sends back messages over descriptors that it was given
"""

from __future__ import annotations

import socket
import sys

from infinistore import _native
from infinistore.bench.memory import shared_memory

START_TIMEOUT_S = 20.0


def serve_streams(streams: int, size: int) -> int:
    """Prints its port, then serves `streams` connections until they close; the outcome's code."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(START_TIMEOUT_S)  # whoever started us may be gone
        print(listener.getsockname()[1], flush=True)
        accepted = [listener.accept()[0] for _ in range(streams)]
    memory = shared_memory(size)
    for stream in accepted:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream.sendall(b"r")
    return int(_native.bench_serve_streams([stream.fileno() for stream in accepted], memory))


def main(what: str, *numbers: int) -> int:
    """The outcome's code."""
    if what == "streams":
        return serve_streams(*numbers)
    return int(_native.bench_echo(*numbers))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], *map(int, sys.argv[2:])))
