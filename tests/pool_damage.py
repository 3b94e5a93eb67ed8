"""Damage to values in a server's pool, as another process of its user could do it."""

from __future__ import annotations


def damage_pool(pid: int, mark: bytes) -> None:
    """Flips a bit behind the one place of the server's pool where `mark` stands."""
    with open(f"/proc/{pid}/maps") as maps:
        lines = [line for line in maps if "memfd:infinistore-pool" in line]
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        for line in lines:
            begin, end = (int(x, 16) for x in line.split()[0].split("-"))
            for chunk in range(begin, end, 1 << 20):
                memory.seek(chunk)
                found = memory.read(1 << 20).find(mark)
                if found >= 0:
                    memory.seek(chunk + found + 100)
                    byte = memory.read(1)
                    memory.seek(chunk + found + 100)
                    memory.write(bytes([byte[0] ^ 1]))
                    return
    raise AssertionError("the value is not in the pool")
