"""The demo in its order: plain vLLM alone, then each transport with store, P, D and router."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

from demo import client, engines, twin
from demo.children import ChildError, Children
from demo.engines import BLOCK_TOKENS
from demo.prompts import Prompt, all_prompts, story
from demo.report import Narrator, as_json, print_table, write_json
from demo.verdict import Pass, Row, all_faults

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from demo.client import Reply
    from demo.engines import Service, Store

_WARM_UP = Prompt("warm-up", "warm-up", story(999, 4))
_TWINS = ("unicode 0", "unicode 1")


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """What to run and where to write."""

    model: Path
    build: Path
    transports: tuple[str, ...]
    max_tokens: int
    prompt_names: tuple[str, ...]  # empty: all

    @property
    def logs(self) -> Path:
        """The children's logs."""
        return self.build / "demo"

    def prompts(self) -> list[Prompt]:
        """The chosen prompts."""
        every = all_prompts(BLOCK_TOKENS)
        return [p for p in every if not self.prompt_names or p.name in self.prompt_names]


class Demo:
    """One run."""

    def __init__(self, plan: Plan, children: Children, narrator: Narrator) -> None:
        """Starts nothing yet."""
        self._plan = plan
        self._children = children
        self._say = narrator.say
        self._tick = narrator.tick
        self._prefill_core, self._decode_core = engines.cores()
        self._value_bytes = engines.block_value_bytes(plan.model)

    def plain(self) -> list[Reply]:
        """Plain vLLM's answers: the reference."""
        self._say("plain vLLM starts (the reference, alone)")
        child, url = engines.start_engine(
            self._children,
            "plain vLLM",
            self._plan.model,
            self._plan.logs / "plain.log",
            core=self._prefill_core,
        )
        service = engines.ready(child, url)
        self._say(f"plain vLLM answers after {service.start_s:.0f} s")
        client.ask(url, _WARM_UP, 2)
        replies = []
        for number, prompt in enumerate(self._plan.prompts(), 1):
            self._tick(f"plain: prompt {number}, {prompt.name}")
            replies.append(client.ask(url, prompt, self._plan.max_tokens))
        self._children.stop(child)
        self._say(f"plain vLLM answered {len(replies)} prompts")
        return replies

    def through_store(
        self, transport: str, plain: Sequence[Reply]
    ) -> tuple[list[Row], list[twin.Twin]]:
        """Prefill, decode and router over one transport; then decode anew; then the twins."""
        logs = self._plan.logs
        store = engines.start_store(self._children, logs / f"{transport}-store.log")
        self._say(f"{transport}: the store answers; prefill and decode vLLM start")
        prefill, decode = self._start_pair(store, transport)
        router = engines.start_router(
            self._children, logs / f"{transport}-router.log", prefill, decode
        )
        self._say(f"{transport}: prefill, decode and router answer after {decode.start_s:.0f} s")
        for service in (prefill, decode):
            client.wait_until_loading(service.url, _WARM_UP)
        split = self._pass(f"{transport}, P/D", store, router.url, decode.url)
        self._children.stop(router.child, decode.child, prefill.child)
        self._say(f"{transport}: {len(split)} prompts through prefill and decode; a new decode")
        decode = self._start_decode(store, transport, "decode-again")
        self._say(f"{transport}: the new decode answers after {decode.start_s:.0f} s")
        client.wait_until_loading(decode.url, _WARM_UP)
        second = self._pass(f"{transport}, again", store, decode.url, decode.url)
        prompts = self._plan.prompts()
        rows = [
            Row(transport, *columns) for columns in zip(prompts, plain, split, second, strict=True)
        ]
        twins = self._twins(store, decode, transport, rows)
        self._children.stop(decode.child, store.child)
        self._say(f"{transport}: {sum(row.is_identical for row in rows)}/{len(rows)} identical")
        return rows, twins

    def _start_pair(self, store: Store, transport: str) -> tuple[Service, Service]:
        config = engines.connector_config(store, transport, engines.PATIENCE)
        started = [
            engines.start_engine(
                self._children,
                f"{role} vLLM",
                self._plan.model,
                self._plan.logs / f"{transport}-{role}.log",
                core=core,
                kv_transfer=config,
            )
            for role, core in (("prefill", self._prefill_core), ("decode", self._decode_core))
        ]
        prefill, decode = (engines.ready(child, url) for child, url in started)
        return prefill, decode

    def _start_decode(self, store: Store, transport: str, name: str) -> Service:
        child, url = engines.start_engine(
            self._children,
            f"{name} vLLM",
            self._plan.model,
            self._plan.logs / f"{transport}-{name}.log",
            core=self._decode_core,
            kv_transfer=engines.connector_config(store, transport, engines.PATIENCE),
        )
        return engines.ready(child, url)

    def _pass(self, name: str, store: Store, url: str, decode_url: str) -> list[Pass]:
        passes = []
        for number, prompt in enumerate(self._plan.prompts(), 1):
            self._tick(f"{name}: prompt {number}, {prompt.name}")
            before = engines.moved_bytes(store)
            reply, hits = client.ask_and_count(url, decode_url, prompt, self._plan.max_tokens)
            after = engines.moved_bytes(store)
            passes.append(Pass(reply, hits, after[0] - before[0], after[1] - before[1]))
        return passes

    def _twins(
        self, store: Store, decode: Service, transport: str, rows: Sequence[Row]
    ) -> list[twin.Twin]:
        space = _namespace(decode)
        return [
            twin.ask_twin(
                store,
                decode,
                space,
                self._plan.model,
                row.prompt,
                transport,
                row.plain,
                self._value_bytes,
            )
            for row in rows
            if row.prompt.name in _TWINS
        ]

    @property
    def value_bytes(self) -> int:
        """Bytes of one block in the store."""
        return self._value_bytes


def _namespace(engine: Service) -> str:
    """The namespace that an engine's connector said in its log."""
    text = engine.child.log.read_text(errors="replace")
    found = re.search(r"namespace[ =]+(\S+/\S+)", text)
    if found is None:
        raise ChildError(f"{engine.child.log} names no namespace")
    return found.group(1).rstrip(".,;")


def main(plan: Plan) -> int:
    """Runs it all; 0 if every token and every hit is right."""
    narrator = Narrator()
    rows: list[Row] = []
    twins: list[twin.Twin] = []
    with Children() as children:
        demo = Demo(plan, children, narrator)
        plain = demo.plain()
        for transport in plan.transports:
            more_rows, more_twins = demo.through_store(transport, plain)
            rows += more_rows
            twins += more_twins
    faults = all_faults(rows, BLOCK_TOKENS, demo.value_bytes)
    faults += [fault for each in twins for fault in each.faults()]
    if not twins:
        faults.append("no twin was asked: equal tokens prove nothing without one")
    print_table(rows)
    extra = {
        "twins_changed": sum(t.reply.token_ids != t.plain.token_ids for t in twins),
        "twins": len(twins),
        "elapsed_s": round(narrator.elapsed_s, 1),
    }
    write_json(plan.build / "demo.json", as_json(rows, faults, extra))
    for fault in faults:
        print(f"FAULT {fault}")
    identical = sum(row.is_identical for row in rows)
    narrator.say(
        f"{identical} of {len(rows)} identical over {' and '.join(plan.transports)}; "
        f"{extra['twins_changed']} of {len(twins)} twins noticed; {len(faults)} faults; "
        f"{plan.build / 'demo.json'}"
    )
    return 1 if faults or identical != len(rows) else 0
