"""Pictures of the viewer for the documentation, from a real run: `python -m benchmarks.report_picture RUN`.

Writes docs/images/report.png (the overview) and docs/images/episode.png (a group of episodes, token by token). Needs
Chromium, `playwright` and `pillow`: `make setup browser`.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from openmanus_rl.viewer.report import write_report
from openmanus_rl.viewer.run_files import RunFiles

IMAGES = Path(__file__).parents[1] / "docs" / "images"
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]


def episode_worth_showing(run: RunFiles) -> str:
    """The shortest won training episode of the last step that has both won and other ones in a group."""
    groups: dict[tuple[int, str], list[dict[str, object]]] = {}
    for row in run.rows():
        if row["kind"] == "step" and row["credit"]:
            groups.setdefault((row["step"], row["group"]), []).append(row)
    mixed = [rows for _, rows in sorted(groups.items()) if len({row["outcome"] for row in rows}) > 1]
    if not mixed:
        raise SystemExit("error: this run has no kept group with both won and other episodes")
    won = [row for row in mixed[-1] if row["outcome"] == "won"] or mixed[-1]
    return str(min(won, key=lambda row: int(str(row["turns"])))["id"])


def main(run_path: str) -> None:
    """Make both pictures from the report of a run."""
    run = RunFiles(Path(run_path))
    browser_path = shutil.which("chromium") or shutil.which("google-chrome")
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        page_path = write_report([run], Path(folder) / "report.html")
        browser = driver.chromium.launch(executable_path=browser_path, headless=True, args=FLAGS)
        page = browser.new_page(viewport={"width": 1120, "height": 1390}, color_scheme="light")
        page.goto(page_path.as_uri())
        page.locator("#h-health").wait_for()
        page.screenshot(path=IMAGES / "report.png")
        page.set_viewport_size({"width": 1280, "height": 800})
        page.goto(f"{page_path.as_uri()}#/0/episodes/{episode_worth_showing(run)}")
        page.get_by_role("button", name="Group side by side").click()
        page.locator(".column .tk.minus").first.hover()
        page.screenshot(path=IMAGES / "episode.png")
        browser.close()
    for image in ("report.png", "episode.png"):
        # A palette says as much of a page of few colours in a third of the bytes.
        Image.open(IMAGES / image).convert("RGB").quantize(192, dither=Image.Dither.NONE).save(
            IMAGES / image, optimize=True
        )
        print(f"{IMAGES / image}: {(IMAGES / image).stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main(sys.argv[1])
