"""Documentation that is made from the code, so that it cannot fall behind it."""

from typing import Any

from openmanus_rl.config.keys import keys_as_markdown


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the list of config keys where a page asks for it."""
    return markdown.replace("<!-- config keys -->", keys_as_markdown())
