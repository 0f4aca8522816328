"""The cached catalogue: the same as a fresh one, built once, whole or not at all."""

import os
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import orjson
import pytest

from openmanus_rl.environments.webshop import store
from openmanus_rl.environments.webshop.catalogue import Product, read_catalogue
from openmanus_rl.environments.webshop.records import decode_product, encode_product
from openmanus_rl.environments.webshop.search import SearchIndex
from openmanus_rl.environments.webshop.store import Store, default_cache_dir, open_store

KINDS = ("mug", "cup", "lamp", "shirt", "running shoes")


def item(number: int) -> dict[str, object]:
    kind = KINDS[number % len(KINDS)]
    return {
        "asin": f"B{number:04d}",
        "name": f"Caf\u00e9 {kind} \u2764 no {number % 7}",
        "category": "c",
        "query": f"{kind}s",
        "product_category": "Home \u203a Kitchen",
        "full_description": f"A {kind} of {'steel' if number % 3 else 'cotton'}",
        "small_description": [f"holds {number % 4} oz", 'says "hi"'] if number % 2 else None,
        "pricing": ["$5$9.50", "$1,299.00", ""][number % 3],
        "customization_options": {"Color": [{"value": "Red/Blue"}, {"value": " green "}], "Size": None},
    }


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """60 products, one of them twice, and two entries that are none."""
    items = [*(item(number) for number in range(60)), {"asin": "B9"}, item(3), 7]
    attributes = {"B0001": {"attributes": ["steel"], "instruction": "Find it", "instruction_attributes": ["x"]}}
    (tmp_path / "items.json").write_bytes(orjson.dumps(items))
    (tmp_path / "ins.json").write_bytes(orjson.dumps(attributes))
    return tmp_path / "items.json", tmp_path / "ins.json"


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders that were built in this process."""
    built: list[Path] = []
    write = store._write

    def counted(folder: Path, items_file: Path, attributes_file: Path) -> None:
        built.append(folder)
        write(folder, items_file, attributes_file)

    monkeypatch.setattr(store, "_write", counted)
    return built


def assert_as_fresh(opened: Store, files: tuple[Path, Path], queries: tuple[str, ...] = KINDS) -> None:
    fresh = read_catalogue(*files)
    assert list(opened.catalogue.products) == fresh.products
    assert [opened.catalogue.products[number] for number in range(len(fresh.products))] == fresh.products
    assert opened.catalogue.problems == fresh.problems
    assert dict(opened.catalogue.by_asin) == fresh.by_asin
    index = SearchIndex([product.search_text for product in fresh.products])
    for query in queries:
        assert opened.index.search(query) == index.search(query)


def test_the_cached_catalogue_equals_a_fresh_one_and_is_built_once(
    files: tuple[Path, Path], tmp_path: Path, builds: list[Path]
) -> None:
    for _ in range(3):
        assert_as_fresh(open_store(*files, tmp_path / "cache"), files)
    assert len(builds) == 1
    assert sorted(path.suffix for path in (tmp_path / "cache").iterdir()) == ["", ".lock"]


def test_products_are_a_sequence_and_asins_a_mapping(files: tuple[Path, Path], tmp_path: Path) -> None:
    catalogue = open_store(*files, tmp_path / "cache").catalogue
    products = catalogue.products
    assert len(products) == 60
    assert products[-1].asin == "B0059"
    assert [product.asin for product in products[2:4]] == ["B0002", "B0003"]
    assert products[5] is products[5]
    assert catalogue.by_asin["B0007"] == 7
    assert "B9" not in catalogue.by_asin
    for number in (60, -61):
        with pytest.raises(IndexError):
            products[number]
    with pytest.raises(KeyError):
        catalogue.by_asin["B9"]


def test_every_field_survives_the_record() -> None:
    product = Product("B1", 't"', "c", "q", "p", "d\n", ("a", "\u2764"), {"size": ("1", "2"), "color": ()}, (0.1, 2.0),
                      ("x",), None, ())  # fmt: skip
    assert decode_product(encode_product(product)) == product
    assert list(decode_product(encode_product(product)).options) == ["size", "color"]


def test_no_products_at_all(tmp_path: Path) -> None:
    (tmp_path / "items.json").write_bytes(b"[]")
    (tmp_path / "ins.json").write_bytes(b"{}")
    for _ in range(2):
        opened = open_store(tmp_path / "items.json", tmp_path / "ins.json", tmp_path / "cache")
        assert len(opened.catalogue.products) == len(opened.catalogue.by_asin) == 0
        assert opened.index.search("mug") == []


@pytest.mark.parametrize("which", [0, 1])
def test_a_changed_source_is_built_again(
    files: tuple[Path, Path], tmp_path: Path, builds: list[Path], which: int
) -> None:
    first = open_store(*files, tmp_path / "cache")
    content = files[which].read_bytes().replace(b"Find it", b"Find me").replace(b"steel", b"brass")
    status = files[which].stat()
    files[which].write_bytes(content)  # of the same size, and said to be of the same time
    os.utime(files[which], ns=(status.st_atime_ns, status.st_mtime_ns))
    second = open_store(*files, tmp_path / "cache")
    assert_as_fresh(second, files, ("brass", "steel"))
    assert first.folder != second.folder
    os.utime(files[which], ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert open_store(*files, tmp_path / "cache").folder != second.folder
    assert len(builds) == 3


@pytest.mark.parametrize("damage", ["cut", "flip", "remove", "empty"])
def test_any_damaged_file_is_noticed_and_built_again(
    files: tuple[Path, Path], tmp_path: Path, builds: list[Path], damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = open_store(*files, tmp_path / "cache").folder
    names = sorted(path.name for path in folder.iterdir())
    assert len(names) == 15
    for name in names:
        path = folder / name
        content = path.read_bytes()
        middle = len(content) // 2
        if damage == "remove":
            path.unlink()
        elif damage == "flip" and name != "manifest.json":
            path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
        else:
            path.write_bytes(b"" if damage == "empty" else content[:-1])
        builds.clear()
        caplog.clear()
        assert_as_fresh(open_store(*files, tmp_path / "cache"), files)
        assert len(builds) == 1, name
        assert "is built again" in caplog.text
    assert sorted(path.suffix for path in (tmp_path / "cache").iterdir()) == ["", ".lock"]


@pytest.mark.parametrize("manifest", [b"[]", b"{}", b'{"format": 99, "files": {}}', b'{"format": 1, "files": 3}', b"x"])
def test_a_foreign_manifest_is_not_believed(
    files: tuple[Path, Path], tmp_path: Path, builds: list[Path], manifest: bytes
) -> None:
    (open_store(*files, tmp_path / "cache").folder / "manifest.json").write_bytes(manifest)
    assert_as_fresh(open_store(*files, tmp_path / "cache"), files)
    assert len(builds) == 2


def test_a_builder_that_fails_leaves_nothing_and_what_a_killed_one_left_is_removed(
    files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    with monkeypatch.context() as patch:
        patch.setattr(store, "encode_product", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            open_store(*files, cache)
    assert [path.suffix for path in cache.iterdir()] == [".lock"]
    half = cache / f".{store.sources_digest(*files)}.killed"
    half.mkdir()
    (half / "products.bin").write_bytes(b"half")
    assert_as_fresh(open_store(*files, cache), files)
    assert not half.exists()


def test_a_source_that_changes_while_it_is_read_is_refused(
    files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = store._write

    def disturbed(folder: Path, items_file: Path, attributes_file: Path) -> None:
        write(folder, items_file, attributes_file)
        items_file.write_bytes(b"[]")

    monkeypatch.setattr(store, "_write", disturbed)
    with pytest.raises(ValueError, match="was changed while it was read"):
        open_store(*files, tmp_path / "cache")


def test_a_cache_that_cannot_be_written_says_what_to_set(files: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ValueError, match=r"set env\.webshop\.cache_dir"):
        open_store(*files, tmp_path / "file" / "cache")
    with pytest.raises(ValueError, match=r"none\.json: No such file"):
        open_store(tmp_path / "none.json", files[1], tmp_path / "cache")


def test_the_default_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert default_cache_dir() == Path("/somewhere/openmanus-rl/webshop")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/someone")
    assert default_cache_dir() == Path("/home/someone/.cache/openmanus-rl/webshop")


def test_arrays_are_mapped_and_read_only_and_outlive_the_folder(files: tuple[Path, Path], tmp_path: Path) -> None:
    opened = open_store(*files, tmp_path / "cache")
    index, table = opened.index.postings, opened.catalogue.by_asin
    for values in (index.ids, index.weights, index.offsets, index.terms.hashes, table.hashes):
        assert isinstance(values.base, np.memmap)
        with pytest.raises(ValueError, match="read-only"):
            values[0] = 0
    shutil.rmtree(opened.folder)
    assert_as_fresh(opened, files)


BUILDER = """
    import sys, time
    from pathlib import Path
    from openmanus_rl.environments.webshop import store

    items, attributes, cache, begin = *map(Path, sys.argv[1:4]), float(sys.argv[4])
    write = store._write
    def counted(folder, *files):
        print("built")
        write(folder, *files)
        time.sleep(0.2)
    store._write = counted
    time.sleep(max(0.0, begin - time.time()))
    opened = store.open_store(items, attributes, cache)
    print(opened.index.search("mug cup"), opened.catalogue.products[7].title)
"""


def test_processes_that_start_at_once_build_once(files: tuple[Path, Path], tmp_path: Path) -> None:
    command = [sys.executable, "-c", textwrap.dedent(BUILDER), *map(str, files), str(tmp_path / "cache")]
    begin = str(time.time() + 1.5)  # when all of them have imported what they need
    processes = [subprocess.Popen([*command, begin], stdout=subprocess.PIPE, text=True) for _ in range(4)]
    outputs = [process.communicate(timeout=120)[0].splitlines() for process in processes]
    assert [process.returncode for process in processes] == [0] * 4
    assert sum(lines.count("built") for lines in outputs) == 1
    assert len({lines[-1] for lines in outputs}) == 1


def test_the_real_catalogue_cached_equals_fresh(shared_data: Path, tmp_path: Path, builds: list[Path]) -> None:
    files = (shared_data / "webshop" / "items_shuffle_1000.json.gz", shared_data / "webshop" / "items_ins_v2_1000.json")
    queries = tuple(product.title for product in read_catalogue(*files).products[:50])
    for _ in range(2):
        opened = open_store(*files, tmp_path / "cache")
        assert len(opened.catalogue.products) == 1000
        assert_as_fresh(opened, files, queries)
    assert len(builds) == 1
