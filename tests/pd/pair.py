"""A prefill and a decode engine, one after the other, and what must be true of the two."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vllm_engine import EngineProcess

from infinistore.keys import block_hashes, block_names

OUTPUT = 24  # tokens
Reference = Callable[..., list[list[int]]]
WITNESS = {"worker_extension_cls": "witness.Witness"}


@dataclass
class Seen:
    """What one engine's workers saved and loaded."""

    outputs: list[Any]
    saved: dict[str, str] = field(default_factory=dict)
    loaded: dict[str, str] = field(default_factory=dict)
    workers: list[dict[str, int]] = field(default_factory=list)  # their counters
    loaded_bytes: int = 0
    windows: dict[str, int] = field(default_factory=dict)  # of the layers that have one

    @property
    def tokens(self) -> list[list[int]]:
        return [output["tokens"] for output in self.outputs]

    @property
    def cached(self) -> list[int]:
        return [output["cached"] for output in self.outputs]

    def count(self, name: str) -> int:
        """A counter over all workers."""
        return sum(counters[name] for counters in self.workers)


def watched(model: Path, url: str, **arguments: Any) -> EngineProcess:
    """An engine whose workers note what they save and load."""
    engine = EngineProcess(model, url, **WITNESS, **arguments)
    engine.call("rpc", method="begin_witness")
    return engine


def run(engine: EngineProcess, prompts: list[list[int]], output: int, **more: Any) -> Seen:
    """What the engine says, and all that its workers noted since their start."""
    seen = Seen(engine.generate(prompts, output, **more))
    for told in engine.call("rpc", method="take_witnessed"):
        for place, digest in told["saved"].items():
            assert seen.saved.setdefault(place, digest) == digest, f"ranks differ at {place}"
        for place, digest in told["loaded"].items():
            assert seen.loaded.setdefault(place, digest) == digest, f"ranks differ at {place}"
        seen.workers.append(told["counters"])
        seen.loaded_bytes += told["loaded_bytes"]
        seen.windows.update(told["windows"])
    return seen


def usable_blocks(prompt: list[int], block: int) -> int:
    """Whole blocks before the last token."""
    return (len(prompt) - 1) // block


def wanted_places(prompts: list[list[int]], block: int, prefill: Seen) -> set[str]:
    """All layers and heads of what a decode must not compute again; of requests without extras.

    Layers with a window need the blocks in which the next token sees anything.
    """
    needed: dict[str, list[tuple[int, int]]] = {}  # name -> where it is in a prompt of how many
    for prompt in prompts:
        blocks = usable_blocks(prompt, block)
        names = block_names(block_hashes(prompt, block))[:blocks]
        for index, name in enumerate(names):
            needed.setdefault(name.decode(), []).append((index, blocks))

    def is_wanted(place: str) -> bool:
        name, layer, _ = place.split("/")
        window = prefill.windows.get(layer)
        return any(
            window is None or (index + 1) * block > blocks * block - window + 1
            for index, blocks in needed.get(name, ())
        )

    return {place for place in prefill.saved if is_wanted(place)}


def check_loaded_is_saved(prefill: Seen, decode: Seen, wanted: set[str]) -> None:
    """The hard criterion: every byte that was wanted was loaded, and is the one that was saved."""
    assert wanted
    assert prefill.saved.keys() >= wanted
    assert decode.loaded.keys() == wanted
    differing = [place for place in wanted if decode.loaded[place] != prefill.saved[place]]
    assert not differing, f"{len(differing)} of {len(wanted)} differ: {sorted(differing)[:5]}"
    for seen in (prefill, decode):
        assert seen.count("blocks_save_failed") == seen.count("blocks_load_failed") == 0
    assert decode.count("bytes_loaded") == decode.loaded_bytes
