"""`everlog token …`: who may use the server."""

from __future__ import annotations

import click

from everlog.cli.commands import CliCommand, Group
from everlog.cli.output import TableRows, encode, moment, plain, show
from everlog.cli.settings import CliSettings
from everlog.runtime.clock import SystemClock


@click.group(cls=Group)
def token() -> None:
    """Make, list and revoke the tokens of the server.

    A token is shown once; the file keeps its hash. A running server notices changes with its next request.
    """


def _settings() -> CliSettings:
    return click.get_current_context().ensure_object(CliSettings)


@token.command(
    cls=CliCommand,
    examples=[
        "everlog token new ci --scope read",
        "everlog token new app --scope read --scope write",
        "everlog token new shop --scope 'read:/shop/**' --scope 'write:/shop/orders~'",
    ],
)
@click.argument("name")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    metavar="SCOPE",
    help="read, write, admin, or for documents read:/path, write:/path; may be repeated.  [read]",
)
@click.option("--toml", is_flag=True, help="Print an entry for the configuration instead of storing one.")
def new(name: str, scopes: tuple[str, ...], toml: bool) -> None:
    """Make a token and print it: this is the only time that it can be seen.

    read: all that can be looked at. write: append, put, change. admin: all of it, and the actions of operators.
    read:/shop/** and write:/shop/**: documents at these paths and nothing else; '*' is one segment, '**' at the end
    all that is below, and a collection comes with its elements.
    """
    from everlog.server.security.tokens import TokenFile, make_token, tokens_path

    settings = _settings()
    config = settings.load()
    text, kept = make_token(name, scopes or ("read",), SystemClock().now_ms())
    if toml:
        entry = "\n".join(
            [
                "[[server.tokens]]",
                f'id = "{kept.id}"',
                f'hash = "{kept.hash}"',
                f"name = {encode(kept.name)}",
                f"scopes = {encode(kept.scopes)}",
            ]
        )
        show(settings.as_json, {"token": text, "toml": entry}, f"{text}\n\n{entry}")
        return
    path = tokens_path(config)
    TokenFile(path).add(kept)
    document = {"token": text, "id": kept.id, "name": kept.name, "scopes": kept.scopes, "file": str(path)}
    show(settings.as_json, document, text)


@token.command("list", cls=CliCommand)
def list_() -> None:
    """List the tokens of the file and of the configuration. None of them can be shown again."""
    from everlog.server.security.tokens import TokenFile, tokens_path

    settings = _settings()
    config = settings.load()
    found = [(one, "file") for one in TokenFile(tokens_path(config)).read()]
    found += [(one, "configuration") for one in config.server.tokens]
    if settings.as_json:
        for one, where in found:
            click.echo(
                encode(
                    {"id": one.id, "name": one.name, "scopes": one.scopes, "created_ms": one.created_ms, "in": where}
                )
            )
        return
    table = TableRows("id", "scopes", "made (UTC)", "in", "name")
    table.add(
        [
            [one.id, " ".join(one.scopes), moment(one.created_ms) if one.created_ms else "-", where, plain(one.name)]
            for one, where in found
        ]
    )
    if not found:
        click.echo("no tokens: every program on this machine may use the server, and no other")


@token.command(cls=CliCommand, examples=["everlog token revoke ci"])
@click.argument("which", metavar="ID_OR_NAME")
def revoke(which: str) -> None:
    """Remove a token of the file, by its id or its name. Sessions that began with it end, too."""
    from everlog.server.security.tokens import TokenFile, tokens_path

    settings = _settings()
    gone = TokenFile(tokens_path(settings.load())).revoke(which)
    show(settings.as_json, {"id": gone.id, "name": gone.name}, f"revoked {gone.id} ({plain(gone.name)})")
