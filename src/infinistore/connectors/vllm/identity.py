"""Who an engine is: its namespace, head ranges and ranks, read from vLLM's configuration."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infinistore.connectors._blocks import BlockParts
from infinistore.connectors.vllm.layout import LayerGroup, in_order, layer_groups
from infinistore.connectors.vllm.settings import LAYERWISE, ConnectorSettings
from infinistore.connectors.vllm.weights import UnknownWeights, digest_directory
from infinistore.errors import ConfigError, UsageError
from infinistore.keys import HeadRange, Namespace, head_range, head_ranges

logger = logging.getLogger("vllm." + __name__)  # so that it shows in vLLM's log


@dataclass(frozen=True, slots=True)
class EngineShape:
    """What the blocks of an engine look like, and how they are spread over its workers."""

    block_tokens: int
    ranks: int
    stages: int
    kv_heads: int
    groups: tuple[LayerGroup, ...]
    split_tp: int = 0  # values are cut as this many ranks hold the heads; 0: as these do

    @property
    def parts(self) -> BlockParts:
        """The values that make up one block."""
        return BlockParts(tuple(self._cuts), self.stages, len(self.groups))

    @property
    def _cuts(self) -> list[HeadRange]:
        return head_ranges(self.split_tp or self.ranks, self.kv_heads)

    def slices(self, rank: int) -> tuple[HeadRange, ...]:
        """The values that a worker's part of a block consists of."""
        own = self.heads(rank)
        return tuple(cut for cut in self._cuts if own.start <= cut.start and cut.end <= own.end)

    @property
    def has_windows(self) -> bool:
        """Whether a request holds unlike blocks of its groups, or not all of one."""
        return len(self.groups) > 1 or self.groups[0].window is not None

    def heads(self, rank: int) -> HeadRange:
        """The heads that a worker holds."""
        return head_range(rank, self.ranks, self.kv_heads)

    def is_writer(self, rank: int) -> bool:
        """Whether a worker saves: of those with the same heads the first does."""
        return all(self.heads(other) != self.heads(rank) for other in range(rank))


def engine_shape(
    vllm_config: Any, kv_cache_config: Any, settings: ConnectorSettings
) -> EngineShape:
    """Reads the shape. Raises `ConfigError` for what the connector cannot serve."""
    parallel = vllm_config.parallel_config
    for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
        if getattr(parallel, name, 1) > 1:
            raise ConfigError(f"{name} > 1 spreads a block over ranks; the connector needs it at 1")
    model = vllm_config.model_config
    groups = layer_groups(kv_cache_config)
    if len(groups) > 1 and parallel.pipeline_parallel_size > 1:
        raise ConfigError(
            f"this model has {len(groups)} KV cache groups; the connector handles several with "
            "pipeline_parallel_size = 1 only"
        )
    shape = EngineShape(
        block_tokens=groups[0].block_tokens,
        ranks=parallel.tensor_parallel_size,
        stages=parallel.pipeline_parallel_size,
        kv_heads=1 if model.use_mla else model.get_total_num_kv_heads(),
        groups=groups,
        split_tp=settings.split_tp,
    )
    check_split(shape)
    return shape


def check_split(shape: EngineShape) -> None:
    """Raises `ConfigError` unless each worker's heads are whole values."""
    whole = "choose a multiple of the tensor-parallel size of every engine that shares"
    try:
        cut = sum(heads.end - heads.start for heads in shape.slices(0))
    except UsageError as error:
        raise ConfigError(f"split_tp = {shape.split_tp}: {error}; {whole}") from None
    own = shape.heads(0)
    if cut != own.end - own.start:
        raise ConfigError(
            f"split_tp = {shape.split_tp}, and this engine has {shape.ranks} tensor-parallel "
            f"ranks, whose heads would be parts of values: {whole}"
        )


