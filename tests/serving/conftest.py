"""One server that most tests share."""

from collections.abc import Iterator

import openai
import pytest

from tests.serving.servers import Served, served, served_dir

__all__ = ["served_dir"]


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served() as made:
        yield made


@pytest.fixture
def client(server: Served) -> Iterator[openai.OpenAI]:
    with server.client() as made:
        yield made
