"""What became of blocks: the servers' answers, put together and into words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from infinistore.cli._admin import Admin
from infinistore.errors import ConnectError
from infinistore.units import format_seconds

KEYS_AT_ONCE = 1024  # as the server takes them

PRESENT, WRITTEN, AWAY, UNKNOWN, ELSEWHERE = "present", "written", "away", "unknown", "elsewhere"


@dataclass(frozen=True, slots=True)
class Story:
    """What became of one key or block."""

    state: str  # present, written, evicted, erased, purged, corrupt, elsewhere, unknown, away
    reason: str = ""  # of an eviction: room, watermark or quota
    ago_s: float | None = None
    pressing: str = ""  # the namespace whose writer needed the room
    where: str = ""  # of one elsewhere: its namespace
    differs: tuple[str, ...] = ()  # and the parts in which it is another
    is_forgetful: bool = False  # of an unknown one: the server no longer knows all that left
    server: str = ""  # that is away

    def facts(self) -> dict[str, Any]:
        """As JSON: without what says nothing."""
        known = {
            "reason": self.reason,
            "ago_s": self.ago_s,
            "pressing": self.pressing,
            "where": self.where,
            "differs": list(self.differs),
            "server": self.server,
        }
        return {"state": self.state} | {
            name: value for name, value in known.items() if value not in ("", None, [])
        }

    def words(self) -> str:
        """As a person reads it."""
        ago = "" if self.ago_s is None else f" {format_seconds(round(self.ago_s, 1))} ago"
        why = {
            "room": f"to make room for writes of {self.pressing or 'the nameless namespace'}",
            "quota": "for newer values of its tenant, whose quota was full",
        }.get(self.reason, "as the pool was above its watermark")
        others = ", ".join(self.differs)
        told = {
            PRESENT: "present",
            WRITTEN: "being written, not readable yet",
            "evicted": f"evicted{ago} {why}",
            "erased": f"erased{ago} by a client",
            "purged": f"purged{ago} with its namespace",
            "corrupt": f"dropped{ago}: its bytes did not match their checksum",
            ELSEWHERE: f"never stored here; {self.where or 'another'} has it: other {others}",
            AWAY: f"{self.server} is away",
            UNKNOWN: "never stored"
            + (", or gone so long ago that it is forgotten" if self.is_forgetful else ""),
        }
        return told[self.state]


def read_story(answer: Mapping[str, Any]) -> Story:
    """One answer of the server's."""
    state = str(answer["state"])
    if state == "left":
        reason = str(answer["reason"])
        is_eviction = reason in ("room", "watermark", "quota")
        return Story(
            state="evicted" if is_eviction else reason,
            reason=reason if is_eviction else "",
            ago_s=float(answer["ago_s"]),
            pressing=str(answer.get("pressing", "")),
        )
    if state == UNKNOWN and answer.get("elsewhere"):
        return Story(ELSEWHERE, where=str(answer["elsewhere"][0]), differs=("namespace",))
    return Story(state, is_forgetful=bool(answer.get("forgotten")))


def story_of_block(parts: Sequence[Story]) -> Story:
    """A block is there if all of its parts are; else it is missing for want of the first."""
    return next((part for part in parts if part.state != PRESENT), parts[0])


@dataclass(slots=True)
class Servers:
    """Where keys are asked about: one server, or each key's own and whoever is next to have it."""

    admins_of: Callable[[bytes], Sequence[Admin]]  # the first is its own; all keys have as many
    is_away: dict[Admin, str] = field(default_factory=dict)

    def ask(self, namespace: str, keys: Sequence[bytes]) -> list[Story]:
        """The story of each key. A server that does not answer is asked no more."""
        if not keys:
            return []
        admins = [self.admins_of(key) for key in keys]
        stories = self._ask_all(namespace, keys, [each[0] for each in admins])
        for place in range(1, len(admins[0])):
            missing = [i for i, story in enumerate(stories) if story.state != PRESENT]
            there = [admins[index][place] for index in missing]
            found = self._ask_all(namespace, [keys[index] for index in missing], there)
            for index, story in zip(missing, found, strict=True):
                if story.state == PRESENT:
                    stories[index] = story
        return stories

    def _ask_all(
        self, namespace: str, keys: Sequence[bytes], admins: Sequence[Admin]
    ) -> list[Story]:
        stories: dict[int, Story] = {}
        by_admin: dict[Admin, list[int]] = {}
        for index, admin in enumerate(admins):
            by_admin.setdefault(admin, []).append(index)
        for admin, indexes in by_admin.items():
            for start in range(0, len(indexes), KEYS_AT_ONCE):
                some = indexes[start : start + KEYS_AT_ONCE]
                found = self._ask_one(admin, namespace, [keys[index] for index in some])
                stories.update(zip(some, found, strict=True))
        return [stories[index] for index in range(len(keys))]

    def _ask_one(self, admin: Admin, namespace: str, keys: Sequence[bytes]) -> list[Story]:
        if admin not in self.is_away:
            body = {"namespace": namespace, "hex_keys": [key.hex() for key in keys]}
            try:
                answers = admin.ask("POST", "/explain", body=body)["answers"]
                return [read_story(answer) for answer in answers]
            except ConnectError as error:
                self.is_away[admin] = str(error)
        return [Story(AWAY, server=str(admin))] * len(keys)


def runs(stories: Sequence[Story]) -> list[tuple[int, int, Story]]:
    """Blocks of one story as (first, end, story): what a screen has room for."""
    spans = []
    first = 0
    for _, group in groupby(stories, key=_alike):
        members = list(group)
        spans.append((first, first + len(members), members[0]))
        first += len(members)
    return spans


def _alike(story: Story) -> tuple[object, ...]:
    # Times differ a little from block to block of one eviction.
    ago = None if story.ago_s is None else round(story.ago_s)
    return (story.state, story.reason, story.pressing, story.where, story.differs, ago)


def hit_blocks(stories: Sequence[Story]) -> int:
    """How many blocks, from the first on, are there: what an engine would load."""
    return next((i for i, story in enumerate(stories) if story.state != PRESENT), len(stories))