def check_failure_policy(vllm_config: Any, settings: ConnectorSettings) -> None:
    """Refuses the policy under which a lost store fails requests."""
    policy = getattr(vllm_config.kv_transfer_config, "kv_load_failure_policy", "recompute")
    if policy != "recompute" and not settings.allow_load_failure_fail:
        raise ConfigError(
            f'kv_load_failure_policy is "{policy}": a block that the store lost would fail its '
            'request. Say "kv_load_failure_policy": "recompute" in --kv-transfer-config (or '
            '"allow_load_failure_fail": true in kv_connector_extra_config, if you mean it)'
        )


def check_load_mode(vllm_config: Any, settings: ConnectorSettings) -> None:
    """Refuses loads within steps for a vLLM that computes wrong tokens after one that failed.

    Its issue 49250: neither its second model runner nor its asynchronous scheduler takes a step
    back. A load between steps is over before anything is computed from it.
    """
    if settings.load_mode != LAYERWISE:
        return
    from vllm.platforms import current_platform

    remedies = []
    if getattr(vllm_config, "use_v2_model_runner", False) and not current_platform.is_cpu():
        remedies.append("the environment VLLM_USE_V2_MODEL_RUNNER=0")  # CPUs have the first alone
    if getattr(vllm_config.scheduler_config, "async_scheduling", False):
        remedies.append("--no-async-scheduling")
    if remedies:
        raise ConfigError(
            'load_mode is "layerwise": after a block that does not come, this vLLM would go on '
            f"with wrong tokens (its issue 49250). Start it with {' and '.join(remedies)}, or say "
            '"load_mode": "async"'
        )


def check_windows(
    shape: EngineShape, settings: ConnectorSettings, *, takes_requests_back: bool
) -> None:
    """Refuses to load part of a request's blocks where one that fails could not be made good.

    What is left of the others then has holes, so that the request must begin anew.
    """
    if not shape.has_windows:
        return
    if not takes_requests_back:
        raise ConfigError(
            "this model has sliding windows, and this vLLM cannot take a request back whose load "
            "failed: start it with --disable-hybrid-kv-cache-manager, or take a later one"
        )
    if settings.load_mode == LAYERWISE:
        raise ConfigError(
            'load_mode is "layerwise" and the model has sliding windows: after a block that does '
            'not come, vLLM could not begin the request anew. Say "load_mode": "async"'
        )


def namespace(vllm_config: Any, kv_cache_config: Any, settings: ConnectorSettings) -> str:
    """The namespace of an engine's blocks; may read all weights once, so it takes its time."""
    model, cache = vllm_config.model_config, vllm_config.cache_config
    shape = engine_shape(vllm_config, kv_cache_config, settings)
    return str(
        Namespace(
            tenant=settings.tenant,
            weights=weights_identity(vllm_config, settings),
            dtype=_type_name(model.dtype),
            cache_dtype=_type_name(cache.cache_dtype),
            layout=layout_identity(vllm_config, kv_cache_config, shape.block_tokens)
            + _groups_identity(shape.groups),
            block_tokens=shape.block_tokens,
            layers=model.hf_text_config.num_hidden_layers,
            kv_heads=shape.kv_heads,
            head_size=model.get_head_size(),
        )
    )


def _groups_identity(groups: Sequence[LayerGroup]) -> str:
    """Which layers are in which group, if there are several: vLLM may choose otherwise one day."""
    if len(groups) == 1:
        return ""
    text = json.dumps([(in_order(group.layers), group.window) for group in groups])
    return f".groups{len(groups)}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _type_name(value: Any) -> str:
    return str(value).removeprefix("torch.")


def weights_identity(vllm_config: Any, settings: ConnectorSettings) -> str:
    """The user's word, the files' digest, or, where neither says, an id of this engine alone."""
    model = vllm_config.model_config
    try:
        changes = _changes(vllm_config)
        if settings.weights_id:
            return f"id-{settings.weights_id}{changes}"
        if vllm_config.load_config.load_format == "dummy":
            raise UnknownWeights("load_format is dummy")
        return digest_directory(_model_path(model)) + changes
    except UnknownWeights as error:
        logger.warning(
            "the weights have no digest (%s): blocks are shared with no other engine. "
            "Give weights_id in kv_connector_extra_config to share them",
            error,
        )
        return f"random-{vllm_config.kv_transfer_config.engine_id}"


