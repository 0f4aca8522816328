"""`openmanus-rl serve`: a trained model behind an OpenAI-compatible endpoint."""

import sys
from typing import Annotated, Literal

import typer

from openmanus_rl import exits


def serve(
    model_or_run: Annotated[
        str, typer.Argument(metavar="MODEL_OR_RUN", help="A run, a checkpoint, a model directory, name or .gguf file.")
    ],
    host: Annotated[str, typer.Option(help="The address to listen on; 0.0.0.0 for all of them.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 for any free one, which is printed.")] = 8000,
    api_key: Annotated[
        str,
        typer.Option(
            envvar="OPENMANUS_API_KEY",
            show_default=False,
            help="Wanted from every client; others see flags, so set it.",
        ),
    ] = "",
    no_auth: Annotated[bool, typer.Option("--no-auth", help="Let everybody in who reaches --host.")] = False,
    name: Annotated[
        str | None, typer.Option(help="What clients call the model. Default: the run's or the directory's name.")
    ] = None,
    engine: Annotated[Literal["local", "vllm"], typer.Option(help="What computes.")] = "local",
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"], typer.Option(help="auto: bfloat16 on a GPU, else float32.")
    ] = "auto",
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="auto: a GPU if there is one.")] = "auto",
    max_model_len: Annotated[
        int | None, typer.Option(min=2, help="Longest prompt and answer. Default: the model's context.")
    ] = None,
    kv_cache_gb: Annotated[float, typer.Option(min=0.001, help="Memory for what was read and written.")] = 2.0,
    max_num_seqs: Annotated[int, typer.Option(min=1, help="Answers that are computed together.")] = 128,
    max_requests: Annotated[int, typer.Option(min=1, help="Answers written or waiting; more are refused.")] = 256,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Of one answer. Default: the context.")] = None,
    max_body: Annotated[int, typer.Option(min=1024, help="Bytes that a request may hold.")] = 4 * 2**20,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run Python code that comes with the model.")
    ] = False,
    grace: Annotated[float, typer.Option(min=0.0, help="Seconds for running answers after Ctrl-C or SIGTERM.")] = 30.0,
) -> None:
    """Serve a model until Ctrl-C: /v1/chat/completions, /v1/completions and /v1/models of the OpenAI API.

    Of a run, its best checkpoint is served.
    """
    from openmanus_rl.cli.flags import mistakes
    from openmanus_rl.cli.screen import quiet_libraries
    from openmanus_rl.cli.subjects import find_subject

    subject, _ = find_subject(model_or_run)
    shown = name or served_name(model_or_run, subject.run)
    from openmanus_rl.serving.engines import EngineSettings, choose
    from openmanus_rl.serving.model import Limits
    from openmanus_rl.serving.server import EngineLostError
    from openmanus_rl.serving.server import serve as serve_until_told

    quiet_libraries()
    print(f"loading {subject.model}", file=sys.stderr)
    try:
        with mistakes():
            chosen_device, chosen_dtype = choose(device, dtype)
            settings = EngineSettings(
                chosen_dtype, chosen_device, max_model_len, kv_cache_gb, max_num_seqs,
                trust_remote_code=trust_remote_code,
            )  # fmt: skip
            serve_until_told(
                subject.model, shown, host=host, port=port, key=api_key or None, open_to_all=no_auth, engine=engine,
                settings=settings, limits=Limits(max_body, max_requests, max_tokens), grace=grace,
            )  # fmt: skip
    except EngineLostError as error:
        exits.tell_error(error)
        raise SystemExit(exits.FAILED) from None


def served_name(given: str, run: object = None) -> str:
    """What clients call a model that was not given a name.

    >>> served_name("runs/default/checkpoints/step_000040", "runs/default"), served_name("Qwen/Qwen2.5-0.5B-Instruct")
    ('default', 'Qwen/Qwen2.5-0.5B-Instruct')
    """
    from pathlib import Path

    from openmanus_rl.config.models import exists, local_path

    if run is not None:
        return Path(str(run)).name
    path = local_path(given)
    return path.resolve().name if exists(path) else given
