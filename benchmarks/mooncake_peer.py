"""The unmodified peer: Mooncake's pool over TCP, for vLLM's own MooncakeStoreConnector."""

from __future__ import annotations

import json
import os
import platform
import sys
from typing import TYPE_CHECKING, Any

from demo.children import ChildError, free_port
from demo.engines import environment
from peers import RECIPES, PeerUnavailableError, install

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from demo.children import Children

PACKAGES = RECIPES["mooncake"].python
_POOL_BYTES = 5 << 28
_BUFFER_BYTES = 64 << 20

# The process whose memory is the pool; a pool that outlives engines needs one, as ours does.
_HOLDER = """
import sys, time
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
status = store.setup("127.0.0.1", "P2PHANDSHAKE", int(sys.argv[2]), int(sys.argv[3]), "tcp", "",
                     sys.argv[1])
if status:
    sys.exit(f"setup failed: {status}")
print("holder ready", flush=True)
while True:
    time.sleep(3600)
"""


class Mooncake:
    """Mooncake, installed; `start` makes a master and a pool."""

    def __init__(self, folder: Path) -> None:
        """Installs what is missing below `folder`. Raises `PeerUnavailableError`."""
        self._site = install("mooncake", folder)
        self._lib = folder / "lib"

    def environment(self) -> dict[str, str]:
        """What a process that uses Mooncake needs, on the loopback alone."""
        folders = [
            str(self._lib / part / f"{platform.machine()}-linux-gnu") for part in ("lib", "usr/lib")
        ]
        own = os.environ.get("LD_LIBRARY_PATH")
        path = environment()["PYTHONPATH"]
        return {
            "PYTHONPATH": os.pathsep.join([path, str(self._site)]),
            "LD_LIBRARY_PATH": os.pathsep.join([*folders, *([own] if own else [])]),
            "MC_TCP_BIND_ADDRESS": "127.0.0.1",
            "MOONCAKE_REQUESTER_LOCAL_HOSTNAME": "127.0.0.1",
            "PYTHONUNBUFFERED": "1",
        }

    def start(self, children: Children, logs: Path) -> dict[str, str]:
        """Starts master and pool; returns the environment of an engine that uses them."""
        port = free_port()
        master = f"127.0.0.1:{port}"
        variables = environment(self.environment())
        children.start(
            "mooncake_master",
            [
                str(self._site / "mooncake" / "mooncake_master"),
                *("-rpc_address", "127.0.0.1", "-rpc_port", str(port)),
                *("-metrics_host", "127.0.0.1", "-metrics_port", str(free_port())),
            ],
            logs / "mooncake-master.log",
            variables,
        ).wait(lambda: _accepts(port), 30)
        sizes = (str(_POOL_BYTES), str(_BUFFER_BYTES))
        children.start(
            "the Mooncake pool",
            [sys.executable, "-c", _HOLDER, master, *sizes],
            logs / "mooncake-pool.log",
            variables,
        ).line("holder ready", 60)
        config = logs / "mooncake.json"
        config.write_text(json.dumps(_engine_config(master)))
        return {**self.environment(), "MOONCAKE_CONFIG_PATH": str(config)}

    @staticmethod
    def connector_config() -> dict[str, Any]:
        """`--kv-transfer-config` of vLLM's own connector, with its defaults."""
        return {
            "kv_connector": "MooncakeStoreConnector",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
        }


def _engine_config(master: str) -> dict[str, Any]:
    return {
        "metadata_server": "P2PHANDSHAKE",
        "master_server_address": master,
        "protocol": "tcp",
        "mode": "standalone-store",
        "global_segment_size": 0,
        "local_buffer_size": 256 << 20,
    }


def _accepts(port: int) -> bool:
    import socket

    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def environment_of(
    children: Children, folder: Path, logs: Path
) -> tuple[dict[str, Any], Mapping[str, str]]:
    """Installs and starts the peer: the engine's connector config and environment."""
    mooncake = Mooncake(folder)
    try:
        return mooncake.connector_config(), mooncake.start(children, logs)
    except ChildError as error:
        raise PeerUnavailableError(str(error)) from error
