"""A catalogue with its search index, built once and kept in a cache folder that processes map into memory.

A folder belongs to one state of the two source files: its name is a digest of their sizes, times and samples of their
contents, so a changed file gets a new folder. A folder is made beside its place, written out to disk, then renamed, so
it is there whole or not at all; of several processes that need it one builds, the others wait. It can be deleted at any
time. Nothing in it is ever unpickled.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import shutil
import tempfile
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from openmanus_rl.data.durable import sync
from openmanus_rl.environments.webshop.catalogue import Catalogue, read_products
from openmanus_rl.environments.webshop.keys import KeyTable
from openmanus_rl.environments.webshop.postings import Postings, PostingsBuilder
from openmanus_rl.environments.webshop.progress import ReadingProgress
from openmanus_rl.environments.webshop.records import StoredProducts, encode_product
from openmanus_rl.environments.webshop.search import SearchIndex

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

FORMAT = 1  # counts up when the files or what is computed into them change, the analysis of texts included
MANIFEST = "manifest.json"
BLOCKS, BLOCK = 16, 1 << 16
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Store:
    """A catalogue and the index over it."""

    catalogue: Catalogue
    index: SearchIndex
    folder: Path


def open_store(items_file: Path, attributes_file: Path, cache_dir: Path | None = None) -> Store:
    """The products of the two files and the index over them, from the cache; built first where it is not there."""
    cache = default_cache_dir() if cache_dir is None else cache_dir
    folder = cache / sources_digest(items_file, attributes_file)
    damage = _damage(folder)
    if damage is not None:
        try:
            cache.mkdir(parents=True, exist_ok=True)
            with _locked(cache / f"{folder.name}.lock"):
                damage = _damage(folder)  # another process may have built it while this one waited
                if damage is not None:
                    _replace(folder, damage, items_file, attributes_file)
        except OSError as error:
            raise ValueError(
                f"{cache}: the index of {items_file} cannot be kept there: {error.strerror or error}: "
                "set env.webshop.cache_dir to a folder that can be written and has space"
            ) from error
    return _load(folder, items_file)


def default_cache_dir() -> Path:
    """`$XDG_CACHE_HOME/openmanus-rl/webshop`, or the same below `~/.cache`."""
    configured = os.environ.get("XDG_CACHE_HOME", "")
    home = Path(configured) if configured.startswith("/") else Path.home() / ".cache"
    return home / "openmanus-rl" / "webshop"


def sources_digest(*files: Path) -> str:
    """A name for the state of the files: format, sizes, times of change, samples of the contents."""
    state: list[object] = [FORMAT]
    for file in files:
        try:
            status = file.stat()
            state.append((status.st_size, status.st_mtime_ns, sample_digest(file)))
        except OSError as error:
            raise ValueError(f"{file}: {error.strerror or error}") from None
    return hashlib.blake2b(repr(state).encode(), digest_size=12).hexdigest()


def sample_digest(file: Path) -> str:
    """A digest of the whole file up to 1 MiB, above that of 16 blocks spread over it, the first and last included."""
    digest = hashlib.blake2b(digest_size=16)
    with file.open("rb") as opened:
        size = os.fstat(opened.fileno()).st_size
        if size <= BLOCKS * BLOCK:
            digest.update(opened.read())
        else:
            for number in range(BLOCKS):
                opened.seek((size - BLOCK) * number // (BLOCKS - 1))
                digest.update(opened.read(BLOCK))
    return digest.hexdigest()


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process at a time; the lock goes with the process, however it ends."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


# --- reading --------------------------------------------------------------------------------------------


def _damage(folder: Path) -> str | None:
    """Why the folder cannot be used; None if it can."""
    try:
        manifest = orjson.loads((folder / MANIFEST).read_bytes())
        if manifest["format"] != FORMAT:
            return f"has format {manifest['format']}, {FORMAT} is needed"
        for name, (size, digest) in manifest["files"].items():
            if (folder / name).stat().st_size != size or sample_digest(folder / name) != digest:
                return f"{name} is not what was written"
    except OSError as error:
        return f"{error.filename}: {error.strerror}" if folder.exists() else "is not there"
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        return f"{MANIFEST} cannot be read: {type(error).__name__}: {error}"
    return None


def _load(folder: Path, items_file: Path) -> Store:
    def mapped(name: str) -> NDArray[Any]:
        loaded: NDArray[Any] = np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)
        return loaded.view(np.ndarray)  # still mapped and read-only; slices of an `np.memmap` take longer

    def keys(name: str) -> KeyTable:
        return KeyTable(*(mapped(f"{name}.{part}") for part in ("blob", "offsets", "hashes", "numbers")))

    raw = folder / "products.bin"
    blob = np.memmap(raw, np.uint8, "r").view(np.ndarray) if raw.stat().st_size else np.empty(0, np.uint8)
    products = StoredProducts(blob, mapped("products.offsets"), str(folder))
    problems = [f"{items_file}: {problem}" for problem in orjson.loads((folder / "problems.json").read_bytes())]
    arrays = (mapped(f"postings.{part}") for part in ("offsets", "ids", "weights"))
    index = SearchIndex(postings=Postings(len(products), keys("terms"), *arrays))
    return Store(Catalogue(products, problems, keys("asins")), index, folder)


# --- building -------------------------------------------------------------------------------------------


def _replace(folder: Path, damage: str, items_file: Path, attributes_file: Path) -> None:
    """Build the folder beside its place and move it there; only the process that holds the lock may."""
    if folder.exists():
        _log.warning("%s: is built again: %s", folder, damage)
    for left_over in folder.parent.glob(f".{folder.name}.*"):  # of builders that were killed
        shutil.rmtree(left_over)
    made = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        _write(made, items_file, attributes_file)
        if sources_digest(items_file, attributes_file) != folder.name:
            raise ValueError(f"{items_file} or {attributes_file} was changed while it was read: start again")
        if folder.exists():
            folder.rename(made.with_name(f"{made.name}.old"))
        made.rename(folder)
        sync(folder.parent)
    finally:
        for temporary in (made, made.with_name(f"{made.name}.old")):
            shutil.rmtree(temporary, ignore_errors=True)


def _write(folder: Path, items_file: Path, attributes_file: Path) -> None:
    def in_file(name: str, length: int, dtype: type[np.generic]) -> NDArray[Any]:
        path = folder / f"postings.{name}.npy"
        made = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=(length,))
        with path.open("r+b") as file:  # a full disk is an error here; found while writing to memory, it would kill
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
        return made

    builder, problems, asins, offsets = PostingsBuilder(), list[str](), list[str](), array("q", [0])
    with (folder / "products.bin").open("wb") as file, ReadingProgress(items_file) as progress:
        for product in read_products(items_file, attributes_file, problems, progress):
            offsets.append(offsets[-1] + file.write(encode_product(product)))
            asins.append(product.asin)
            builder.add(product.search_text)
    postings = builder.finish(in_file)
    arrays: dict[str, NDArray[Any]] = {"products.offsets": np.array(offsets), "postings.offsets": postings.offsets}
    for name, table in (("asins", KeyTable.build(asins)), ("terms", postings.terms)):
        arrays |= {f"{name}.{part}": getattr(table, part) for part in ("blob", "offsets", "hashes", "numbers")}
    for name, values in arrays.items():
        np.save(folder / f"{name}.npy", values, allow_pickle=False)
    for written in (postings.ids, postings.weights):
        assert isinstance(written, np.memmap)  # made by `in_file`
        written.flush()
    (folder / "problems.json").write_bytes(orjson.dumps(problems))
    files = {path.name: [path.stat().st_size, sample_digest(path)] for path in sorted(folder.iterdir())}
    sources = [str(file.resolve()) for file in (items_file, attributes_file)]
    manifest = {"format": FORMAT, "sources": sources, "products": len(asins), "files": files}
    (folder / MANIFEST).write_bytes(orjson.dumps(manifest, option=orjson.OPT_INDENT_2))
    for path in (*folder.iterdir(), folder):
        sync(path)
