"""How a store, a vLLM server and a router are started here; each is a child with a URL."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from demo.children import answers, free_port
from demo.client import get

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from demo.children import Child, Children

ROOT = Path(__file__).parents[1]
BLOCK_TOKENS = 32
CONTEXT_TOKENS = 2048
CONNECTOR = "InfiniStoreConnector"
CONNECTOR_MODULE = "infinistore.connectors.vllm"
_START_S = 420.0  # a busy machine of two cores; 40 to 60 s when it is quiet

# vLLM on a CPU without a model hub, on the loopback alone. Both packages are imported from here.
ENGINE_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_SERVER_DEV_MODE": "1",  # POST /reset_prefix_cache
    "PYTHONUNBUFFERED": "1",
}
# They would set the keys, threads or layout of one run apart from another's.
_NOT_INHERITED = ("PYTHONHASHSEED", "VLLM_KV_CACHE_LAYOUT", "VLLM_CPU_OMP_THREADS_BIND")


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment without what would disturb a comparison, and with `extra`."""
    kept = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    path = [str(ROOT), *filter(None, [kept.get("PYTHONPATH")])]
    return {**kept, "PYTHONPATH": os.pathsep.join(path), **(extra or {})}


def cores() -> tuple[int, int]:
    """One core for prefill (and plain), one for decode; the same one where there is no other."""
    allowed = sorted(os.sched_getaffinity(0))
    return allowed[0], allowed[1 if len(allowed) > 1 else 0]


@dataclasses.dataclass(frozen=True, slots=True)
class Service:
    """A started child that answers on HTTP."""

    child: Child
    url: str
    start_s: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Store:
    """A started store: where its data and its admin page are."""

    child: Child
    data: str
    admin: str

    @property
    def url(self) -> str:
        """What a client connects to."""
        return f"infinistore://{self.data}"


def start_store(children: Children, log: Path, pool: str = "2GiB") -> Store:
    """One store with ports of its own choice."""
    child = children.start(
        "the store",
        [
            *(sys.executable, "-m", "infinistore.server", "--pool", pool),
            *("--host", "127.0.0.1", "--port", "0", "--admin-port", "0"),
        ],
        log,
        environment({"PYTHONUNBUFFERED": "1"}),
    )
    line = child.line("infinistore ready")
    fields = dict(word.split("=", 1) for word in line.split() if "=" in word)
    return Store(child, fields["data"], f"http://{fields['admin']}")


def block_value_bytes(model: Path) -> int:
    """The bytes of one block's value: keys and values of all layers, in float32."""
    config = json.loads((model / "config.json").read_text())
    heads = config.get("num_key_value_heads", config["num_attention_heads"])
    size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return int(config["num_hidden_layers"] * heads * size * 2 * 4 * BLOCK_TOKENS)


# For who demands every hit, also of a machine whose two cores are taken by others.
PATIENCE = {"lookup_timeout_s": 10.0, "save_timeout_s": 60.0}


def connector_config(
    store: Store, transport: str, extra: Mapping[str, float] | None = None
) -> dict[str, Any]:
    """`--kv-transfer-config` of a vLLM that saves to and loads from `store`."""
    return {
        "kv_connector": CONNECTOR,
        "kv_connector_module_path": CONNECTOR_MODULE,
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {
            "url": store.url,
            "transport": transport,
            **(extra or {}),
        },
    }


def start_engine(
    children: Children,
    name: str,
    model: Path,
    log: Path,
    *,
    core: int,
    kv_transfer: dict[str, Any] | None = None,
    extra_environment: Mapping[str, str] | None = None,
    extra_arguments: Sequence[str] = (),
) -> tuple[Child, str]:
    """One vLLM server; it is not ready yet, so that two may start at once."""
    port = free_port()
    argv = [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(model), "--served-model-name", "demo"),
        *("--host", "127.0.0.1", "--port", str(port)),
        # float32 and one thread each: the sums then come in one order everywhere, and equal tokens
        # are a fair demand. (On most CPUs vLLM is also faster so than with bfloat16.)
        *("--dtype", "float32", "--enforce-eager"),
        *("--block-size", str(BLOCK_TOKENS), "--max-model-len", str(CONTEXT_TOKENS)),
        *("--max-num-seqs", "8", "--enable-prompt-tokens-details"),
        *extra_arguments,
    ]
    if kv_transfer is not None:
        argv += ["--kv-transfer-config", json.dumps(kv_transfer)]
    variables = {
        **ENGINE_ENVIRONMENT,
        "VLLM_CPU_OMP_THREADS_BIND": str(core),
        **(extra_environment or {}),
    }
    child = children.start(name, argv, log, environment(variables))
    return child, f"http://127.0.0.1:{port}"


def ready(child: Child, url: str) -> Service:
    """Waits until the vLLM server answers."""
    return Service(child, url, child.wait(lambda: answers(url + "/health"), _START_S))


def start_router(children: Children, log: Path, prefill: Service, decode: Service) -> Service:
    """The router before both."""
    child = children.start(
        "the router",
        [
            *(sys.executable, "-m", "infinistore", "router", "--port", "0"),
            *("--prefill", prefill.url, "--decode", decode.url),
            # A prefill that was given up would show as a miss: here that is a failure.
            *("--prefill-timeout", "300"),
        ],
        log,
        environment({"PYTHONUNBUFFERED": "1"}),
    )
    line = child.line("infinistore router ready")
    return Service(child, line.split()[3])


def moved_bytes(store: Store) -> tuple[int, int]:
    """Bytes of values that the store has given out and taken in since its start."""
    stats = get(store.admin + "/stats")
    return int(stats["sent_bytes"]), int(stats["received_bytes"])
