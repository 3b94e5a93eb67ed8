"""The demo's verdict: what counts as equal, and what it must not let through."""

from __future__ import annotations

import dataclasses

import pytest
from demo.client import Hits, Reply
from demo.prompts import Prompt, all_prompts
from demo.report import as_json
from demo.run import _TWINS
from demo.twin import Twin
from demo.verdict import Pass, Row, all_faults, faults, whole_block_tokens

BLOCK, VALUE = 32, 1000
PLAIN = Reply((1, 2, 3), "abc", 100.0, tuple(range(70)))
LOADED = Pass(PLAIN, Hits(32, 32), VALUE, 0)
ROW = Row("shm", Prompt("p", "short", "text"), PLAIN, LOADED, LOADED)


@pytest.mark.parametrize(
    ("tokens", "expected"), [(1, 0), (32, 0), (33, 32), (64, 32), (65, 64), (66, 64)]
)
def test_the_last_token_is_always_computed(tokens, expected):
    assert whole_block_tokens(tokens, BLOCK) == expected


def test_a_right_row_has_no_fault():
    assert faults(ROW, BLOCK, VALUE) == []
    assert all_faults([ROW], BLOCK, VALUE) == []
    assert ROW.is_identical


@pytest.mark.parametrize("name", ["split", "second"])
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (dataclasses.replace(LOADED, hits=Hits(32, 0)), "32 local + 0 external"),
        (dataclasses.replace(LOADED, hits=Hits(64, 32)), "64 local + 32 external"),
        (dataclasses.replace(LOADED, read_bytes=VALUE - 1), "999 bytes read of the 1000 hit"),
        (
            dataclasses.replace(LOADED, reply=dataclasses.replace(PLAIN, token_ids=(1, 2, 4))),
            "tokens [1, 2, 4] are not",
        ),
        (
            dataclasses.replace(LOADED, reply=dataclasses.replace(PLAIN, prompt_token_ids=(1,))),
            "1 prompt tokens, 70 with plain",
        ),
    ],
)
def test_each_wrong_thing_in_either_pass_is_a_fault(name, wrong, message):
    found = faults(dataclasses.replace(ROW, **{name: wrong}), BLOCK, VALUE)
    assert [message in fault for fault in found] == [True]


def test_a_transport_that_loaded_nothing_is_a_fault():
    local = dataclasses.replace(LOADED, hits=Hits(64, 0), read_bytes=0)
    found = all_faults([ROW, dataclasses.replace(ROW, transport="tcp", second=local)], BLOCK, VALUE)
    assert found == ["tcp: nothing was loaded from the store in pass 'second'"]


def test_a_twin_that_changes_nothing_is_a_fault():
    other = dataclasses.replace(PLAIN, token_ids=(9, 9, 9))
    assert Twin(ROW.prompt, "shm", PLAIN, other, 64).faults() == []
    assert "did not change" in Twin(ROW.prompt, "shm", PLAIN, PLAIN, 64).faults()[0]
    assert "nothing was loaded" in Twin(ROW.prompt, "shm", PLAIN, other, 0).faults()[0]


def test_the_prompts_are_enough_and_the_same_each_time():
    prompts = all_prompts(BLOCK)
    assert len(prompts) >= 24
    assert len({prompt.name for prompt in prompts}) == len(prompts)
    assert prompts == all_prompts(BLOCK)
    assert {p.kind for p in prompts} >= {"short", "long", "shared", "unicode", "edge"}
    assert sorted(len(p.content) for p in prompts if p.kind == "edge") == [127, 128, 129, 130]
    assert set(_TWINS) <= {p.name for p in prompts}


def test_the_json_counts_pairs_of_prompt_and_transport():
    wrong = dataclasses.replace(LOADED, reply=dataclasses.replace(PLAIN, token_ids=(0,)))
    rows = [ROW, dataclasses.replace(ROW, transport="tcp", second=wrong)]
    long = dataclasses.replace(PLAIN, prompt_token_ids=tuple(range(1200)))
    rows.append(dataclasses.replace(ROW, plain=long))
    rows.append(dataclasses.replace(ROW, transport="tcp", plain=long))
    content = as_json(rows, ["f"], {"elapsed_s": 1})
    assert (content["prompts"], content["identical"]) == (4, 3)
    assert content["external_hit_tokens"] == 8 * 32
    assert content["transports"] == ["shm", "tcp"]
    assert content["ttft_ms"]["tcp"]["long"]["plain"] == 100.0
    assert content["faults"] == ["f"]
    assert len(content["rows"]) == 4
