"""The identity of weights: a digest of config and of every shard's bytes, remembered by inode."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

logger = logging.getLogger("vllm." + __name__)  # so that it shows in vLLM's log

_SHARDS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")
_CONFIGS = ("*config.json", "*.py")  # code that comes with a model computes its KV, too
_NOT_CONFIGS = ("tokenizer_config.json", "generation_config.json")
_CHUNK_BYTES = 4 << 20
_THREADS = 4
# A file that changed so recently may change again within the file system's clock tick.
_SETTLED_NS = 1_000_000_000


class UnknownWeights(Exception):
    """No files to take a digest of; the message says why."""


def digest_directory(path: Path, cache: Path | None = None) -> str:
    """The digest of the model or adapter in `path` (a directory, or one file).

    `cache` keeps files' digests by (device, inode, size, mtime_ns, ctime_ns); None: the user's.
    Raises `UnknownWeights` if there are no weights, or they change while they are read.
    """
    files = _files(path)
    cache = default_cache() if cache is None else cache
    try:
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="infinistore-digest") as pool:
            digests = list(pool.map(lambda file: digest_file(file, cache), files))
    except OSError as error:
        raise UnknownWeights(f"cannot read {path}: {error}") from error
    named = [[file.name, digest] for file, digest in zip(files, digests, strict=True)]
    return hashlib.sha256(json.dumps(named).encode()).hexdigest()


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    shards = _matching(path, _SHARDS)
    if not shards:
        raise UnknownWeights(f"{path} has no weights ({', '.join(_SHARDS)})")
    configs = [file for file in _matching(path, _CONFIGS) if file.name not in _NOT_CONFIGS]
    return sorted({*configs, *shards})


def _matching(path: Path, patterns: Iterable[str]) -> list[Path]:
    return [file for pattern in patterns for file in path.glob(pattern) if file.is_file()]


def default_cache() -> Path:
    """Where digests are remembered: $XDG_CACHE_HOME/infinistore/digests."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(home) / "infinistore" / "digests"


def digest_file(file: Path, cache: Path) -> str:
    """SHA-256 of a file's bytes, from the cache if the very same file was read before."""
    before = file.stat()
    remembered = cache / _identity(before)
    try:
        digest = remembered.read_text()
        if len(digest) == 64:
            return digest
    except OSError:
        pass  # not there, or unreadable: read the file
    digest = _read(file)
    if _identity(file.stat()) != _identity(before):
        raise UnknownWeights(f"{file} changed while it was read")
    if time.time_ns() - max(before.st_ctime_ns, before.st_mtime_ns) > _SETTLED_NS:
        _remember(remembered, digest)
    return digest


def _identity(stat: os.stat_result) -> str:
    fields = (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
    return "-".join(f"{field:x}" for field in fields)


def _read(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb", buffering=0) as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _remember(remembered: Path, digest: str) -> None:
    fresh = remembered.with_name(f"{remembered.name}.{os.getpid()}")
    try:
        remembered.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh.write_text(digest)
        fresh.replace(remembered)  # at once: another process never sees half a digest
    except OSError as error:
        logger.info("cannot remember the digest of weights: %s", error)


class AdapterDigests:
    """Digests of LoRA adapters, taken by a thread of its own: the asking side never waits."""

    def __init__(self, cache: Path | None = None) -> None:
        self._cache = cache
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="infinistore-adapter")
        self._known: dict[tuple[str, int, str], tuple[str, str | None]] = {}
        self._pending: set[tuple[str, int, str]] = set()

    def find(self, name: str, number: int, path: str) -> str | None:
        """The digest of an adapter as the engine loaded it; None while or because it is unknown.

        An adapter whose files changed after its first use has none: which of them the engine
        holds cannot be told.
        """
        adapter = (name, number, path)
        if adapter in self._known:
            signature, digest = self._known[adapter]
            return digest if digest and signature == _signature(path) else None
        if adapter not in self._pending:
            self._pending.add(adapter)
            self._pool.submit(self._digest, adapter)
        return None

    def is_pending(self, name: str, number: int, path: str) -> bool:
        """Whether the digest is being taken."""
        return (name, number, path) in self._pending

    def _digest(self, adapter: tuple[str, int, str]) -> None:
        path = adapter[2]
        signature = _signature(path)
        digest: str | None = None
        try:
            digest = digest_directory(Path(path), self._cache)
        except (UnknownWeights, OSError) as error:
            logger.warning(
                "adapter %s has no digest, so its blocks are not cached: %s", path, error
            )
        self._known[adapter] = (signature, digest)
        self._pending.discard(adapter)

    def close(self) -> None:
        """Ends the thread."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _signature(path: str) -> str:
    try:
        files = _files(Path(path))
        return "|".join(f"{file.name}:{_identity(file.stat())}" for file in files)
    except (UnknownWeights, OSError):
        return ""
