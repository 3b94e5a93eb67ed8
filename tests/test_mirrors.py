"""Facts that two places must state: each pair is read and compared."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from infinistore import _native
from infinistore.config import ClientConfig, ServerConfig, settings
from infinistore.errors import CODE_TO_ERROR, Code
from infinistore.server.native import ServerOptions

ROOT = Path(__file__).parents[1]
PROTOCOL = (ROOT / "docs/protocol.md").read_text()


def c_enum(path: str, name: str) -> dict[str, int]:
    """The members of a C++ enum, `kOutOfMemory` as `out_of_memory`."""
    text = (ROOT / path).read_text()
    body = re.search(rf"enum class {name}\b[^{{]*{{(.*?)}};", text, re.S)
    assert body, f"{path} has no enum {name}"
    members = re.findall(r"k(\w+)\s*=\s*(\d+)", body[1])
    assert len(members) == body[1].count("="), f"{name} has a member that this test cannot read"
    return {re.sub(r"(?<!^)(?=[A-Z])", "_", member).lower(): int(n) for member, n in members}


def protocol_table(section: str) -> dict[str, int]:
    """The first two columns (number, name) of the table in a section of docs/protocol.md."""
    start = re.search(rf"^## \d+\. {section}$", PROTOCOL, re.M)
    assert start, f"docs/protocol.md has no section {section}"
    text = PROTOCOL[start.end() :].split("\n## ")[0]
    return {name.lower(): int(n) for n, name in re.findall(r"^\| (\d+) \| (\w+) \|", text, re.M)}


def c_fields(path: str, struct: str) -> set[str]:
    """The names of a plain struct's fields."""
    text = (ROOT / path).read_text()
    body = re.search(rf"struct {struct} {{(.*?)^}};", text, re.S | re.M)
    assert body, f"{path} has no struct {struct}"
    code = re.sub(r"//.*", "", body[1])
    return set(re.findall(r"(\w+)\s*(?:=[^;]*|{[^;]*})?;", code))


def test_codes_agree_in_cpp_python_and_protocol() -> None:
    python = {code.name.lower(): code.value for code in Code}
    assert c_enum("core/base/result.h", "Code") == python
    assert protocol_table("Outcomes and error codes") == python


def test_every_failure_has_an_exception() -> None:
    assert set(CODE_TO_ERROR) == set(Code) - {Code.OK, Code.EXISTS}


def test_opcodes_agree_in_cpp_and_protocol() -> None:
    opcodes = c_enum("core/wire/frame.h", "Opcode")
    assert len(opcodes) >= 20
    assert protocol_table("Opcodes") == opcodes


def test_server_options_agree_in_cpp_and_python() -> None:
    python = {field.name for field in fields(ServerOptions)}
    assert c_fields("core/server/options.h", "ServerOptions") == python


def test_the_help_names_every_eviction_policy() -> None:
    text = next(s.help for s in settings(ServerConfig) if s.field == "eviction")
    assert sorted(re.findall(r"(\w+) \(", text)) == sorted(_native.eviction_policies())


def test_client_settings_all_go_down() -> None:
    """Times lose their unit on the way (Nanos has it), and what is no setting comes on top."""
    python = {field.name.removesuffix("_s") for field in fields(ClientConfig)}
    python -= {"etcd_user", "etcd_password"}  # Python speaks with etcd
    renamed = {"verify": "verifies"}
    beside = {"host", "port", "space", "client_name", "tls"}
    down = c_fields("core/client/options.h", "ClientOptions")
    assert down == {renamed.get(name, name) for name in python} | beside
