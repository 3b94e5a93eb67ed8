"""`infinistore explain`: why a prompt's blocks, or keys, are hits or misses."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any

import click

from infinistore.cli import _places, _prompt
from infinistore.cli._admin import Admin, admin_options, find_admin, print_json
from infinistore.cli._prompt import Shape, Variant
from infinistore.cli._stories import (
    AWAY,
    ELSEWHERE,
    PRESENT,
    UNKNOWN,
    Servers,
    Story,
    hit_blocks,
    runs,
    story_of_block,
)
from infinistore.errors import ConnectError, UsageError

EXIT_MISSES = 1
NAMESPACES_TRIED_MAX = 64


@dataclass(frozen=True, slots=True)
class Report:
    """What was found: a story for each block (or key), named by `labels`."""

    admin: str
    namespace: str
    labels: list[str]
    stories: list[Story]
    unit: str  # block or key
    shape: Shape | None = None


@click.command("explain")
@click.option("--tokens", metavar="IDS", help="The prompt as token ids: '1 42 7' or [1, 42, 7].")
@click.option("--tokens-file", type=click.File(), help="The same from a file; - is stdin.")
@click.option("--text", help="The prompt as text; needs --tokenizer.")
@click.option("--text-file", type=click.File(), help="The same from a file; - is stdin.")
@click.option("--tokenizer", metavar="NAME", help="A tokenizer.json, or a model's name or folder.")
@click.option("--key", "keys", multiple=True, help="A key instead of a prompt; may be repeated.")
@click.option("--keys-file", type=click.File(), help="Keys, one a line; - is stdin.")
@click.option("--namespace", metavar="NAME",
              help="Where they live; of a prompt: the one that was used last.")  # fmt: skip
@click.option("--salt", default="", help="The request's cache_salt.")
@click.option("--adapter", default="", metavar="DIGEST", help="The digest of its LoRA adapter.")
@click.option("--tensor-parallel", "ranks", type=click.IntRange(1, 1024),
              help="Ranks of the engine; by default those whose blocks are there.")  # fmt: skip
@click.option("--node", "nodes", multiple=True, metavar="NAME=HOST:PORT",
              help="A cluster node's admin port; by default --admin's on its host.")  # fmt: skip
@click.option("--pipeline-parallel", "stages", type=click.IntRange(1, 1024), default=1,
              show_default=True, help="Stages of the engine.")  # fmt: skip
@admin_options
def command(
    tokens: str | None,
    tokens_file: IO[str] | None,
    text: str | None,
    text_file: IO[str] | None,
    tokenizer: str | None,
    keys: tuple[str, ...],
    keys_file: IO[str] | None,
    namespace: str | None,
    salt: str,
    adapter: str,
    ranks: int | None,
    stages: int,
    nodes: tuple[str, ...],
    address: str | None,
    token_file: str | None,
    as_json: bool,
) -> None:
    """Says of each block of a prompt, or of each key, why it is a hit or a miss.

    Present; never stored; evicted, when and by whose writes; erased or purged; in another
    namespace, and which part of it differs. Exit status 0 if all are there, 1 if not.
    """
    given = [tokens, tokens_file, text, text_file, keys or None, keys_file]
    if sum(each is not None for each in given) != 1:
        raise click.UsageError("give one of --tokens, --text, --key and their files")
    admin = find_admin(address, token_file)
    servers = _places.servers_of(admin, nodes)
    if keys or keys_file:
        names = list(keys) or [line.rstrip("\n") for line in keys_file or () if line.strip()]
        report = explain_keys(admin, servers, namespace or "default", names)
    else:
        ids = _token_ids(tokens, tokens_file, text, text_file, tokenizer)
        extras = {"stages": stages, "salt": salt, "adapter": adapter}
        report = explain_prompt(admin, servers, namespace, ids, ranks, extras)
    _show(report, as_json)
    sys.exit(0 if all(story.state == PRESENT for story in report.stories) else EXIT_MISSES)


def _token_ids(
    tokens: str | None,
    tokens_file: IO[str] | None,
    text: str | None,
    text_file: IO[str] | None,
    tokenizer: str | None,
) -> list[int]:
    if tokens_file is not None:
        return _prompt.parse_tokens(tokens_file.read())
    if tokens is not None:
        return _prompt.parse_tokens(tokens)
    if tokenizer is None:
        raise click.UsageError("a text needs --tokenizer: a tokenizer.json or a model's name")
    words = text if text_file is None else text_file.read()
    if tokenizer.endswith(".json"):
        from tokenizers import Tokenizer

        try:
            return list(Tokenizer.from_file(tokenizer).encode(words).ids)
        except Exception as error:  # tokenizers raises nothing more special
            raise UsageError(f"--tokenizer {tokenizer}: {error}") from error
    from transformers import AutoTokenizer

    try:
        return [int(token) for token in AutoTokenizer.from_pretrained(tokenizer).encode(words)]
    except (OSError, ValueError) as error:
        raise UsageError(f"--tokenizer {tokenizer}: {error}") from error


def explain_keys(admin: Admin, servers: Servers, namespace: str, names: Sequence[str]) -> Report:
    """The story of each key, as it is written."""
    # An argument that is no text keeps its bytes.
    keys = [name.encode("utf-8", "surrogateescape") for name in names]
    wrong = next((name for name in keys if not 0 < len(name) <= 255), None)
    if wrong is not None:
        raise UsageError(f"a key of {len(wrong)} bytes; keys have 1 to 255")
    stories = servers.ask(namespace, keys)
    return Report(str(admin), namespace, list(names), stories, "key")


def explain_prompt(
    admin: Admin,
    servers: Servers,
    namespace: str | None,
    tokens: Sequence[int],
    ranks: int | None,
    extras: dict[str, Any],
) -> Report:
    """The story of each block that an engine would ask for."""
    if admin in servers.is_away and namespace is None:
        raise ConnectError(servers.is_away[admin])
    spaces = _namespaces(admin) if admin not in servers.is_away else []
    shape = _shape(admin, namespace, spaces, ranks or 1, extras)
    count = _prompt.usable_blocks(len(tokens), shape.block_tokens)
    if count == 0:
        raise UsageError(
            f"{len(tokens)} tokens are no whole block of {shape.block_tokens} before the last "
            "token, which engines compute themselves: nothing is asked of the store"
        )
    if ranks is None:
        shape = _likely_ranks(servers, shape, tokens)
    stories = _ask_blocks(servers, shape, tokens, count)
    stories = _look_elsewhere(servers, shape, spaces, tokens, stories)
    size = shape.block_tokens
    labels = [f"tokens {index * size}-{(index + 1) * size - 1}" for index in range(count)]
    return Report(str(admin), shape.namespace, labels, stories, "block", shape)


def _namespaces(admin: Admin) -> list[str]:
    """Those that there are, the last used first."""
    found = admin.ask("GET", "/namespaces", {"limit": "1000"})["namespaces"]
    found.sort(key=lambda each: float("inf") if each["idle_s"] is None else each["idle_s"])
    return [str(each["namespace"]) for each in found]


def _shape(
    admin: Admin, namespace: str | None, spaces: Sequence[str], ranks: int, extras: dict[str, Any]
) -> Shape:
    if namespace is not None:
        shape = Shape.of(namespace, ranks=ranks, **extras)
        if shape is None:
            raise UsageError(
                f"--namespace {namespace!r} is not a connector's, so that its block size is not "
                "known; `infinistore namespaces` shows those that there are"
            )
        return shape
    shapes = (Shape.of(space, ranks=ranks, **extras) for space in spaces)
    shape = next((each for each in shapes if each is not None), None)
    if shape is None:
        raise UsageError(
            f"{admin} has seen no connector's namespace, so that the block size is not known; "
            "give --namespace as the connector's log says it at its start"
        )
    return shape


def _likely_ranks(servers: Servers, shape: Shape, tokens: Sequence[int]) -> Shape:
    """The shape with the ranks whose first block is there, or was; else as it is."""
    candidates = _prompt.with_ranks(shape)
    firsts = [other.keys(tokens, 0, 1)[0] for other in candidates]
    stories = servers.ask(shape.namespace, [key for keys in firsts for key in keys])
    at = 0
    for other, keys in zip(candidates, firsts, strict=True):
        states = {story.state for story in stories[at : at + len(keys)]}
        at += len(keys)
        if not states & {UNKNOWN, ELSEWHERE, AWAY}:
            return other
    return shape


def _ask_blocks(
    servers: Servers, shape: Shape, tokens: Sequence[int], count: int, first: int = 0
) -> list[Story]:
    blocks = shape.keys(tokens, first, first + count)
    parts = servers.ask(shape.namespace, [key for keys in blocks for key in keys])
    size = len(parts) // count
    return [story_of_block(parts[at * size : (at + 1) * size]) for at in range(count)]


def _look_elsewhere(
    servers: Servers,
    shape: Shape,
    spaces: Sequence[str],
    tokens: Sequence[int],
    stories: list[Story],
) -> list[Story]:
    """Blocks that were never stored under their own name, but under another."""
    unknown = [i for i, story in enumerate(stories) if story.state in (UNKNOWN, ELSEWHERE)]
    if not unknown or servers.is_away:
        return stories
    size = shape.block_tokens
    tried = list(
        _prompt.variants(shape, spaces[:NAMESPACES_TRIED_MAX], unknown[0] * size, len(tokens))
    )
    found = _first_present(servers, tried, tokens)
    if found is None:
        return stories
    # A block of another size has other numbers: it is known by the token it begins with.
    theirs = {index: index * size // found.shape.block_tokens for index in unknown}
    end = len(tokens) // found.shape.block_tokens
    asked = _ask_blocks(servers, found.shape, tokens, end - found.block, found.block)
    told = list(stories)
    for index, block in theirs.items():
        if block < end and asked[block - found.block].state == PRESENT:
            told[index] = Story(ELSEWHERE, where=found.shape.namespace, differs=found.differs)
    return told


def _first_present(
    servers: Servers, tried: Sequence[Variant], tokens: Sequence[int]
) -> Variant | None:
    """The variant that is there and differs in the fewest parts."""
    by_space: dict[str, list[Variant]] = {}
    for variant in tried:
        by_space.setdefault(variant.shape.namespace, []).append(variant)
    present: list[Variant] = []
    for namespace, some in by_space.items():
        keys = [each.shape.keys(tokens, each.block, each.block + 1)[0][0] for each in some]
        stories = servers.ask(namespace, keys)
        present += [
            each for each, story in zip(some, stories, strict=True) if story.state == PRESENT
        ]
    return min(present, key=lambda each: len(each.differs), default=None)


def _show(report: Report, as_json: bool) -> None:
    hits = hit_blocks(report.stories)
    if as_json:
        blocks = [
            {report.unit: label} | story.facts()
            for label, story in zip(report.labels, report.stories, strict=True)
        ]
        print_json(
            {
                "admin": report.admin,
                "namespace": report.namespace,
                "tensor_parallel": report.shape.ranks if report.shape else None,
                "block_tokens": report.shape.block_tokens if report.shape else None,
                "hits": hits,
                f"{report.unit}s": blocks,
            }
        )
        return
    click.echo(f"namespace {report.namespace} at {report.admin}")
    for line in lines(report):
        click.echo(line)
    click.echo(verdict(report, hits))


def lines(report: Report) -> list[str]:
    """A line a run of blocks, a line a key."""
    spans = runs(report.stories) if report.unit == "block" else [
        (index, index + 1, story) for index, story in enumerate(report.stories)
    ]  # fmt: skip
    told = []
    for first, end, story in spans:
        if report.unit == "key":
            told.append(f"  {report.labels[first]}: {story.words()}")
        else:
            numbers = f"block {first}" if end == first + 1 else f"blocks {first}-{end - 1}"
            told.append(f"  {numbers}: {story.words()}")
    return told


def verdict(report: Report, hits: int) -> str:
    """The last line: what an engine would get, and why no more."""
    count = len(report.stories)
    if report.unit == "key":
        present = sum(story.state == PRESENT for story in report.stories)
        return f"{present} of {count} keys are there"
    assert report.shape is not None
    tokens = hits * report.shape.block_tokens
    told = f"{hits} of {count} blocks ({tokens:,} tokens) would be loaded"
    return told if hits == count else f"{told}; block {hits}: {report.stories[hits].words()}"
