"""Documents of a choreography in a folder: an AsyncAPI document, and a page for each event and service."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from saga.choreography.asyncapi import make_asyncapi
from saga.choreography.manifest import Manifest
from saga.choreography.overview import Overview
from saga.contracts.library import Library
from saga.errors import ConfigurationError

ASYNCAPI = "asyncapi.json"
_MARK = '<meta name="generator" content="saga docs build">'


@dataclass(frozen=True, slots=True)
class BuiltDocs:
    """The documents that were written."""

    out: Path
    events: int
    services: int
    removed: int
    """Pages of events and services that no longer exist."""


def build_docs(library: Library, manifests: Mapping[str, Manifest], out: Path, title: str, version: str) -> BuiltDocs:
    """Write the documents into a folder that is new, empty, or was written by this function. Raises
    `ConfigurationError`.
    """
    try:
        from saga.choreography.pages import render_pages
    except ImportError as why:
        problem = f"pages need Jinja2: {why}; pip install 'saga-choreography[docs]'"
        raise ConfigurationError("nothing was written:", [problem]) from why
    old = _find_earlier_pages(out)
    overview = Overview(library, manifests)
    files = {
        **dict(render_pages(overview, title)),
        ASYNCAPI: json.dumps(make_asyncapi(overview, title, version), indent=2) + "\n",
    }
    for name, text in files.items():
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    gone = [path for path in old if path.relative_to(out).as_posix() not in files]
    for path in gone:
        path.unlink()
    return BuiltDocs(out, len(overview.contracts), len(manifests), len(gone))


def _find_earlier_pages(out: Path) -> list[Path]:
    """Return the pages of an earlier call. Raises `ConfigurationError` if the folder holds other files."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return []
    index = out / "index.html"
    if not index.is_file() or _MARK not in index.read_text("utf-8", "replace"):
        problem = f"{out} holds something else: name a folder that is empty, or one that saga docs build has written"
        raise ConfigurationError("nothing was written:", [problem])
    pages = [path for folder in ("events", "services") for path in sorted((out / folder).glob("*.html"))]
    return [path for path in pages if _MARK in path.read_text("utf-8", "replace")]
