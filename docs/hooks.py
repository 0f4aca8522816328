"""Documentation that is made from the code, so that it cannot fall behind it."""

from typing import Any

from openmanus_rl import make_env
from openmanus_rl.config.keys import keys_as_markdown


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the list of config keys, and a played game, where a page asks for them."""
    markdown = markdown.replace("<!-- config keys -->", keys_as_markdown())
    if "<!-- alfworld transcript -->" in markdown:
        markdown = markdown.replace("<!-- alfworld transcript -->", f"```text\n{alfworld_transcript()}\n```")
    return markdown


def alfworld_transcript() -> str:
    """What the page's own example prints."""
    env = make_env("alfworld", source="generated", size="micro")
    observation, info = env.reset(options={"task": "train/13"})
    expert = env.expert()
    assert expert is not None
    lines = [observation]
    while not info["won"]:
        action = expert.act(observation, info)
        observation, _, _, _, info = env.step(action)
        lines.append(f"> {action}\n{observation}")
    return "\n".join(lines)
