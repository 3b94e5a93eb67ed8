"""`infinistore router`: an OpenAI-compatible front for prefill and decode vLLM servers."""

from __future__ import annotations

import click

from infinistore.config import LOG_FORMATS, LOG_LEVELS


@click.command("router")
@click.option("--prefill", "prefill_urls", multiple=True, metavar="URL", help="A prefill vLLM.")
@click.option("--decode", "decode_urls", multiple=True, metavar="URL", help="A decode vLLM.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8000, show_default=True, help="Port to listen on; 0: any free one.")
@click.option(
    "--prefill-timeout",
    "prefill_timeout_s",
    default=60.0,
    show_default=True,
    help="Seconds until a request goes on to decode without its prefill.",
)
@click.option(
    "--prefix-slack",
    default=4,
    show_default=True,
    help="Requests in flight that a server may have more than the least loaded one and yet be "
    "chosen, because it was asked for the same prefix before.",
)
@click.option("--access-log", is_flag=True, help="A line of JSON on stderr for each request.")
@click.option(
    "--log-level",
    default="info",
    show_default=True,
    type=click.Choice(LOG_LEVELS),
    help="What is worth a line on stderr.",
)
@click.option(
    "--log-format",
    default="text",
    show_default=True,
    type=click.Choice(LOG_FORMATS),
    help="Lines for people, or one JSON object a line.",
)
def command(
    prefill_urls: tuple[str, ...],
    decode_urls: tuple[str, ...],
    host: str,
    port: int,
    prefill_timeout_s: float,
    prefix_slack: int,
    access_log: bool,
    log_level: str,
    log_format: str,
) -> None:
    """Send requests to a prefill vLLM, then to a decode vLLM, as one OpenAI-compatible server.

    Give --prefill and --decode once for each server. A dead prefill only costs its speed-up; a dead
    decode is replaced by another one.
    """
    # aiohttp takes 0.2 s to import, which the other commands need not pay.
    import uvloop

    from infinistore.router.daemon import serve
    from infinistore.router.settings import RouterSettings
    from infinistore.server.log_lines import log_to_stderr

    log_to_stderr(log_level, log_format)
    settings = RouterSettings(
        prefill_urls=prefill_urls,
        decode_urls=decode_urls,
        host=host,
        port=port,
        prefill_timeout_s=prefill_timeout_s,
        prefix_slack=prefix_slack,
        access_log=access_log,
    )
    uvloop.run(serve(settings))
