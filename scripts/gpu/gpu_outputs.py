"""Equal tokens and equal bytes: a prefill that saves and decodes that load, beside a plain vLLM."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from gpu_engine import Engine, prompt_of
from gpu_entrants import Entrant, Machine

import infinistore
from infinistore.keys import block_hashes, block_names

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


def compared(answers: Mapping[int, list[int]], others: Mapping[int, list[int]]) -> str:
    """How many answers are equal, and where the first others begin to differ."""
    apart = {
        size: next(i for i, (a, b) in enumerate(zip(answer, others[size], strict=True)) if a != b)
        for size, answer in answers.items()
        if answer != others[size]
    }
    places = [f"{size} tokens: at {place}" for size, place in apart.items()]
    more = f" (apart: {', '.join(places)})" if places else ""
    return f"{len(answers) - len(apart)} of {len(answers)}{more}"


class Outputs:
    """One run: plain engines by name, the prefill, and the decodes."""

    def __init__(
        self,
        machine: Machine,
        store: Store,
        plain: Mapping[str, Engine],
        prefill: tuple[Entrant, Engine],
        decodes: Sequence[tuple[Entrant, Engine]],
        say: Callable[[str], None],
    ) -> None:
        self._machine = machine
        self._store = store
        self._plain = dict(plain)
        self._prefill_entrant, self._prefill = prefill
        self._decodes = list(decodes)
        self._say = say
        self.facts: dict[str, Any] = {}
        self.checks: list[Check] = []
        self._saved: dict[int, dict[str, str]] = {}
        # Plain vLLM's answers, by engine and size: to a prompt that it computes, and to one whose
        # blocks it has. Sums come in another order then, unless vLLM is told to keep to one.
        self._computed: dict[str, dict[int, list[int]]] = {}
        self._cached: dict[str, dict[int, list[int]]] = {}

    def run(self, sizes: Sequence[int], answer_tokens: int) -> None:
        """Every check over prompts of these sizes."""
        engines = [*self._plain.values(), self._prefill, *(engine for _, engine in self._decodes)]
        for engine in engines:
            self.facts[engine.name] = engine.ready()
        self._say("all engines are ready")
        for name, engine in self._plain.items():
            self._ask_plain(name, engine, sizes, answer_tokens)
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

    def _ask_plain(
        self, name: str, engine: Engine, sizes: Sequence[int], answer_tokens: int
    ) -> None:
        computed, cached = self._computed.setdefault(name, {}), self._cached.setdefault(name, {})
        for tokens in sizes:
            computed[tokens] = self._generate(engine, tokens, answer_tokens)["tokens"]
            cached[tokens] = self._generate(engine, tokens, answer_tokens)["tokens"]
            engine.call("forget")
        count = len(sizes)
        distinct = len({tuple(answer) for answer in computed.values()})
        self._check(f"{name}: answers differ", distinct == count, f"{distinct} of {count}")
        self._say(f"      {name}: with its own prefix cache {compared(cached, computed)}")
        first = next(iter(self._computed.values()))
        self._say(f"      {name}: as the first plain engine {compared(computed, first)}")

    def _compare_prefill(self, sizes: Sequence[int], answer_tokens: int) -> None:
        answers = {}
        for tokens in sizes:
            answers[tokens] = self._generate(self._prefill, tokens, answer_tokens)["tokens"]
            self._saved[tokens] = self._prefill.call("blocks")["saved"]
            self._prefill.call("forget")
        plain = self._computed[self._prefill_entrant.plain]
        self._check(
            "a prefill's answers equal plain vLLM's", answers == plain, compared(answers, plain)
        )
        saved = sum(len(blocks) for blocks in self._saved.values())
        stored = sum(self._stored(blocks) for blocks in self._saved.values())
        self._check(
            "the store's bytes equal the prefill's KV cache",
            stored == saved > 0,
            f"{stored} of {saved} blocks",
        )

    def _as_loaded(self, entrant: Entrant) -> dict[int, list[int]]:
        """Plain vLLM's answers to prompts of which it computes as much as after a load.

        Those to prompts that it computes whole differ at times: it sums in another order, also
        when told to keep to one (`compared` says where, for plain vLLM beside itself).
        """
        return self._cached[entrant.plain]

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
        whole = blocks = same = 0
        answers = {}
        for tokens in sizes:
            answer = self._generate(engine, tokens, answer_tokens)
            answers[tokens] = answer["tokens"]
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
        plain = self._as_loaded(entrant)
        self._check(
            f"{name}: a decode's answers equal plain vLLM's",
            answers == plain,
            compared(answers, plain),
        )

    def _key(self, tokens: int, block: int) -> str:
        """The name of a block of a prompt, as the prefill saved it."""
        vocabulary = self.facts[self._prefill.name][_VOCABULARY]
        prompt = prompt_of(_SEED + tokens, tokens, vocabulary)
        hashes = block_hashes(prompt, self._machine.block_tokens)
        start = block_names(hashes)[block].decode()
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
            answer["tokens"] == self._computed[entrant.plain][tokens],
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
            width = self._machine.number_bytes
            signs[width - 1 :: width] ^= 0x80  # the other sign for each number
            client.write_cache(signs, [(key, 0)], value.size, on_exists="replace")
            client.sync()
            answer = self._generate(engine, tokens, answer_tokens)
            client.write_cache(value, [(key, 0)], value.size, on_exists="replace")
            client.sync()
        engine.call("forget")
        self._check(
            f"{entrant.name}: tokens change with a loaded block's bytes",
            answer["tokens"] != self._as_loaded(entrant)[tokens] and answer["cached"] > 0,
            f"{answer['cached']} tokens cached",
        )

    def write(self, out: Path) -> None:
        """Writes all of it as JSON."""
        content = {
            "facts": self.facts,
            "checks": [dataclasses.asdict(check) for check in self.checks],
        }
        out.write_text(json.dumps(content, indent=1) + "\n")