def _changes(vllm_config: Any) -> str:
    """What the user changed about the model beside its files; "" for nothing."""
    model = vllm_config.model_config
    overrides = getattr(model, "hf_overrides", None) or {}
    changes: dict[str, object] = {}
    if callable(overrides):
        raise UnknownWeights("hf_overrides is a function")
    if overrides:
        changes["hf_overrides"] = overrides
    if model.quantization:
        changes["quantization"] = model.quantization
    # Some models choose their rotary factors by the longest length that they serve.
    rope = getattr(model.hf_text_config, "rope_parameters", None) or getattr(
        model.hf_text_config, "rope_scaling", None
    )
    if isinstance(rope, dict) and rope.get("rope_type", rope.get("type", "default")) in (
        "longrope",
        "dynamic",
    ):
        changes["max_model_len"] = model.max_model_len
    if getattr(vllm_config.cache_config, "calculate_kv_scales", False):
        changes["kv_scales"] = vllm_config.kv_transfer_config.engine_id  # found at run time
    if not changes:
        return ""
    text = json.dumps(changes, sort_keys=True, default=str)
    return f"+{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _model_path(model: Any) -> Path:
    path = Path(model.model)
    if path.exists():
        return path
    try:
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(model.model, "config.json", revision=model.revision)
    except Exception as error:
        raise UnknownWeights(f"{model.model}: {error}") from error
    if not isinstance(found, str):
        raise UnknownWeights(f"{model.model} is neither a directory nor in the hub's cache")
    return Path(found).parent


def layout_identity(vllm_config: Any, kv_cache_config: Any, block_tokens: int) -> str:
    """How a block's bytes are packed: device or kernel set, and order of the dimensions."""
    from vllm.platforms import current_platform

    layout = getattr(kv_cache_config, "kv_cache_layout", None)
    order = str(
        getattr(layout, "name", layout) or os.environ.get("VLLM_KV_CACHE_LAYOUT", "default")
    )
    if not current_platform.is_cpu():
        kernel = _gpu_kernel(vllm_config, current_platform)
        return f"{current_platform.device_type}.{kernel}.{order}"
    return f"cpu.{_cpu_kernel(vllm_config, block_tokens)}.{order}"


def _gpu_kernel(vllm_config: Any, current_platform: Any) -> str:
    """The attention backend, which packs K and V as it likes; chosen by the user, or by vLLM.

    What vLLM chooses depends on its version and on the GPU, and so may what the backend packs.
    """
    import vllm

    attention = getattr(vllm_config, "attention_config", None)
    chosen = [getattr(attention, "backend", None)]
    chosen += dict(getattr(attention, "backend_per_kind", None) or {}).values()
    names = "+".join(str(getattr(backend, "name", backend or "auto")) for backend in chosen)
    capability = current_platform.get_device_capability()
    architecture = "unknown" if capability is None else f"{capability[0]}{capability[1]}"
    return f"{names}.sm{architecture}.vllm{vllm.__version__}"


def _cpu_kernel(vllm_config: Any, block_tokens: int) -> str:
    model, cache = vllm_config.model_config, vllm_config.cache_config
    if model.use_mla:
        return f"mla.{platform.machine()}.{_cpu_flags()}"  # its kernels are not told apart by name
    try:
        from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

        # Its parameters grew over the versions; all have the first three.
        arguments = (model.dtype, block_tokens, model.get_head_size(), cache.cache_dtype)
        count = min(len(arguments), _get_attn_isa.__code__.co_argcount)
        return f"{platform.machine()}.{_get_attn_isa(*arguments[:count])}"
    except ImportError:
        return f"{platform.machine()}.{_cpu_flags()}"


def _cpu_flags() -> str:
    """A digest of the CPU's features: engines on unlike machines share nothing, to be safe."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return hashlib.sha256(flags.encode()).hexdigest()[:16]
