"""What a worker's KV cache holds, by vLLM's own views of it and not by the connector's addresses.

`Witness` is a worker extension. It notes a digest of each block that a step saved, when its saves
are over, and of each block that was loaded, when the load is reported: one for every layer and
KV head.
"""

from __future__ import annotations

import hashlib
from typing import Any


class Witness:
    """For `worker_extension_cls`; `begin_witness` once, then `take_witnessed`."""

    model_runner: Any

    def begin_witness(self) -> None:
        """Watches the connector's steps from now on."""
        from vllm.distributed import parallel_state
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        side = get_kv_transfer_group().worker
        self._side = side
        self._rank = parallel_state.get_tensor_model_parallel_rank()
        self._ranks = parallel_state.get_tensor_model_parallel_world_size()
        self._saved: dict[str, str] = {}
        self._loaded: dict[str, str] = {}
        saves: list[Any] = []
        loads: dict[str, list[Any]] = {}
        begin_step, end_saves, take_finished = side.begin_step, side.end_saves, side.take_finished

        def began(plan: Any) -> None:
            saves[:] = [(plan.saves.names[:], plan.saves.block_ids[:])]
            for load in plan.loads:
                loads.setdefault(load.request_id, []).append((load.names[:], load.block_ids[:]))
            begin_step(plan)

        def saved() -> None:
            end_saves()
            for names, block_ids in saves:
                self._note(self._saved, names, block_ids)
            if side._settings.load_mode == "layerwise":
                ended(set(loads))

        def ended(request_ids: set[str]) -> None:
            for request_id in request_ids:
                for names, block_ids in loads.pop(request_id, ()):
                    self._note(self._loaded, names, block_ids)

        def finished() -> set[str]:
            request_ids: set[str] = take_finished()
            ended(request_ids)
            return request_ids

        side.begin_step, side.end_saves, side.take_finished = began, saved, finished

    def take_witnessed(self) -> dict[str, Any]:
        """`saved` and `loaded`: "block/layer/head" -> digest; and the worker's `counters`."""
        return {
            "saved": self._saved,
            "loaded": self._loaded,
            "counters": self._side.counters.totals,
            "value_bytes": self._side.value_bytes,
        }

    def _note(self, notes: dict[str, str], names: list[bytes], block_ids: list[int]) -> None:
        runner = self.model_runner
        layers = runner.compilation_config.static_forward_context
        for group in runner.kv_cache_config.kv_cache_groups:
            for layer in group.layer_names:
                cache = layers[layer].kv_cache  # blocks, heads, tokens, content
                for name, block_id in zip(names, block_ids, strict=True):
                    self._note_block(notes, f"{name.decode()}/{layer}", cache[block_id])

    def _note_block(self, notes: dict[str, str], place: str, heads: Any) -> None:
        import torch

        total = self.model_runner.model_config.get_total_num_kv_heads()
        count = heads.shape[0]
        # Ranks beyond the heads, or all under latent attention, hold copies.
        first = self._rank * count if total >= count * self._ranks else self._rank * count % total
        for index in range(count):
            content = heads[index].contiguous().view(torch.uint8).numpy().tobytes()
            assert any(content), f"{place}, head {index}: nothing but zeros"
            digest = hashlib.sha256(content).hexdigest()
            assert notes.setdefault(f"{place}/{first + index}", digest) == digest, place
