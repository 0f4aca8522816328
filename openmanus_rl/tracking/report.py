"""`RUN/report.html`: a run on one page that needs nothing else, written anew at every validation and at the end."""

from __future__ import annotations

import os
import platform
import re
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from openmanus_rl import __version__
from openmanus_rl.config.changes import changed_keys
from openmanus_rl.data.durable import write_whole
from openmanus_rl.tracking import history
from openmanus_rl.tracking.charts import Series, line_chart
from openmanus_rl.tracking.episodes import chosen_episodes
from openmanus_rl.tracking.metrics_file import read_metrics

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from openmanus_rl.config.schema import Config
    from openmanus_rl.data.rate import Rate
    from openmanus_rl.tracking.history import Line

# Metrics, title, form: several metrics share a picture.
SMALL: tuple[tuple[tuple[str, ...], str, Callable[[float], str]], ...] = (
    (("reward",), "Reward", lambda v: f"{v:.3g}"),
    (("actor/kl_loss",), "KL to the reference", lambda v: f"{v:.2g}"),
    (("kl_in_reward",), "KL in the reward", lambda v: f"{v:.2g}"),
    (("actor/entropy",), "Entropy", lambda v: f"{v:.3g}"),
    (("actor/clip_frac",), "Clipped ratios", lambda v: f"{100 * v:.3g} %"),
    (("actor/policy_loss",), "Policy loss", lambda v: f"{v:.2g}"),
    (("actor/grad_norm", "critic/grad_norm"), "Gradient norm", lambda v: f"{v:.3g}"),
    (("critic/value_loss",), "Value loss", lambda v: f"{v:.3g}"),
    (("explained_variance",), "Explained variance", lambda v: f"{v:.2g}"),
    (("episode_steps",), "Steps an episode", lambda v: f"{v:.3g}"),
    (("invalid_actions", "zero_spread_groups"), "Invalid actions, zero-spread groups", lambda v: f"{100 * v:.3g} %"),
    (("gap/mean",), "Gap of log-probs", lambda v: f"{v:.1e}"),
    (("tokens_per_second/rollout", "tokens_per_second/train"), "Tokens a second", lambda v: f"{v:,.0f}"),
)
STYLES = ("a", "b", "c")


def write_report(config: Config, directory: Path, command: str = "") -> Path:
    """Write the page, whole or not at all."""
    path = directory / "report.html"
    write_whole(path, render(config, directory, command).encode())
    return path


def render(config: Config, directory: Path, command: str = "") -> str:
    """The page as text."""
    lines = read_metrics(directory / "metrics.jsonl")
    seconds = history.stage_seconds(lines)
    page: str = _template().render(
        config=config,
        done=max((int(line["step"]) for line in lines), default=0),
        total=config.trainer.total_training_steps,
        seconds=seconds,
        all_seconds=sum(seconds.values()),
        learning_curve=Markup(_learning_curve(lines)),
        small=[(title, names, Markup(picture)) for title, names, picture in _small_multiples(lines)],
        moments=_moments(lines),
        kinds=_by_task_type(lines),
        episodes=chosen_episodes(directory / "trajectories"),
        command=without_folders(command),
        changes=[(key, without_folders(value)) for key, value in changed_keys(config)],
        machine=machine(),
    )
    return page


