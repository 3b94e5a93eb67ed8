"""Which engines take part in the runs on a GPU, and how each is started."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from gpu_engine import Engine

PLAIN, PLAIN_1 = "plain", "plain, first runner"
OFFLOAD, OFFLOAD_1 = "OffloadingConnector", "OffloadingConnector, first runner"
ASYNC, LAYERWISE = "ours, async", "ours, layerwise"
_OFFLOAD_BYTES = 8 << 30


@dataclasses.dataclass(frozen=True)
class Entrant:
    """How one engine differs from the others."""

    name: str
    mode: str | None = None  # ours, with this load mode
    is_offloading: bool = False
    # vLLM takes a step back only with its first model runner and without asynchronous scheduling.
    is_first_runner: bool = False

    @property
    def plain(self) -> str:
        """The entrant without a connector that it is held against."""
        return PLAIN_1 if self.is_first_runner else PLAIN


ENTRANTS = {
    "plain": Entrant(PLAIN),
    "plain-1": Entrant(PLAIN_1, is_first_runner=True),
    "offload": Entrant(OFFLOAD, is_offloading=True),
    "offload-1": Entrant(OFFLOAD_1, is_offloading=True, is_first_runner=True),
    "async": Entrant(ASYNC, mode="async"),
    "layerwise": Entrant(LAYERWISE, mode="layerwise", is_first_runner=True),
}


@dataclasses.dataclass(frozen=True)
class Machine:
    """Where the engines run, and the model."""

    model: Path
    is_gpu: bool
    block_tokens: int
    max_tokens: int  # of a prompt and its answer
    cache_bytes: int  # of an engine's KV cache
    is_seeded: bool = False  # random weights of a size that makes outputs differ
    is_invariant: bool = False  # sums in one order whatever is computed together
    kv_dtype: str = "auto"  # of the KV cache; "auto": the model's

    @property
    def number_bytes(self) -> int:
        """Of one number in the KV cache."""
        if self.kv_dtype != "auto":
            return 1
        return 2 if self.is_gpu else 4

    def settings(self, entrant: Entrant, url: str | None) -> dict[str, Any]:
        """What the engine's process is told."""
        llm: dict[str, Any] = {
            "model": str(self.model),
            "skip_tokenizer_init": True,
            "enforce_eager": True,
            "block_size": self.block_tokens,
            "max_model_len": self.max_tokens,
            "max_num_batched_tokens": self.max_tokens,
            "max_num_seqs": 8,
            "seed": 0,
            "generation_config": "vllm",
            "dtype": "bfloat16" if self.is_gpu else "float32",
            "kv_cache_dtype": self.kv_dtype,
        }
        if self.is_gpu:
            # Several engines lie on one GPU: none may measure what is free, and take it.
            llm |= {"kv_cache_memory_bytes": self.cache_bytes, "gpu_memory_utilization": 0.1}
            if entrant.is_first_runner:
                llm["async_scheduling"] = False
        if not any(self.model.glob("*.safetensors")):
            llm["load_format"] = "dummy"
        if entrant.mode is not None:
            llm["kv_transfer_config"] = {
                "kv_connector": "InfiniStoreConnector",
                "kv_connector_module_path": "infinistore.connectors.vllm",
                "kv_role": "kv_both",
                "kv_load_failure_policy": "recompute",
                "kv_connector_extra_config": {
                    "url": url,
                    "weights_id": "gpu-bench",
                    "tenant": "gpu-bench" if self.is_seeded else entrant.mode,
                    "load_mode": entrant.mode,
                    "lookup_timeout_s": 10,
                },
            }
        elif entrant.is_offloading:
            llm["kv_transfer_config"] = {
                "kv_connector": "OffloadingConnector",
                "kv_role": "kv_both",
                "kv_connector_extra_config": {"cpu_bytes_to_use": _OFFLOAD_BYTES},
            }
        return {"llm": llm, "is_seeded": self.is_seeded and "load_format" in llm}

    def environment(self, entrant: Entrant) -> dict[str, str]:
        """What the engine's process finds in its environment besides."""
        variables = {}
        if self.is_gpu:
            variables["VLLM_USE_V2_MODEL_RUNNER"] = "0" if entrant.is_first_runner else "1"
        if self.is_gpu and self.is_invariant:
            variables["VLLM_BATCH_INVARIANT"] = "1"
        return variables

    def start(self, entrant: Entrant, url: str | None, logs: Path) -> Engine:
        """Starts an engine; it is not ready yet."""
        log = logs / f"{entrant.name.replace(', ', '-').replace(' ', '-')}.log"
        return Engine(entrant.name, self.settings(entrant, url), self.environment(entrant), log)


def write_llama(folder: Path) -> Path:
    """The configuration of a model of Llama 3.1 8B's shape, without weights."""
    from transformers import LlamaConfig

    config = LlamaConfig(
        architectures=["LlamaForCausalLM"],
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=128256,
        max_position_embeddings=131072,
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
    )
    config.save_pretrained(folder)
    return folder
