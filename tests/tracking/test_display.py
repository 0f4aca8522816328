"""What a run shows: lines, a panel on a terminal, and neither when they fail."""

import io
import sys
import time
from typing import Any

import pytest
from rich.console import Console

from openmanus_rl.tracking import display
from openmanus_rl.tracking.console import PlainDisplay
from openmanus_rl.tracking.curve import ASCII_BLOCKS, learning_curve
from openmanus_rl.tracking.display import Guarded, can_be_live, make_display
from openmanus_rl.tracking.live import LiveDisplay

METRICS = {
    "success": 0.25, "val/valid_seen/success": 0.5, "val/valid_unseen/success": 0.125, "reward": 2.5,
    "reward/env": 2.75, "reward/format": -0.25, "actor/kl_loss": 0.0125, "actor/entropy": 0.5, "actor/clip_frac": 0.02,
    "gap/mean": 3e-7, "tokens_per_second/rollout": 12345.0, "tokens_per_second/train": 678.0, "time/collect": 3.25,
    "time/update_actor": 1.5, "time/step": 5.0,
}  # fmt: skip


def live(width: int = 100) -> tuple[LiveDisplay, io.StringIO]:
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, width=width, height=40, color_system=None)
    return LiveDisplay("a run", console), shown


def panel(screen: LiveDisplay) -> str:
    with screen.console.capture() as captured:
        screen.console.print(screen.panel())
    return captured.get()


def test_the_panel_shows_the_run_and_what_it_is_doing() -> None:
    screen, shown = live()
    screen.progress("warm start", 30, 60, "loss 0.500")
    assert "30/60, loss 0.500" in panel(screen)
    screen.begin(1, 8, [{"step": 0, "success": None}, {"step": 1, "success": 0.0}])
    screen.progress("collect", 12, 32, "3 won")
    screen.step(2, METRICS)
    drawn = panel(screen)
    for part in (
        "a run", "step 2/8", "left", "collect", "12/32, 3 won", "25%  ▁▃", "50.0%  ▅", "12.5%  ▂", "KL 0.0125",
        "entropy 0.500", "clipped 2.0%", "gap 3e-07", "rollout tok/s 12,345", "train tok/s 678",
        "env +2.75, format -0.25", "collect 3.2, update actor 1.5",
    ):  # fmt: skip
        assert part in drawn
    screen.step(3, {"success": 0.5})
    assert "50.0%  ▅" in panel(screen), "a validation stays until the next one"
    screen.warn("SIGINT: finishing this step")
    assert "SIGINT: finishing this step" in panel(screen)
    screen.say("a line [bold]of[/bold] text")
    screen.close()
    assert "a line [bold]of[/bold] text" in shown.getvalue()
    assert shown.getvalue().endswith("\x1b[?25h"), "the cursor is back"


def test_what_comes_before_the_steps_is_told_every_minute_and_with_its_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    lines = PlainDisplay()

    def tell(stage: str, done: int, total: int, note: str = "") -> str:
        lines.progress(stage, done, total, note)
        return capsys.readouterr().out

    assert tell("demonstrations", 0, 10_000) == ""
    now[0] += 59.0
    assert tell("demonstrations", 2_000, 10_000) == "", "less than a minute"
    now[0] += 1.0
    assert tell("demonstrations", 2_000, 10_000) == "demonstrations 2,000/10,000  4 min left\n"
    assert tell("demonstrations", 2_000, 10_000) == "", "told already"
    assert tell("warm start", 1, 50, "loss 3.000") == ""
    now[0] += 18.0
    assert tell("warm start", 10, 50, "loss 2.000") == "warm start 10/50  loss 2.000  80 s left\n"
    now[0] += 60.0
    assert tell("warm start", 11, 50, "loss 1.900") == "warm start 11/50  loss 1.900  5 min left\n"
    assert tell("warm start", 50, 50, "loss 1.000") == "warm start 50/50  loss 1.000\n"
    assert tell("collect", 64, 128, "3 won") == "", "a step has a line of its own"

    screen, _ = live()
    screen.progress("demonstrations", 0, 10_000)
    assert "left" not in panel(screen), "nothing is known yet"
    now[0] += 60.0
    screen.progress("demonstrations", 2_000, 10_000)
    assert "2000/10000, 60 s, 4 min left" in panel(screen)
    screen.close()


