"""Prints docs/settings.md, the reference of every setting, from their one declaration.

python scripts/settings_page.py > docs/settings.md
"""

from __future__ import annotations

from infinistore.config import ClientConfig, ServerConfig, Setting, settings

HEAD = """\
# Settings

Made by `scripts/settings_page.py` from `src/infinistore/config.py`; a test keeps them equal.

A server's setting is a flag (`--pool 64GiB`), an environment variable (`INFINISTORE_POOL=64GiB`)
or a key of a TOML file (`pool = "64GiB"` in the table `[server]`; the file is given by `--config`
or `INFINISTORE_CONFIG`). A flag wins over the environment, the environment over the file, the file
over the default. A client's setting is a keyword of `connect()`, an environment variable, or a key
of the table `[client]`. Sizes are written `4096`, `64KiB`, `1.5GiB`, `20GB`; durations `0.5`,
`500ms`, `5s`, `2min`.

The token is best given by `INFINISTORE_TOKEN` or `--token-file`: a flag shows in the list of
processes.
"""


def row(setting: Setting, name: str) -> str:
    low = setting.range_text() if setting.kind in (int, float) else ", ".join(setting.choices)
    default = "" if setting.default == "" else f"`{setting.show(setting.default)}`"
    return f"| `{name}` | `{setting.variable}` | {default} | {low} | {setting.help} |"


def page() -> str:
    head = "| {} | environment | default | range | meaning |\n|---|---|---|---|---|"
    server = [row(setting, setting.flag) for setting in settings(ServerConfig)]
    client = [row(setting, setting.field) for setting in settings(ClientConfig)]
    parts = [
        HEAD,
        "## Server\n",
        "\n".join([head.format("flag"), *server]) + "\n",
        "## Client\n",
        "\n".join([head.format("keyword"), *client]) + "\n",
    ]
    return "\n".join(parts)


if __name__ == "__main__":
    print(page(), end="")
