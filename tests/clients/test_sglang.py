"""Our storage backend behind SGLang's own interface and factory, unmodified, on a CPU.

Replaced around them: the `__init__` of the four packages on the way (they import CUDA's kernels),
and the host pool, whose pages lie here in plain memory, in two of SGLang's layouts.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from server_process import ServerProcess

PAGE, LAYERS, HEADS, SIZE, PAGES = 16, 3, 2, 32, 32


def _open_packages() -> None:
    found = importlib.util.find_spec("sglang")
    assert found is not None
    assert found.origin is not None
    root = Path(found.origin).parent
    for name in ("sglang", "sglang.srt", "sglang.srt.mem_cache", "sglang.srt.mem_cache.storage"):
        package = types.ModuleType(name)
        package.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = package


_open_packages()

from sglang.srt.mem_cache.hicache_storage import (  # noqa: E402
    HiCacheStorage,
    HiCacheStorageConfig,
    HiCacheStorageExtraInfo,
)
from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory  # noqa: E402


class HostPool:
    """K and V of pages in the host's memory, with the calls of SGLang's pool that are used."""

    page_size, dtype, layer_num, head_num, head_dim = PAGE, torch.bfloat16, LAYERS, HEADS, SIZE

    def __init__(self, layout: str) -> None:
        self.layout = layout
        # page_first: (2, tokens, layers, ...); layer_first: (2, layers, tokens, ...)
        order = (PAGES * PAGE, LAYERS) if layout == "page_first" else (LAYERS, PAGES * PAGE)
        self.kv_buffer = torch.randn(2, *order, HEADS, SIZE).to(self.dtype)

    def get_page_buffer_meta(self, indices: torch.Tensor) -> tuple[list[int], list[int]]:
        runs = [run for first in indices.tolist()[::PAGE] for run in self._runs(first)]
        return [run.data_ptr() for run in runs], [run.numel() * 2 for run in runs]

    def _runs(self, first: int) -> list[torch.Tensor]:
        rows = slice(first, first + PAGE)
        if self.layout == "page_first":
            return [self.kv_buffer[side, rows] for side in range(2)]
        return [self.kv_buffer[side, n, rows] for n in range(LAYERS) for side in range(2)]

    def page(self, number: int) -> torch.Tensor:
        return torch.cat([run.flatten() for run in self._runs(number * PAGE)])


def indices(*pages: int) -> torch.Tensor:
    return torch.cat([torch.arange(page * PAGE, (page + 1) * PAGE) for page in pages])


Make = Callable[..., tuple[Any, HostPool]]


@pytest.fixture
def make(server: ServerProcess, request: pytest.FixtureRequest) -> Iterator[Make]:
    """Backends as SGLang makes them."""
    made: list[Any] = []

    def backend(layout: str = "page_first", to: ServerProcess | None = None, **facts: Any) -> Any:
        extra = {
            "backend_name": "infinistore",
            "module_path": "infinistore.connectors.sglang",
            "class_name": "InfiniStoreHiCache",
            "interface_v1": 1,
            "prefetch_threshold": 256,  # SGLang's own, of no interest to us
            "url": (to or server).url,
            "weights_id": facts.pop("weights_id", "w"),
            "tenant": request.node.nodeid[-60:],
            **facts.pop("extra", {}),
        }
        config = HiCacheStorageConfig(
            **{
                "tp_rank": 0,
                "tp_size": 1,
                "pp_rank": 0,
                "pp_size": 1,
                "attn_cp_rank": 0,
                "attn_cp_size": 1,
                "is_mla_model": False,
                "enable_storage_metrics": False,
                "is_page_first_layout": layout == "page_first",
                "model_name": "model",
                "extra_config": extra,
            }
            | facts
        )
        pool = HostPool(layout)
        storage = StorageBackendFactory.create_backend("dynamic", config, pool)
        assert isinstance(storage, HiCacheStorage)
        storage.register_mem_pool_host(pool)
        made.append(storage)
        return storage, pool

    yield backend
    for storage in made:
        storage.close()
        storage.close()


def hashes(count: int, seed: str = "a") -> list[str]:
    return [f"{seed}{index:063d}" for index in range(count)]


@pytest.mark.parametrize("layout", ["page_first", "layer_first"])
def test_pages_come_back_equal_into_other_pages(make: Make, layout: str) -> None:
    storage, pool = make(layout)
    keys = hashes(4)
    assert storage.batch_exists(keys) == 0
    assert storage.batch_set_v1(keys, indices(3, 1, 4, 5)) == [True] * 4
    assert storage.batch_exists([*keys, *hashes(2, "b")]) == 4
    assert storage.exists(keys[2])
    assert not storage.exists("b" * 64)
    untouched = [pool.page(page).clone() for page in range(6)]
    assert storage.batch_get_v1(keys, indices(20, 21, 22, 23)) == [True] * 4
    for page, source in zip((20, 21, 22, 23), (3, 1, 4, 5), strict=True):
        assert torch.equal(pool.page(page), pool.page(source))
    assert all(torch.equal(pool.page(n), was) for n, was in enumerate(untouched))
    other, its_pool = make(layout)  # another engine of the same weights
    assert other.batch_get_v1(keys, indices(0, 1, 2, 3)) == [True] * 4
    assert torch.equal(its_pool.page(0), pool.page(3))


def test_a_missing_page_ends_the_prefix(make: Make) -> None:
    storage, pool = make()
    keys = hashes(4)
    storage.batch_set_v1([keys[0], keys[1], keys[3]], indices(0, 1, 3))
    assert storage.batch_exists(keys) == 2
    before = pool.page(22).clone()
    assert storage.batch_get_v1(keys, indices(20, 21, 22, 23)) == [True, True, False, True]
    assert torch.equal(pool.page(22), before)


def test_chains_are_told_to_the_store(make: Make) -> None:
    storage, _ = make()
    keys = hashes(6)
    first = HiCacheStorageExtraInfo(prefix_keys=[])
    later = HiCacheStorageExtraInfo(prefix_keys=keys[:3])
    assert storage.batch_set_v1(keys[:3], indices(0, 1, 2), first) == [True] * 3
    assert storage.batch_set_v1(keys[3:], indices(3, 4, 5), later) == [True] * 3
    assert storage.batch_exists(keys) == 6


def test_the_calls_on_tensors(make: Make) -> None:
    storage, pool = make()
    keys = hashes(3)
    pages = [pool.page(n) for n in range(3)]
    assert storage.batch_set(keys, pages) is True
    targets = [torch.zeros_like(page) for page in pages]
    got = storage.batch_get([*keys, "b" * 64], [*targets, torch.zeros_like(pages[0])])
    assert got[3] is None
    assert all(torch.equal(a, b) for a, b in zip(got, pages, strict=False))
    assert storage.set("c" * 64, pages[0]) is True
    assert torch.equal(storage.get("c" * 64, torch.zeros_like(pages[0])), pages[0])
    assert storage.get("d" * 64, torch.zeros_like(pages[0])) is None


def test_what_has_other_bytes_is_kept_apart(make: Make) -> None:
    keys = hashes(2)
    storage, _ = make()
    storage.batch_set_v1(keys, indices(0, 1))
    for facts in ({"tp_rank": 1, "tp_size": 2}, {"pp_rank": 1, "pp_size": 2}):
        assert make(**facts)[0].batch_exists(keys) == 0
    assert make(weights_id="other")[0].batch_exists(keys) == 0
    assert make("layer_first")[0].batch_exists(keys) == 0
    assert make(extra={"tenant": "else"})[0].batch_exists(keys) == 0
    assert make(weights_id="")[0].batch_exists(keys) == 0  # unknown weights: nobody's
    assert make()[0].batch_exists(keys) == 2


def test_ranks_of_a_latent_cache_share_one_value(make: Make) -> None:
    keys = hashes(2)
    writer, _ = make(is_mla_model=True, tp_rank=0, tp_size=2)
    reader, _ = make(is_mla_model=True, tp_rank=1, tp_size=2)
    assert reader.batch_set_v1(keys, indices(0, 1)) == [True] * 2  # left to the writer
    assert writer.batch_exists(keys) == 0
    assert writer.batch_set_v1(keys, indices(0, 1)) == [True] * 2
    assert reader.batch_exists(keys) == 2


def test_a_server_that_dies_is_a_miss_and_one_that_returns_is_used(
    make: Make, start_server: Callable[..., ServerProcess]
) -> None:
    server = start_server()
    storage, _ = make(to=server)
    keys = hashes(2)
    storage.batch_set_v1(keys, indices(0, 1))
    server.kill()
    assert storage.batch_exists(keys) == 0
    assert storage.batch_get_v1(keys, indices(2, 3)) == [False] * 2
    assert storage.batch_set_v1(keys, indices(0, 1)) == [False] * 2
    start_server(f"--port={server.address.rpartition(':')[2]}")
    assert storage.batch_exists(keys) == 0
    assert storage.batch_set_v1(keys, indices(0, 1)) == [True] * 2
    assert storage.batch_get_v1(keys, indices(2, 3)) == [True] * 2


def test_models_with_several_pools_are_refused_by_name(make: Make) -> None:
    storage, _ = make()
    with pytest.raises(Exception, match="mamba"):
        storage.register_mem_host_pool_v2(HostPool("page_first"), "mamba")
