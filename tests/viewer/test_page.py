"""The page in a real browser: what it shows, and what it does when it is used."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from openmanus_rl.data.credit import read_credits
from openmanus_rl.data.jsonl import read_trajectories
from openmanus_rl.tracking.metrics_file import MetricsFile, read_metrics
from openmanus_rl.tracking.trajectories import credit_path
from openmanus_rl.viewer.references import find_references
from openmanus_rl.viewer.report import write_report
from openmanus_rl.viewer.run_files import RunFiles
from tests.viewer.conftest import serving
from tests.viewer.runs import HOSTILE, in_progress, make_hostile_run, make_large_run, make_run, training_metrics

Tab = Callable[..., Any]
PHONE = {"width": 390, "height": 844}


def expect(locator: Any) -> Any:
    from playwright.sync_api import expect as expected

    return expected(locator)


def background(page: Any, selector: str) -> str:
    return str(page.locator(selector).first.evaluate("node => getComputedStyle(node).backgroundColor"))


def has_no_sideways_scroll(page: Any) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"))


# --- overview ---------------------------------------------------------------------------------------------------


def test_the_overview_shows_the_run(tab: Tab, shown_run: Path, address: str) -> None:
    references = find_references(shown_run, RunFiles(shown_run).config)  # type: ignore[arg-type]
    page = tab(address)
    expect(page.locator("h1")).to_contain_text("first")
    expect(page.locator(".tile").first).to_contain_text("6 / 6")
    last = read_metrics(shown_run / "metrics.jsonl")[-1]
    count = round(sum(last[f"val/{split}/success"] * 4 for split in ("valid_seen", "valid_unseen")))
    expect(page.locator(".tile", has_text="Last validation")).to_contain_text(f"step 6, {count} of 8 won")
    success = page.locator("section", has=page.locator("#h-success"))
    assert success.locator("polygon.band").count() == 3
    expert = references["expert"]
    assert expert["count"] > references["random"]["count"]
    expect(success.locator(".key")).to_contain_text(f"expert ({expert['value']:.0%}".replace("%", " %"))
    expect(success.locator("text.reference-name", has_text="random")).to_be_visible()
    assert page.locator("[data-sign]").count() == 7
    expect(page.locator("[data-sign=entropy] .state")).to_contain_text("fine")
    expect(page.locator(".type")).to_contain_text("grid")
    assert page.locator("rect.part.s0").count() == 6  # the term that costs something, at each step
    expect(page.locator(".command")).to_have_text("openmanus-rl train trainer.default_local_dir=…/first")
    expect(page.locator("section", has=page.locator("#h-made"))).to_contain_text("algorithm.gamma")


def test_a_chart_reads_out_its_values_by_pointer_and_by_key(tab: Tab, shown_run: Path, address: str) -> None:
    page = tab(address)
    chart = page.locator("#h-success + figure svg[role=img]")
    box = chart.bounding_box()
    page.mouse.move(box["x"] + box["width"] - 16, box["y"] + 100)
    line = read_metrics(shown_run / "metrics.jsonl")[-1]
    readout = page.locator("#h-success + figure .readout")
    expect(readout).to_contain_text("step 6")
    expect(readout).to_contain_text(f"training {100 * line['success']:.0f} %")
    page.mouse.move(5, 5)
    expect(readout).to_be_hidden()
    chart.focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    expect(readout).to_contain_text("step 4")


def test_what_is_off_is_said_in_plain_words(tab: Tab, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=1, skill=0.0)
    metrics = MetricsFile(run / "metrics.jsonl")
    for step in range(1, 7):
        sick = {"zero_spread_groups": 1.0, "success": 0.0, "episodes": 8.0, "actor/entropy": 1.0 if step < 6 else 0.0}
        metrics.write(step, training_metrics(step) | sick | {"gap/mean": 0.03, "invalid_actions": 0.7, "reward": 0.0})
    with serving(run) as at:
        page = tab(at)
        expect(page.locator("[data-sign=zero_spread]")).to_contain_text("tasks are too hard")
        expect(page.locator("[data-sign=zero_spread] .state")).to_contain_text("off")
        expect(page.locator("[data-sign=invalid]")).to_contain_text("data.max_response_length")
        expect(page.locator("[data-sign=gap] .state")).to_contain_text("watch")
        expect(page.locator("[data-sign=clip] .state")).to_contain_text("fine")
        expect(page.locator("[data-sign=truncated] .state")).to_contain_text("not recorded")
        assert page.locator(".advice").count() == 3


def test_a_run_that_goes_on_is_followed(tab: Tab, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "trainer.total_training_steps=9", steps=2)
    with in_progress(run), serving(run) as at:
        page = tab(at)
        expect(page.locator(".tile").first).to_contain_text("2 / 9")
        expect(page.locator(".chip")).to_have_text("live")
        line = training_metrics(3) | {"success": 0.5, "episodes": 4.0, "reward": 0.5}
        MetricsFile(run / "metrics.jsonl", resume_after=2).write(3, line)
        expect(page.locator(".tile").first).to_contain_text("3 / 9")
        page.locator("nav >> text=Trajectories").click()
        expect(page.locator(".count")).to_have_text("32 of 32 episodes")
        source = run / "trajectories" / "step_000002.jsonl"
        (run / "trajectories" / "step_000003.jsonl").write_bytes(source.read_bytes())
        expect(page.locator(".count")).to_have_text("40 of 40 episodes")


def test_a_server_that_is_gone_is_said(tab: Tab, shown_run: Path) -> None:
    with serving(shown_run, leaves_tabs=True) as at:
        page = tab(at, may_fail=True)
    expect(page.locator("#connection")).to_contain_text("does not answer")
    expect(page.locator("h1")).to_contain_text("first")


# --- trajectories -----------------------------------------------------------------------------------------------


def rows_of(run: Path) -> list[dict[str, Any]]:
    return RunFiles(run).rows()


def test_filters_leave_what_they_say(tab: Tab, shown_run: Path, address: str) -> None:
    page = tab(f"{address}/#/0/episodes")
    rows, count = rows_of(shown_run), page.locator(".count")
    expect(count).to_have_text(f"{len(rows)} of {len(rows)} episodes")

    def left(test: Callable[[dict[str, Any]], bool]) -> str:
        found = sum(test(row) for row in rows)
        assert 0 < found < len(rows)
        return f"{found} of {len(rows)} episodes"

    page.get_by_label("Outcome").select_option("won")
    expect(count).to_have_text(left(lambda row: row["outcome"] == "won"))
    assert set(page.locator(".line-row .outcome").all_inner_texts()) == {"✓ won"}
    page.get_by_label("Step ≥").fill("4")
    expect(count).to_have_text(left(lambda row: row["outcome"] == "won" and row["step"] >= 4))
    page.get_by_text("Clear filters").click()
    expect(count).to_have_text(f"{len(rows)} of {len(rows)} episodes")
    page.get_by_label("Task", exact=True).fill("UNSEEN/")
    expect(count).to_have_text(left(lambda row: "unseen/" in row["task"]))
    page.get_by_text("Clear filters").click()
    page.get_by_label("Reward ≥").fill("0.5")
    expect(count).to_have_text(left(lambda row: row["reward"] >= 0.5))
    page.get_by_label("From").select_option("val")
    expect(count).to_have_text(left(lambda row: row["reward"] >= 0.5 and row["kind"] == "val"))
    page.get_by_label("Task", exact=True).fill("no such task")
    expect(count).to_have_text(f"0 of {len(rows)} episodes")
    expect(page.locator(".detail")).to_contain_text("Nothing matches")


def interesting(run: Path) -> tuple[dict[str, Any], Any, Any]:
    """A row whose episode has different advantages in its turns, its episode, and its credit."""
    files = RunFiles(run)
    for row in files.rows():
        if row["kind"] == "step":
            credit = files.credits_beside(row["id"])[row["group"], row["traj"]]
            if len(set(credit.estimators["gigpo"].tolist())) > 3 and credit.estimators["gigpo"].min() < 0:
                return row, files.trajectory(row["id"]), credit
    raise AssertionError("no episode with different advantages")


def test_tokens_have_their_credit_and_the_environment_has_none(tab: Tab, shown_run: Path, address: str) -> None:
    row, trajectory, credit = interesting(shown_run)
    page = tab(f"{address}/#/0/episodes/{row['id']}")
    tokens = page.locator(".tk")
    expect(tokens).to_have_count(credit.n_tokens)
    first_turn = page.locator(".turn").first
    expect(first_turn.locator(".seen")).to_have_text(trajectory.turns[0].observation)
    assert "".join(first_turn.locator(".tk").all_inner_texts()) == f"{trajectory.turns[0].action}<|im_end|>"
    card = page.locator(".token-card")
    tokens.nth(1).hover()
    advantage = float(credit.estimators["gigpo"][1])
    expect(card.locator("tr.shown")).to_contain_text(f"{abs(advantage):.3g}")
    expect(card.locator("tr.shown")).to_contain_text("\u2212" if advantage < 0 else "+")
    for name, value in (("log-prob", credit.columns["old_logprobs"][1]),):
        expect(card.locator("tr", has=page.locator(f"th:text-is('{name}')"))).to_contain_text(f"{abs(value):.4g}")
    for text in (
        "reference log-prob",
        "no reference in this run",
        "ratio",
        "clipped",
        "no critic",
        "reward",
        "return",
        "mask",
    ):
        expect(card).to_contain_text(text)
    first_turn.locator(".seen").hover()
    expect(card).to_contain_text("mask")
    expect(card).to_contain_text("no reward, value or advantage")
    signs = tokens.evaluate_all("nodes => nodes.map(n => n.classList.contains('plus') - n.classList.contains('minus'))")
    assert signs == [int(value > 0) - int(value < 0) for value in credit.estimators["gigpo"]]
    assert background(page, ".turn .seen") == "rgba(0, 0, 0, 0)"
    assert page.locator(".tk.minus").first.evaluate("n => getComputedStyle(n).borderBottomStyle") == "dashed"


def test_the_switch_recolours_the_same_tokens(tab: Tab, shown_run: Path, address: str) -> None:
    row, _, credit = interesting(shown_run)
    page = tab(f"{address}/#/0/episodes/{row['id']}")
    page.locator(".tk").first.wait_for()
    shown = {}
    for name in ("gigpo", "grpo", "gae"):
        page.locator(f"[data-estimator={name}]").click()
        expect(page.locator(f"[data-estimator={name}]")).to_have_attribute("aria-checked", "true")
        signs = page.locator(".tk").evaluate_all(
            "nodes => nodes.map(n => n.classList.contains('plus') - n.classList.contains('minus'))"
        )
        assert signs == [int(value > 0) - int(value < 0) for value in credit.estimators[name]]
        shown[name] = [background(page, f".tk >> nth={k}") for k in range(page.locator(".tk").count())]
    assert len(set(shown["grpo"])) == 1, "GRPO gives a whole episode one advantage"
    assert len(set(shown["gigpo"])) > 2
    expect(page.locator("[data-estimator=gae]")).to_have_text("GAE (values 0)")
    expect(page.locator("[data-estimator=gigpo]")).to_contain_text("this run")


def test_with_a_critic_values_are_shown_and_gae_is_gae(tab: Tab, other_run: Path, address: str) -> None:
    row, _, credit = interesting(other_run)
    page = tab(f"{address}/#/1/episodes/{row['id']}")
    expect(page.locator("[data-estimator=gae]")).to_have_text("GAE")
    page.locator(".tk").first.hover()
    value = page.locator(".token-card tr", has=page.locator("th:text-is('value')"))
    expect(value).to_contain_text(f"{credit.columns['values'][0]:.3g}")


def test_members_of_a_group_stand_side_by_side_and_anchors_lead_to_each_other(
    tab: Tab, shown_run: Path, address: str
) -> None:
    row, _, credit = interesting(shown_run)
    page = tab(f"{address}/#/0/episodes/{row['id']}")
    members = [other for other in rows_of(shown_run) if (other["group"], other["step"]) == (row["group"], row["step"])]
    assert len(members) == 4
    page.get_by_role("button", name="Group side by side").click()
    expect(page.locator(".column")).to_have_count(4)
    tops = [page.locator(".column").nth(k).bounding_box()["y"] for k in range(2)]
    assert tops[0] == tops[1]
    assert page.locator(".column .outcome").all_inner_texts()[0] in ("✓ won", "✕ lost", "◷ out of steps")
    chosen = page.locator(".column.chosen")
    place = next(k for k, size in enumerate(credit.step_group_sizes) if size > 1)
    turn = int(credit.turns[place])
    anchor = chosen.locator(f"[data-turn='{row['id']}/{turn}'] .anchor")
    expect(anchor.locator("summary")).to_contain_text(f"compared with {credit.step_group_sizes[place] - 1} step")
    anchor.locator("summary").click()
    expect(page.locator(".turn.same").first).to_be_visible()
    link = anchor.locator("a.peer").first
    target = link.get_attribute("href").split("/episodes/")[1].replace("%3A", ":")
    link.click()
    expect(page.locator(".turn.aim")).to_have_attribute("data-turn", target)


def test_groups_and_peers_are_those_of_the_recorded_anchors(shown_run: Path) -> None:
    """What the page links is what GiGPO compared: equal anchors of one group, no others."""
    from openmanus_rl.viewer.detail import episode_detail

    files = RunFiles(shown_run)
    row, trajectory, _ = interesting(shown_run)
    path = shown_run / "trajectories" / f"{row['id'].split(':')[0]}.jsonl"
    mates = [t for t in read_trajectories(path) if t.group_id == row["group"]]
    for number, turn in enumerate(episode_detail(files, row["id"], None)["turns"]):
        wanted = {
            (mate.traj_id, k)
            for mate in mates for k, other in enumerate(mate.turns)
            if other.anchor == trajectory.turns[number].anchor
        } - {(row["traj"], number)}  # fmt: skip
        assert {(peer["traj"], peer["turn"]) for peer in turn["anchor"]["peers"]} == wanted
        assert turn["anchor"]["size"] == len(wanted) + 1
    assert len(list(read_credits(credit_path(path)))) == 8


def test_a_validation_and_an_old_run_say_what_is_missing(tab: Tab, tmp_path: Path) -> None:
    run = make_run(tmp_path / "old", steps=1)
    for name in ("run.json", "tokenizer.json", "trajectories/step_000001.credit.jsonl"):
        (run / name).unlink()
    with (run / "trajectories" / "step_000001.jsonl").open("a") as file:
        file.write("{not json\n")
    with serving(run) as at:
        page = tab(at)
        expect(page.locator(".note").first).to_contain_text("no run.json")
        page.goto(f"{at}/#/0/episodes/step_000001:0")
        expect(page.locator(".episode .note").first).to_contain_text("no tokenizer.json")
        expect(page.locator(".episode .note").nth(1)).to_contain_text("kept no credit")
        expect(page.locator("[data-estimator]")).to_have_text("Log-prob")
        expect(page.locator(".side")).to_contain_text("step_000001.jsonl: 1 line is no episode")
        page.goto(f"{at}/#/0/episodes/val_000001:0")
        expect(page.locator(".episode")).to_contain_text("Validation episodes are not trained on")
        page.goto(f"{at}/#/0/episodes/step_000099:0")
        expect(page.locator(".detail .note.bad")).to_contain_text("cannot be shown")


def test_two_thousand_episodes_of_fifty_turns(tab: Tab, tmp_path: Path) -> None:
    with serving(make_large_run(tmp_path / "large")) as at:
        page = tab(f"{at}/#/0/episodes")
        expect(page.locator(".count")).to_have_text("2,000 of 2,000 episodes")
        assert 5 < page.locator(".line-row").count() < 60
        page.locator(".long").focus()
        page.keyboard.press("End")
        expect(page.locator(".line-row[aria-selected=true]")).to_have_attribute("aria-posinset", "2000")
        assert page.locator(".line-row").count() < 60
        expect(page.locator(".turn")).to_have_count(50)
        page.get_by_label("Outcome").select_option("won")
        expect(page.locator(".count")).to_have_text("200 of 2,000 episodes")
        page.get_by_label("Task type").select_option("kind_0")
        expect(page.locator(".count")).to_have_text("80 of 2,000 episodes")
        assert page.locator(".line-row").count() < 60


# --- compare ----------------------------------------------------------------------------------------------------


def test_runs_are_compared(tab: Tab, shown_run: Path, other_run: Path, address: str) -> None:
    page = tab(f"{address}/#/compare")
    assert page.locator("#h-curves").count() == 1
    expect(page.locator(".key").first).to_contain_text("second")
    assert page.locator(".chart polyline.line").count() == 2
    page.locator("[data-curve=reward]").click()
    expect(page.locator(".chart polygon.band")).to_have_count(0)
    changed = {
        row.locator("th").inner_text(): row.locator("td").all_inner_texts()
        for row in page.locator(".diff tbody tr").all()
    }
    assert changed["algorithm.gamma"] == ["0.95", "0.9"]
    assert "algorithm.lam" not in changed
    mine = {t.task_id: t for t in read_trajectories(shown_run / "trajectories" / "val_000006.jsonl")}
    theirs = {t.task_id: t for t in read_trajectories(other_run / "trajectories" / "val_000006.jsonl")}
    first = page.locator(".line-row").first
    task = first.locator(".task").inner_text()
    actions = [[turn.action for turn in played.turns] for played in (mine[task], theirs[task])]
    shared = next((k for k, (a, b) in enumerate(zip(*actions, strict=False)) if a != b), min(map(len, actions)))
    expect(first).to_contain_text(f"differs at turn {shared + 1}")
    first.click()
    parting = page.locator(".parting")
    expect(parting).to_have_text(f"Turn {shared + 1}: the first different action")
    after = parting.locator("xpath=following-sibling::div[1]")
    expect(after).to_have_attribute("data-turn", str(shared))
    shown = [half.inner_text() for half in after.locator(".half .wrote, .half.none").all()]
    assert shown[0] != shown[1]
    assert page.locator(".together.alike").count() == shared


# --- for everybody ----------------------------------------------------------------------------------------------


def test_everything_works_by_keyboard(tab: Tab, shown_run: Path, address: str) -> None:
    page = tab(address)
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    expect(page.locator(".skip")).to_be_in_viewport()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    expect(page.locator("h1")).to_contain_text("first")
    page.goto(f"{address}/#/0/episodes")
    page.locator(".line-row").first.wait_for()
    page.locator(".long").focus()
    page.keyboard.press("ArrowDown")
    expect(page.locator(".line-row[aria-selected=true]")).to_have_attribute("aria-posinset", "1")
    page.keyboard.press("ArrowDown")
    expect(page.locator(".line-row[aria-selected=true]")).to_have_attribute("aria-posinset", "2")
    page.goto(f"{address}/#/0/episodes/{interesting(shown_run)[0]['id']}")
    page.locator(".tk").first.wait_for()
    page.locator("[data-estimator=gigpo]").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("[data-estimator=gae]")).to_be_focused()
    expect(page.locator("[data-estimator=gae]")).to_have_attribute("aria-checked", "true")
    outline = page.locator("[data-estimator=gae]").evaluate("node => getComputedStyle(node).outlineStyle")
    assert outline == "solid"
    page.locator(".tokens").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".token-card")).to_be_visible()
    assert page.locator(".tk.here").get_attribute("data-k") == "1"
    page.keyboard.press("Escape")
    expect(page.locator(".token-card")).to_be_hidden()


def test_light_and_dark(tab: Tab, address: str) -> None:
    def ground(page: Any) -> int:
        channels = re.findall(r"\d+", background(page, "body"))
        return sum(map(int, channels[:3]))

    light, dark = tab(address, color_scheme="light"), tab(address, color_scheme="dark")
    assert ground(light) > 600 > 150 > ground(dark)
    button = light.locator("#theme")
    button.click()
    expect(button).to_have_attribute("aria-label", "Colours: light")
    button.click()
    expect(button).to_have_attribute("aria-label", "Colours: dark")
    assert ground(light) < 150
    light.reload()
    light.locator("h1").wait_for()
    assert ground(light) < 150, "the choice is remembered"


@pytest.mark.parametrize("where", ["#/0/overview", "#/0/episodes", "episode", "group", "#/compare"])
def test_at_phone_width_nothing_sticks_out(tab: Tab, shown_run: Path, address: str, where: str) -> None:
    episode = f"#/0/episodes/{interesting(shown_run)[0]['id']}"
    page = tab(f"{address}/{episode if where in ('episode', 'group') else where}", viewport=PHONE, has_touch=True)
    if where == "group":
        page.get_by_role("button", name="Group side by side").tap()
        expect(page.locator(".column")).to_have_count(4)
    if where == "#/compare":
        page.locator(".line-row").first.tap()
        page.locator(".parting").wait_for()
    if where == "episode":
        page.locator(".tk").first.tap()
        expect(page.locator(".token-card")).to_be_in_viewport(ratio=1)
        page.locator(".back").tap()
        expect(page.locator(".long")).to_be_visible()
    assert has_no_sideways_scroll(page)


def test_hostile_texts_are_shown_and_not_obeyed(tab: Tab, tmp_path: Path) -> None:
    run = make_hostile_run(tmp_path / "hostile")
    report = write_report([RunFiles(run)], tmp_path / "report.html")
    with serving(run) as at:
        for start in (at, report.as_uri()):
            page = tab(f"{start}#/0/overview")
            expect(page.locator("main")).to_contain_text("<img src=x onerror=")
            page.goto(f"{start}#/0/episodes/step_000001:0")
            expect(page.locator(".seen").first).to_contain_text("</script><script>window.hacked=1</script>")
            expect(page.locator(".seen").first).to_contain_text("\\u202e\\u001b[31m")
            page.locator(".tk").first.hover()
            assert page.evaluate("window.hacked") is None
            assert page.locator("main img, main script").count() == 0
            assert "\u202e" not in page.locator("main").inner_text()
    assert HOSTILE not in report.read_text(encoding="utf-8")


# --- the report -------------------------------------------------------------------------------------------------


def test_the_report_is_the_same_page_from_disk(tab: Tab, shown_run: Path, other_run: Path, tmp_path: Path) -> None:
    report = write_report([RunFiles(shown_run), RunFiles(other_run)], tmp_path / "report.html")
    page = tab(report.as_uri(), offline=True)
    expect(page.locator("h1")).to_contain_text("first")
    assert page.locator("#h-success + figure polygon.band").count() == 3
    page.locator("nav >> text=Trajectories").click()
    rows = rows_of(shown_run)
    expect(page.locator(".count")).to_contain_text("48 of 48 episodes")
    expect(page.locator(".side")).to_contain_text("A report holds some of the episodes")
    assert len(rows) > 48
    page.get_by_label("From").select_option("step")
    page.locator(".line-row").first.click()
    page.locator(".tk").first.hover()
    expect(page.locator(".token-card")).to_contain_text("advantage, GRPO")
    page.locator("[data-estimator=grpo]").click()
    page.get_by_role("button", name="Group side by side").click()
    expect(page.locator(".column")).to_have_count(4)
    page.locator("nav >> text=Compare").click()
    page.locator(".line-row").first.click()
    expect(page.locator(".parting")).to_be_visible()
