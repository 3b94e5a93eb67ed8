"""Every peer that is installed moves blocks right, at a tiny size; not how fast."""

from __future__ import annotations

from pathlib import Path

import pytest

from infinistore.bench.figures import Case
from infinistore.bench.peers.place import PeerMissingError, Place
from infinistore.bench.peers.table import PEERS, Peer, started
from infinistore.bench.rounds import measure

FOLDER = Path(__file__).parents[2] / "build" / "peers"


@pytest.mark.timeout(180)
@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_an_installed_peer_brings_every_block_back(peer: Peer, waits: bool, tmp_path: Path) -> None:
    case = Case(4096, block_count=100, batch_blocks=40, waits=waits)  # the last batch is smaller
    try:
        Place(FOLDER, tmp_path, 0, 0).site(peer.package)
    except PeerMissingError as missing:
        pytest.skip(str(missing))
    with started([peer], FOLDER, tmp_path, case.pass_bytes, 1) as running:
        assert running.missing == {}
        found = measure(case, [running.fleets[peer.name]], 2, 0)
    assert found.blocks_verified == 200
    for verb in ("write", "read"):
        for sample in found.samples[peer.name, verb]:
            assert len(sample.batches_s) == 3 or not waits
            assert sample.cpu_far_s is not None