def test_a_stage_says_what_is_left_once_it_knows_how_much_there_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    screen, _ = live()
    screen.progress("collect", 0, 0, "")  # as a step's clock says it
    now[0] += 500.0  # of which the episodes know nothing
    for total in (128, 128, 64):  # a second round has as many episodes, a third fewer
        screen.progress("collect", 0, total, "")
        assert "left" not in panel(screen), "nothing is known yet"
        now[0] += 60.0
        screen.progress("collect", total // 4, total, "")
        assert f"{total // 4}/{total}, 60 s, 3 min left" in panel(screen)
    screen.close()

    lines = PlainDisplay()
    for total in (0, 100, 100):
        lines.progress("demonstrations", 0, total)
    now[0] += 60.0
    lines.progress("demonstrations", 25, 100)
    lines.progress("demonstrations", 0, 100)
    now[0] += 120.0
    lines.progress("demonstrations", 25, 100)
    told = capsys.readouterr().out.splitlines()
    assert told == ["demonstrations 25/100  3 min left", "demonstrations 25/100  6 min left"]


@pytest.mark.parametrize(
    ("measured", "shown"),
    [
        ({"actor/kl_loss": 0.5}, "KL 0.5000"),
        ({"kl_in_reward": 0.25}, "KL in reward 0.2500"),
        ({}, "KL of update 0.1250"),
    ],
)
def test_without_a_reference_the_kl_is_that_of_the_update(
    measured: dict[str, float], shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = {"actor/approx_kl": 0.125} | measured
    PlainDisplay().step(1, metrics)
    screen, _ = live()
    screen.step(1, metrics)
    for text in (capsys.readouterr().out, panel(screen)):
        assert shown in text
        assert text.count("KL") == 1
    screen.close()


def test_what_is_left_is_told_at_the_pace_since_training_went_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    lines = PlainDisplay()
    lines.begin(4, 10, [])
    now[0] += 240.0
    lines.step(6, {})  # two steps in four minutes, four to go
    lines.step(10, {})
    assert capsys.readouterr().out == "step 6/10  8 min left\nstep 10/10\n"
    screen, _ = live()
    screen.begin(4, 10, [])
    assert "left" not in panel(screen), "nothing is known yet"
    now[0] += 240.0
    screen.step(6, {})
    assert "about 8 min left" in panel(screen)
    screen.step(10, {})
    assert "left" not in panel(screen)
    screen.close()


def test_a_run_that_goes_back_is_drawn_without_the_steps_that_are_done_again() -> None:
    screen, _ = live()
    screen.begin(0, 8, [])
    screen.step(1, {"success": 0.0})
    screen.step(2, {"success": 1.0, "gap/mean": 1e-7})
    assert "100%  ▁█" in panel(screen)
    screen.begin(1, 8, [{"step": 1, "success": 0.0}])
    assert "0%  ▁ " in panel(screen)
    assert "gap" not in panel(screen)
    screen.step(2, {"success": 0.5})
    assert "50%  ▁▅" in panel(screen)
    screen.close()


@pytest.mark.parametrize("skipped", [0.0, 2.0])
def test_skipped_updates_are_shown_where_there_are_any(skipped: float, capsys: pytest.CaptureFixture[str]) -> None:
    told = METRICS | {"actor/skipped_steps": skipped, "critic/skipped_steps": skipped / 2}
    PlainDisplay().step(1, told)
    line = capsys.readouterr().out
    screen, _ = live()
    screen.step(1, told)
    for shown in (line, panel(screen)):
        assert ("skipped 2" in shown) == ("critic skipped 1" in shown) == bool(skipped)
        assert "skipped 0" not in shown
    screen.close()


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_the_panel_fits_any_terminal(width: int) -> None:
    screen, _ = live(width)
    screen.begin(0, 8, [])
    screen.step(1, METRICS)
    lines = panel(screen).splitlines()
    assert max(map(len, lines)) <= width
    screen.close()


class Broken(PlainDisplay):
    """Fails at the second step, and again when it is closed."""

    def step(self, step: int, metrics: dict[str, float]) -> None:
        if step == 2:
            raise UnicodeEncodeError("ascii", "▁", 0, 1, "no blocks here")
        super().step(step, metrics)

    def close(self) -> None:
        raise OSError("nor this")


def test_a_display_that_fails_gives_way_to_the_next(capsys: pytest.CaptureFixture[str]) -> None:
    guarded = Guarded(Broken(), PlainDisplay())
    guarded.begin(0, 4, [])
    for step in (1, 2, 3):
        guarded.step(step, {"success": 0.5})
    guarded.close()
    shown = capsys.readouterr()
    assert [line.split("  ")[0] for line in shown.out.splitlines()] == ["step 1/4", "step 2/4", "step 3/4"]
    assert shown.err.count("the display failed (UnicodeEncodeError") == 1
    assert "training goes on" in shown.err


def test_a_pipe_that_nobody_reads_ends_the_lines_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError(f"{len(text)} characters too late")

    monkeypatch.setattr(sys, "stdout", Gone())
    monkeypatch.setattr(sys, "stderr", Gone())
    guarded = Guarded(PlainDisplay())
    for call in (
        lambda: guarded.begin(0, 4, []),
        lambda: guarded.step(1, {}),
        lambda: guarded.warn("x"),
        guarded.close,
    ):
        call()
    assert type(guarded.displays[0]) is display.Silent


def test_what_the_thread_cannot_draw_ends_the_panel_not_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    screen, _ = live()
    guarded = Guarded(screen, PlainDisplay())
    guarded.begin(0, 4, [])
    guarded.step(1, {"success": 0.5, "gap/mean": "not a number"})  # type: ignore[dict-item]
    screen.latest = {"gap/mean": "not a number"}  # type: ignore[dict-item]
    screen.live.refresh()  # as its thread does
    guarded.step(2, {"success": 0.5})
    shown = capsys.readouterr()
    assert "step 2/4  success 50%" in shown.out
    assert "the display failed (ValueError" in shown.err
    assert not screen.live.is_started


@pytest.mark.parametrize(("terminal", "term", "expected"), [
    (True, "xterm-256color", True), (True, "dumb", False), (True, "", False), (False, "xterm", False),
])  # fmt: skip
def test_live_only_where_a_cursor_can_move(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, term: str, expected: bool
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    monkeypatch.setenv("TERM", term)
    assert can_be_live() == expected
    chosen: Any = make_display("a run")
    assert [type(one).__name__ for one in chosen.displays[:-1]] == ["LiveDisplay"] * expected + ["PlainDisplay"]
    nothing: Any = make_display("a run", console=False)
    assert [type(one).__name__ for one in nothing.displays] == ["Silent"]


def test_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    plain = PlainDisplay()
    for step in range(1, 61):
        plain.progress("warm start", step, 60, "loss 0.500")
    plain.progress("collect", 3, 4)
    plain.begin(0, 4, [])
    plain.step(4, METRICS)
    assert capsys.readouterr().out.splitlines() == [
        *(f"warm start {step}/60  loss 0.500" for step in (12, 24, 36, 48, 60)),
        (
            "step 4/4  success 25%  reward 2.50 (env +2.75, format -0.25)  KL 0.0125  entropy 0.500  clip 0.020  "
            "gap 3e-07  rollout tok/s 12,345  train tok/s 678  valid_seen 50.0%  valid_unseen 12.5%"
        ),
    ]


@pytest.mark.parametrize("count", [1, 2, 9, 31, 33, 500])
def test_a_learning_curve_fits_80_columns(count: int) -> None:
    points = [(5 * k, k / count) for k in range(count)]
    lines = learning_curve(points)
    assert max(map(len, lines)) <= 79
    assert len(lines) == 12
    assert lines[-1].split()[0] == "0"
    plain = learning_curve(points, blocks=ASCII_BLOCKS)
    assert "".join(plain).isascii()
    assert [len(line) for line in plain] == [len(line) for line in lines]