@cache
def _template() -> Any:
    environment = Environment(
        loader=PackageLoader("openmanus_rl.tracking", "templates"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {"rate": _rate, "clock": clock}
    return environment.get_template("report.html.jinja")


# --- pictures -----------------------------------------------------------------------------------------------


def _learning_curve(lines: list[Line]) -> str:
    """Success of training and of both validation splits, with their intervals."""
    series = []
    sources = (
        ("training", "", "c"),
        ("valid_seen", "val/valid_seen/", "a"),
        ("valid_unseen", "val/valid_unseen/", "b"),
    )
    for name, prefix, style in sources:
        rates = [(line["step"], rate) for line in lines if (rate := history.success_rate(line, prefix)) is not None]
        points = [(step, rate.value) for step, rate in rates]
        series.append(Series(name, points, style, [(step, *rate.interval) for step, rate in rates], style != "c"))
    return line_chart(series, "success by step", lambda v: f"{100 * v:.0f} %", y_limits=(0.0, 1.0))


def _small_multiples(lines: list[Line]) -> list[tuple[str, list[tuple[str, str]], str]]:
    """Title, names with their styles where there are several, picture."""
    pictures = []
    for names, title, form in SMALL:
        curves = [(name, points) for name in names if (points := history.curve(lines, name))]
        series = [Series(name, points, style) for (name, points), style in zip(curves, STYLES, strict=False)]
        if names == ("reward",) and series:
            series = [Series("reward", series[0].points, "a", _around(lines))]
        if picture := line_chart(series, title, form, (340, 150)):
            legend = [(_short(one.name, names), one.style) for one in series] if len(series) > 1 else []
            pictures.append((title, legend, picture))
    return pictures


def _short(name: str, names: tuple[str, ...]) -> str:
    """The part of a metric's name in which it differs from the others: actor of actor/grad_norm, critic/grad_norm."""
    if all("/" in other for other in names):
        first, _, last = name.partition("/")
        return last if len({other.partition("/")[0] for other in names}) == 1 else first
    return name.replace("_", " ")


def _around(lines: list[Line]) -> list[tuple[float, float, float]]:
    """One standard deviation on either side of the mean reward."""
    spread = dict(history.curve(lines, "reward_std"))
    return [(s, mean - spread[s], mean + spread[s]) for s, mean in history.curve(lines, "reward") if s in spread]


# --- tables -------------------------------------------------------------------------------------------------


def _moments(lines: list[Line]) -> list[dict[str, Any]]:
    """The first, the best and the last validation."""
    validated = history.validations(lines)
    if not validated:
        return []
    chosen = (("first", validated[0]), ("best", history.best_validation(lines)), ("last", validated[-1]))
    return [
        {
            "name": name,
            "step": line["step"],
            "rates": [history.success_rate(line, f"val/{split}/") for split in history.SPLITS],
            "both": history.validation_rate(line),
        }
        for name, line in chosen
        if line is not None
    ]


def _by_task_type(lines: list[Line]) -> list[tuple[str, list[Rate | None]]]:
    """Success of each task type at the same three moments, over both splits."""
    validated, best = history.validations(lines), history.best_validation(lines)
    if best is None:
        return []
    moments, kinds = (validated[0], best, validated[-1]), history.task_types(lines)
    if len(kinds) < 2:  # it says the same as the table above
        return []
    return [(kind, [history.validation_rate(line, kind) for line in moments]) for kind in kinds]


def machine() -> list[tuple[str, str]]:
    """What the numbers were made on, without a name or a path."""
    return [
        ("cores", str(os.cpu_count())),
        ("system", f"{platform.system()} {platform.machine()}"),
        ("Python", platform.python_version()),
        ("torch", metadata.version("torch")),
        ("transformers", metadata.version("transformers")),
        ("openmanus-rl", __version__),
    ]


def without_folders(text: str) -> str:
    """Absolute paths cut down to their last part: a page that is passed on says nothing of its writer's disk.

    >>> without_folders("model.path=/home/me/models/small lr=1e-4 a/b")
    'model.path=…/small lr=1e-4 a/b'
    """
    return re.sub(r"(?<![^\s='\"\[,])~?/(?:[^\s'\",\]/]+/)*([^\s'\",\]/]*)", r"…/\1", text)


def _rate(rate: Rate | None) -> str:
    if rate is None:
        return "-"
    low, high = rate.interval
    return f"{100 * rate.value:.1f} % ({100 * low:.0f} to {100 * high:.0f}), {rate.count} of {rate.total}"


def clock(seconds: float) -> str:
    """Seconds as people write them.

    >>> clock(42.4), clock(200), clock(8000)
    ('42 s', '3 min 20 s', '2 h 13 min')
    """
    whole = round(seconds)
    if whole < 100:
        return f"{whole} s"
    if whole < 6000:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
