"""A short run of the chaos harness with every kind of fault, and one that must see harm."""

from __future__ import annotations

import pytest

from chaos.faults import PROCESS_FAULTS
from chaos.harness import run
from chaos.proxy import FAULTS

SECONDS = 12


@pytest.mark.timeout(240)
def test_nothing_is_wrong_after_every_kind_of_fault() -> None:
    found = run(SECONDS / 60, "short", rounds=1, proxy_interval_s=0.05)
    # Not its time of recovery: this machine may be busy with other things.
    assert found.figures["findings"] == []
    assert found.figures["operations"] > 1000
    assert found.figures["outcomes"]["read ok"] > 100
    assert [k for k in (*PROCESS_FAULTS, *FAULTS) if not found.figures["faults"][k]] == []


@pytest.mark.timeout(240)
def test_without_fences_values_are_damaged_and_the_harness_sees_it() -> None:
    found = run(1, "short", is_fenced=False)
    assert found.failures == []
    assert found.figures["damaged_without_fences"] > 0
