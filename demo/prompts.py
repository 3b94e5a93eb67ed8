"""The prompts of the demo: short, long, with shared prefixes, in many scripts; always the same."""

from __future__ import annotations

import dataclasses
import random

_NAMES = ("Ada", "Bela", "Chidi", "Dunja", "Emre", "Farah", "Goran", "Hana", "Ilse", "Jomo")
_PLACES = ("the harbour", "a small mill", "the old library", "a mountain hut", "the night market")
_THINGS = ("a brass compass", "two letters", "a box of seeds", "the blue map", "an empty ledger")
_DEEDS = ("found", "mended", "hid", "carried home", "traded away", "counted", "forgot", "painted")
_WHENS = ("At dawn", "After the rain", "On market day", "Late in the year", "Before the bell rang")
_ENDS = (
    "and told nobody.",
    "while the others slept.",
    "because the river had risen.",
    "although it was against the rules.",
    "and everyone laughed about it later.",
)

_SHORT = (
    "The capital of France is",
    "Two plus two is",
    "Water boils at",
    "Write one sentence about the sea.",
    "Q: What colour is a ripe banana?\nA:",
    "def fibonacci(n):",
)
_UNICODE = (
    "Grüße aus Köln! Übersetze ins Englische: „Das Mädchen läuft über die Straße.“",
    "请用一句话回答：北京是哪个国家的首都？今天天气很好，我们去公园散步吧。",  # noqa: RUF001
    "Ответьте коротко: какая река протекает через Москву? Спасибо! 🙂🚀🌍",
    "ما هي عاصمة مصر؟ أجب بكلمة واحدة من فضلك. नमस्ते, आप कैसे हैं? こんにちは、元気ですか。",
)
_QUESTIONS = (
    "Who is named first in the story?",
    "Name one place of the story.",
    "What was found or hidden?",
    "Write the next sentence of the story.",
    "Is the story long or short?",
    "Give the story a title.",
)


@dataclasses.dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt: its kind, and its text or its token ids."""

    name: str
    kind: str
    content: str | tuple[int, ...]


def story(seed: int, sentences: int) -> str:
    """So many sentences of about 15 tokens each; another story for another seed."""
    dice = random.Random(seed)
    lines = [
        f"{dice.choice(_WHENS)}, {dice.choice(_NAMES)} and {dice.choice(_NAMES)} "
        f"{dice.choice(_DEEDS)} {dice.choice(_THINGS)} near {dice.choice(_PLACES)} "
        f"{dice.choice(_ENDS)}"
        for _ in range(sentences)
    ]
    return f"Story number {seed}. " + " ".join(lines)


def _exact(seed: int, tokens: int) -> tuple[int, ...]:
    """So many token ids of plain words: lengths at a block's very edge."""
    dice = random.Random(seed)
    return tuple(dice.randrange(1000, 20000) for _ in range(tokens))


def all_prompts(block_tokens: int) -> list[Prompt]:
    """The prompts, in the order in which they are asked."""
    # About 25 tokens a sentence in SmolLM2's vocabulary.
    long_sentences, shared = 65, story(100, 62)
    prompts = [Prompt(f"short {i}", "short", text) for i, text in enumerate(_SHORT)]
    prompts += [
        Prompt(f"unicode {i}", "unicode", f"{text}\n" * (1 + 2 * i))
        for i, text in enumerate(_UNICODE)
    ]
    prompts += [
        Prompt(f"edge {n:+d}", "edge", _exact(i, 4 * block_tokens + n))
        for i, n in enumerate((-1, 0, 1, 2))
    ]
    prompts += [
        Prompt(f"long {i}", "long", f"{story(i, long_sentences)}\n\nIn short, the story says that")
        for i in range(4)
    ]
    prompts += [
        Prompt(f"shared {i}", "shared", f"{shared}\n\nQuestion: {text}\nAnswer:")
        for i, text in enumerate(_QUESTIONS)
    ]
    # The same question again: everything but the last block's rest is there already.
    prompts += [
        Prompt("again 0", "again", prompts[6].content),
        Prompt("again 1", "again", prompts[14].content),
    ]
    return prompts
