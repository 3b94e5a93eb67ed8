"""The members of a cluster as one client has them: who is up, and by which routes calls go."""

from __future__ import annotations

import random
import threading
import time
import weakref
from collections.abc import Sequence

from infinistore.cluster.member import Member
from infinistore.cluster.nodes import View
from infinistore.cluster.routes import Routes, Standing, choose_of_two
from infinistore.cluster.view import Picture


class Fleet:
    """Thread-safe. Its members' connections are opened and probed by whoever watches."""

    def __init__(self, replicas: int = 1) -> None:
        self.replicas = replicas
        self.is_closed = False
        # Held while something is sent again, so that it is not sent through a closed connection.
        self.sending_again = threading.Lock()
        self._lock = threading.Lock()
        self._picture = Picture(View(()))
        self._members: dict[str, Member] = {}
        self._by_number: dict[int, Member] = {}
        self._ever: weakref.WeakSet[Member] = weakref.WeakSet()
        self._young: list[bool] = []
        self._routes: Routes | None = None
        self._next_number = 0
        self._random = random.Random()

    def routes(self) -> Routes:
        """The routes of this moment."""
        routes = self._routes
        if routes is None:
            with self._lock:
                routes = self._routes = self._make_routes(time.monotonic())
        return routes

    def _make_routes(self, now_s: float) -> Routes:
        members = [self._members[node.name] for node in self._picture.view.nodes]
        self._young = [member.is_young(now_s) for member in members]
        standings = [
            Standing(member.node, member.number, member.is_up(), is_young)
            for member, is_young in zip(members, self._young, strict=True)
        ]
        picture = self._picture
        return Routes(standings, picture.copies, self.replicas, picture.orphaned)

    def member(self, number: int) -> Member | None:
        """The member of that number; None: it has left."""
        return self._by_number.get(number)

    def members(self) -> list[Member]:
        """All of them, in the order of their names."""
        with self._lock:
            return [self._members[name] for name in sorted(self._members)]

    def everyone(self) -> list[Member]:
        """All of them, and those that have left with something still on its way."""
        return list(self._ever)

    def choose(self, numbers: Sequence[int]) -> int:
        """One of these members, rather one with little to do."""
        return choose_of_two(numbers, self._load, self._random.random)

    def _load(self, number: int) -> float:
        member = self._by_number.get(number)
        return member.load() if member is not None else 0.0

    def has_other_up(self, member: Member) -> bool:
        """Whether somebody else answers."""
        return any(other.is_up() for other in self.members() if other is not member)

    # ---- what changes the routes ----

    def show(self, picture: Picture, now_s: float) -> None:
        """Goes by this picture from now on. A new node's member has no connection yet."""
        with self._lock:
            is_first = not self._members
            members: dict[str, Member] = {}
            for node in picture.view.nodes:
                member = self._members.get(node.name)
                if member is None or member.node.address != node.address:
                    came_at_s = float("-inf") if is_first else now_s
                    member = Member(node, self._next_number, came_at_s)
                    self._next_number += 1
                    self._ever.add(member)
                member.node = node
                member.bytes_per_s = picture.bytes_per_s.get(node.name, 0.0)
                members[node.name] = member
            # Who has left is not closed: what is on its way there may still come.
            self._members = members
            self._by_number = {member.number: member for member in members.values()}
            is_young = [members[node.name].is_young(now_s) for node in picture.view.nodes]
            if self._routes is not None and (picture != self._picture or is_young != self._young):
                self._routes = None
            self._picture = picture

    def lost(self, member: Member, sent_at_s: float) -> None:
        """What was sent to it then was lost: it is avoided until it answers."""
        with self._lock:
            if member.breaker.failed(sent_at_s, time.monotonic()):
                self._routes = None

    def probed(self, member: Member, incarnation: int | None) -> None:
        """It has answered, or (None) has not."""
        now_s = time.monotonic()
        with self._lock:
            if member.breaker.probed(incarnation is not None, now_s):
                # Its groups' values were written elsewhere meanwhile.
                member.came_at_s = now_s
            if incarnation is not None:
                member.incarnation = incarnation
            self._routes = None

    def close(self) -> None:
        """Sends nothing again from now on."""
        with self.sending_again:
            self.is_closed = True
