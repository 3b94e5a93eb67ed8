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
        self._loaded_bytes = 0
        self._is_noting_loads = True
        saves: list[Any] = []
        loads: dict[str, list[Any]] = {}
        begin_step, end_saves, take_finished = side.begin_step, side.end_saves, side.take_finished

        def began(plan: Any) -> None:
            saves[:] = plan.saves
            for load in plan.loads:
                loads.setdefault(load.request_id, []).append(load)
            begin_step(plan)

        def saved() -> None:
            end_saves()
            for blocks in saves:
                self._note(self._saved, blocks)
            if side._settings.load_mode == "layerwise":
                ended(set(loads))

        def ended(request_ids: set[str]) -> None:
            for request_id in request_ids:
                for load in loads.pop(request_id, ()):
                    if self._is_noting_loads:
                        self._loaded_bytes += self._note(self._loaded, load)

        def finished() -> set[str]:
            request_ids: set[str] = take_finished()
            ended(request_ids)
            return request_ids

        side.begin_step, side.end_saves, side.take_finished = began, saved, finished

    def break_next_loads(self) -> None:
        """From now on the first block of each load does not come, and loads are not looked at."""
        self._is_noting_loads = False
        client = self._side._link.client
        read_segments = client.read_segments

        def broken(keys: list[bytes], segs: Any, **more: Any) -> Any:
            return read_segments([b"gone", *keys[1:]], segs, **more)

        client.read_segments = broken

    def take_witnessed(self) -> dict[str, Any]:
        """`saved` and `loaded`: "block/layer/head" -> digest; and the worker's `counters`."""
        return {
            "saved": self._saved,
            "loaded": self._loaded,
            "loaded_bytes": self._loaded_bytes,
            "counters": self._side.counters.totals,
            "windows": {
                layer: getattr(group.kv_cache_spec, "sliding_window", None)
                for group in self.model_runner.kv_cache_config.kv_cache_groups
                for layer in group.layer_names
                if type(group.kv_cache_spec).__name__ == "SlidingWindowSpec"
            },
        }

    def _note(self, notes: dict[str, str], blocks: Any) -> int:
        """Notes what a group's layers hold of these blocks; how many bytes it is."""
        runner = self.model_runner
        layers = runner.compilation_config.static_forward_context
        size = 0
        for layer in runner.kv_cache_config.kv_cache_groups[blocks.group].layer_names:
            cache = layers[layer].kv_cache  # blocks, heads, tokens, content
            for name, block_id in zip(blocks.names, blocks.block_ids, strict=True):
                assert block_id != 0, f"{layer}: the null block was taken for a block"
                size += self._note_block(notes, f"{name.decode()}/{layer}", cache[block_id])
        return size

    def _note_block(self, notes: dict[str, str], place: str, heads: Any) -> int:
        import torch

        total = self.model_runner.model_config.get_total_num_kv_heads()
        count = heads.shape[0]
        # Ranks beyond the heads, or all under latent attention, hold copies.
        first = self._rank * count if total >= count * self._ranks else self._rank * count % total
        size = 0
        for index in range(count):
            content = heads[index].contiguous().view(torch.uint8).numpy().tobytes()
            assert any(content), f"{place}, head {index}: nothing but zeros"
            digest = hashlib.sha256(content).hexdigest()
            assert notes.setdefault(f"{place}/{first + index}", digest) == digest, place
            size += len(content)
        return size
