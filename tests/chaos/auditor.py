"""The harness's own client: fills the pool with values it knows, and reads them back."""

from __future__ import annotations

import random
import time

import infinistore
from chaos.caller import MIB
from chaos.checker import Checker, Read
from chaos.content import KEPT, Key, content
from chaos.destination import Destination
from chaos.supervised import SupervisedServer
from chaos.tally import Tally
from infinistore.errors import Code, LinkError

_NUMBERS_FROM = 1000  # beyond what callers write
_PATIENCE_S = 5.0


class Auditor:
    """Talks to the server over TCP, without the proxy; connects anew when it must."""

    def __init__(self, server: SupervisedServer, tally: Tally) -> None:
        self._server = server
        self._tally = tally
        self._checker = Checker(is_far=False)
        self._into = Destination(2 * MIB)
        self._client: infinistore.Client | None = None

    def _connected(self) -> infinistore.Client:
        if self._client is None:
            self._client = infinistore.connect(self._server.url, "chaos", transport="tcp")
        return self._client

    def _write(self, key: Key, offset: int, size: int) -> Code:
        """Again and again while the link fails or the pool is full of what others write."""
        end = time.monotonic() + _PATIENCE_S
        while True:
            try:
                batch = self._connected().write_cache(
                    content(key),
                    [(key.name, offset)],
                    size,
                    unit="bytes",
                    value_bytes=key.size,
                    value_offset=offset,
                )
                code = batch.wait(_PATIENCE_S)[0]
            except LinkError:
                code = Code.DISCONNECTED
            self._tally.take({"line": "tally", "counts": {f"write {code.name.lower()}": 1}})
            if code in (Code.OK, Code.EXISTS) or time.monotonic() > end:
                return code
            if finding := self._checker.outcome(code, key, "write"):
                self._tally.find(finding.kind, finding.what)
            time.sleep(0.01)

    def write(self, key: Key) -> bool:
        """Whether the whole value is there now."""
        return self._write(key, 0, key.size) in (Code.OK, Code.EXISTS)

    def fill(self, pool_bytes: int) -> list[Key]:
        """Writes as much as the pool holds: what was free before is used then."""
        keys = [Key(KEPT, MIB, _NUMBERS_FROM + i) for i in range(pool_bytes // MIB)]
        for key in keys:
            self.write(key)
        return keys

    def read(self, keys: list[Key]) -> None:
        """Judges what is there of them."""
        chance = random.Random(0)
        for key in keys:
            offsets = self._into.place(1, key.size, chance)
            try:
                batch = self._connected().read_cache(
                    self._into.cache, [(key.name, offsets[0])], key.size, unit="bytes"
                )
                outcomes = list(batch.wait(_PATIENCE_S))
            except LinkError:
                continue
            self._tally.take({"line": "tally", "counts": {f"read {outcomes[0].name.lower()}": 1}})
            for finding in self._checker.read(Read([key], offsets, key.size), outcomes, self._into):
                self._tally.find(finding.kind, finding.what, finding.wrong_bytes)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
