"""`openmanus-rl env`: list environments, check that one keeps the contract, serve one over HTTP, browse the shop."""

import sys
from typing import Annotated

import typer

from openmanus_rl import exits

app = typer.Typer(help="Look at environments, and serve them.", no_args_is_help=True)

Options = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Options, such as size=micro.")]


def parse_options(words: list[str] | None) -> dict[str, object]:
    """`size=micro seed=3` as keyword arguments; values are read as YAML scalars."""
    from openmanus_rl.config.problems import ConfigError, Problem
    from openmanus_rl.config.sources import read_overrides

    settings, problems = read_overrides([f"env.options.{word}" for word in words or ()])
    if problems:
        raise ConfigError(problems)
    nested = [setting.key.removeprefix("env.options.") for setting in settings if len(setting.path) != 3]
    if nested:
        raise ConfigError([Problem(f"an option has a plain name, not {key}") for key in nested])
    return {setting.path[2]: setting.value for setting in settings}


@app.command("list")
def list_environments() -> None:
    """List the environments, one line each."""
    from openmanus_rl.environments.registry import env_names

    entries = env_names()
    width = max(len(name) for name in entries)
    for name, entry in entries.items():
        aliases = f" (also: {', '.join(entry.aliases)})" if entry.aliases else ""
        print(f"{name:<{width}}  {entry.summary}{aliases}")


@app.command()
def check(
    name: Annotated[str, typer.Argument(help="A name, an alias, module:Class, or remote:URL.")],
    options: Options = None,
    episodes: Annotated[int, typer.Option(min=10, help="Episodes of the memory check.")] = 1000,
) -> None:
    """Check that an environment keeps the contract; exits with 1 if it does not."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from openmanus_rl.config.problems import ConfigError, Problem
    from openmanus_rl.environments.checker import check_env
    from openmanus_rl.environments.registry import make_env

    sys.path.insert(0, "")  # module:Class is looked for where the user is
    keywords = parse_options(options)
    try:
        make_env(name, **keywords).close()
    except (ValueError, OSError) as error:
        raise ConfigError([Problem(str(error))]) from None
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
    with console.status(f"checking {name}"):
        results = check_env(name, keywords, episodes)
    table = Table(
        title=escape(f"{name} {' '.join(options or ())}".strip()), title_justify="left", show_header=False, box=None
    )
    colours = {"pass": "green", "fail": "red", "info": "blue"}
    for result in results:
        table.add_row(f"[{colours[result.status]}]{result.status}[/]", result.name, escape(result.detail))
    console.print(table)
    failed = sum(result.status == "fail" for result in results)
    console.print(f"{failed} of {len(results)} checks failed" if failed else "all checks passed")
    if failed:
        raise SystemExit(exits.FAILED)


@app.command()
def browse(
    name: Annotated[str, typer.Argument(help="An environment with a page to look at: webshop.")],
    options: Options = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    host: Annotated[str, typer.Option(help="Others than this machine can come in only if it is not loopback.")] = (
        "127.0.0.1"
    ),
    token: Annotated[
        str,
        typer.Option(envvar="OPENMANUS_RL_TOKEN", show_default=False, help="Wanted first: open /?token=TOKEN."),
    ] = "",
) -> None:
    """Shop by hand in a web page, for the same goals as the agent."""
    from openmanus_rl.config.problems import ConfigError, Problem
    from openmanus_rl.environments.registry import env_class, make_env
    from openmanus_rl.environments.webshop.env import WebshopEnv
    from openmanus_rl.web.requests import check_secret, is_loopback

    keywords = parse_options(options)
    try:
        check_secret(token or None, "a token")
        if env_class(name) is not WebshopEnv:
            raise ValueError(f"{name} has no page to look at; webshop has")
        make_env(name, **keywords).close()
        from openmanus_rl.environments.webshop.browse import make_app

        page = make_app(keywords, host, token or None)
    except (ValueError, TypeError, OSError) as error:
        raise ConfigError([Problem(str(error))]) from None
    if not token and not is_loopback(host):
        print(
            f"warning: {host} can be reached from other machines: whoever reaches it can shop here. "
            "Set $OPENMANUS_RL_TOKEN.",
            file=sys.stderr,
        )
    _serve(page, host, port, "open it with /?token=TOKEN; " if token else "")


def _serve(page: object, host: str, port: int, hint: str) -> None:
    """Serve until interrupted; the address is printed once it can be opened."""
    import uvicorn

    from openmanus_rl.config.problems import ConfigError, Problem
    from openmanus_rl.web.server import listen

    try:
        listening = listen(host, port)
    except OSError as error:
        raise ConfigError([Problem(str(error))]) from None
    with listening:
        shown = f"[{host}]" if ":" in host else host
        print(f"open http://{shown}:{listening.getsockname()[1]}  ({hint}Ctrl-C ends it)", flush=True)
        uvicorn.Server(uvicorn.Config(page, log_level="warning")).run(sockets=[listening])  # type: ignore[arg-type]


@app.command()
def serve(
    name: Annotated[str, typer.Argument(help="A name, an alias, or module:Class.")],
    options: Options = None,
    host: Annotated[str, typer.Option(help="The address to listen on; 0.0.0.0 for all of them.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 for any free one, which is printed.")] = 36001,
    token: Annotated[
        str, typer.Option(envvar="OPENMANUS_RL_TOKEN", help="Wanted from every client, as a bearer token.")
    ] = "",
    max_sessions: Annotated[int, typer.Option(min=1, help="How many may be open at once.")] = 1024,
    max_body: Annotated[int, typer.Option(min=1024, help="Bytes that a request may hold.")] = 4 * 2**20,
    idle_seconds: Annotated[float, typer.Option(min=0.1, help="Unused for so long, a session is closed.")] = 3600.0,
    threads: Annotated[
        int, typer.Option(min=1, max=256, help="Environments at work at once; 1 for those that are not thread-safe.")
    ] = 4,
    call_seconds: Annotated[
        float, typer.Option(min=0.1, help="An environment that hangs for so long is given up, with its session.")
    ] = 600.0,
) -> None:
    """Serve an environment over HTTP until Ctrl-C: AgentGym's routes, for `remote:http://HOST:PORT`."""
    from openmanus_rl.config.problems import ConfigError, Problem
    from openmanus_rl.environments.remote.server import serve as serve_until_told
    from openmanus_rl.environments.remote.sessions import Limits

    sys.path.insert(0, "")  # module:Class is looked for where the user is
    limits = Limits(max_sessions, max_body, idle_seconds, threads, call_seconds)
    keywords = parse_options(options)
    try:
        serve_until_told(name, keywords, host=host, port=port, token=token or None, limits=limits)
    except (ValueError, OSError) as error:
        raise ConfigError([Problem(str(error))]) from None
