"""Equal tokens and equal bytes: a prefill that saves and decodes that load, beside a plain vLLM."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from gpu_engine import Engine, prompt_of
from gpu_entrants import Entrant, Machine

import infinistore
from infinistore.keys import block_hashes

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from pool_damage import damage_pool

if TYPE_CHECKING:
    from demo.engines import Store

_SEED = 5000
_VOCABULARY = "vocabulary"


@dataclasses.dataclass(frozen=True)
class Check:
    """One thing that must hold."""

    name: str
    is_held: bool
    seen: str

    def line(self) -> str:
        """As it is printed."""
        return f"{'ok   ' if self.is_held else 'SHORT'} {self.name}: {self.seen}"


class Outputs:
    """One run."""

    def __init__(
        self,
        machine: Machine,
        store: Store,
        plain: Engine,
        prefill: Engine,
        decodes: Sequence[tuple[Entrant, Engine]],
        say: Callable[[str], None],
    ) -> None:
        self._machine = machine
        self._store = store
        self._plain = plain
        self._prefill = prefill
        self._decodes = list(decodes)
        self._say = say
        self.facts: dict[str, Any] = {}
        self.checks: list[Check] = []
        self._saved: dict[int, dict[str, str]] = {}
        self._plain_tokens: dict[int, list[int]] = {}

    def run(self, sizes: Sequence[int], answer_tokens: int) -> None:
        """Every check over prompts of these sizes."""
        for engine in (self._plain, self._prefill, *(engine for _, engine in self._decodes)):
            self.facts[engine.name] = engine.ready()
        self._say("all engines are ready")
        self._compare_prefill(sizes, answer_tokens)
        for number, (entrant, engine) in enumerate(self._decodes):
            self._compare_decode(entrant, engine, sizes, answer_tokens)
            self._damage(entrant, engine, sizes[number % len(sizes)], answer_tokens)
        for number, (entrant, engine) in enumerate(self._decodes):
            self._twin(entrant, engine, sizes[-1 - number % len(sizes)], answer_tokens)

    def _generate(self, engine: Engine, tokens: int, answer_tokens: int) -> dict[str, Any]:
        answer = engine.call(
            "generate", seed=_SEED + tokens, tokens=tokens, max_tokens=answer_tokens
        )
        assert isinstance(answer, dict)
        return answer

    def _whole(self, tokens: int) -> int:
        return (tokens - 1) // self._machine.block_tokens

    def _check(self, name: str, is_held: bool, seen: str) -> None:
        self.checks.append(Check(name, is_held, seen))
        self._say(self.checks[-1].line())

    def _compare_prefill(self, sizes: Sequence[int], answer_tokens: int) -> None:
        equal = warm = 0
        for tokens in sizes:
            plain = self._generate(self._plain, tokens, answer_tokens)
            again = self._generate(self._plain, tokens, answer_tokens)
            self._plain_tokens[tokens] = plain["tokens"]
            warm += again["tokens"] == plain["tokens"]
            ours = self._generate(self._prefill, tokens, answer_tokens)
            equal += ours["tokens"] == plain["tokens"]
            self._saved[tokens] = self._prefill.call("blocks")["saved"]
            self._prefill.call("forget")
            self._plain.call("forget")
        count = len(sizes)
        answers = {tuple(tokens) for tokens in self._plain_tokens.values()}
        self._check("plain answers differ", len(answers) == count, f"{len(answers)} of {count}")
        # Says what a difference below would mean: with its own prefix cache plain vLLM sums, too,
        # in another order than without.
        self._say(f"      plain's own prefix cache: {warm} of {count} answers as without it")
        self._check("a prefill's answers equal plain vLLM's", equal == count, f"{equal} of {count}")
        saved = sum(len(blocks) for blocks in self._saved.values())
        stored = sum(self._stored(blocks) for blocks in self._saved.values())
        self._check(
            "the store's bytes equal the prefill's KV cache",
            stored == saved > 0,
            f"{stored} of {saved} blocks",
        )

    def _stored(self, blocks: dict[str, str]) -> int:
        """How many of these blocks the store has with the same bytes."""
        facts = self.facts[self._prefill.name]
        size = int(facts["value_bytes"])
        equal = 0
        with infinistore.connect(self._store.url, namespace=facts["namespace"]) as client:
            for key, digest in blocks.items():
                value = np.zeros(size, dtype=np.uint8)
                client.read_cache(value, [(key, 0)], size)
                client.sync()
                equal += hashlib.sha256(value.tobytes()).hexdigest() == digest
        return equal

    def _compare_decode(
        self, entrant: Entrant, engine: Engine, sizes: Sequence[int], answer_tokens: int
    ) -> None:
        equal = whole = blocks = same = 0
        for tokens in sizes:
            answer = self._generate(engine, tokens, answer_tokens)
            equal += answer["tokens"] == self._plain_tokens[tokens]
            whole += answer["cached"] == self._whole(tokens) * self._machine.block_tokens
            loaded = engine.call("blocks")["loaded"]
            blocks += len(loaded)
            same += sum(self._saved[tokens].get(key) == value for key, value in loaded.items())
            engine.call("forget")
        name, count = entrant.name, len(sizes)
        wanted = sum(self._whole(tokens) for tokens in sizes)
        self._check(f"{name}: all whole blocks were loaded", whole == count, f"{whole} of {count}")
        self._check(
            f"{name}: loaded blocks equal the saved ones, bit for bit",
            same == blocks == wanted,
            f"{same} of {wanted}",
        )
        self._check(
            f"{name}: a decode's answers equal plain vLLM's", equal == count, f"{equal} of {count}"
        )

    def _key(self, tokens: int, block: int) -> str:
        """The name of a block of a prompt, as the prefill saved it."""
        vocabulary = self.facts[self._prefill.name][_VOCABULARY]
        prompt = prompt_of(_SEED + tokens, tokens, vocabulary)
        start = block_hashes(prompt, self._machine.block_tokens)[block].hex()
        return next(key for key in self._saved[tokens] if key.startswith(start))

    def _damage(self, entrant: Entrant, engine: Engine, tokens: int, answer_tokens: int) -> None:
        """A bit of the first block changes in the pool: all of the prompt is computed again."""
        facts = self.facts[self._prefill.name]
        value = np.zeros(int(facts["value_bytes"]), dtype=np.uint8)
        with infinistore.connect(self._store.url, namespace=facts["namespace"]) as client:
            client.read_cache(value, [(self._key(tokens, 0), 0)], value.size)
            client.sync()
        damage_pool(self._store.child.pid, value[:4096].tobytes())
        before = engine.call("counters")
        answer = self._generate(engine, tokens, answer_tokens)
        after = engine.call("counters")
        engine.call("forget")
        corrupt = after["blocks_load_corrupt"] - before["blocks_load_corrupt"]
        self._check(f"{entrant.name}: a changed bit is noticed", corrupt == 1, f"{corrupt} block")
        self._check(
            f"{entrant.name}: with a changed bit the answer equals plain vLLM's",
            answer["tokens"] == self._plain_tokens[tokens],
            f"{answer['cached']} tokens cached",
        )

    def _twin(self, entrant: Entrant, engine: Engine, tokens: int, answer_tokens: int) -> None:
        """A block with other bytes and a right sum: only the tokens can tell, and they must."""
        facts = self.facts[self._prefill.name]
        value = np.zeros(int(facts["value_bytes"]), dtype=np.uint8)
        key = self._key(tokens, self._whole(tokens) - 1)
        with infinistore.connect(self._store.url, namespace=facts["namespace"]) as client:
            client.read_cache(value, [(key, 0)], value.size)
            client.sync()
            signs = value.copy()
            width = 2 if self._machine.is_gpu else 4
            signs[width - 1 :: width] ^= 0x80  # the other sign for each number
            client.write_cache(signs, [(key, 0)], value.size, on_exists="replace")
            client.sync()
            answer = self._generate(engine, tokens, answer_tokens)
            client.write_cache(value, [(key, 0)], value.size, on_exists="replace")
            client.sync()
        engine.call("forget")
        self._check(
            f"{entrant.name}: tokens change with a loaded block's bytes",
            answer["tokens"] != self._plain_tokens[tokens] and answer["cached"] > 0,
            f"{answer['cached']} tokens cached",
        )

    def write(self, out: Path) -> None:
        """Writes all of it as JSON."""
        content = {
            "facts": self.facts,
            "checks": [dataclasses.asdict(check) for check in self.checks],
        }
        out.write_text(json.dumps(content, indent=1) + "\n")
