"""The site: README, docs, the gallery, notebooks and references, as pages for MkDocs.

python -m dev.site          # build/site, without a network; needs the extra `site`
"""

from __future__ import annotations

import argparse
import json
import os
import posixpath
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any

from dev.gallery import ENTRIES
from dev.pages import gallery, reference

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build"
# Whatever asks another host while the site is built, fails.
NO_NETWORK = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
# Published path -> title, in the order of the menu.
MENU: Mapping[str, Mapping[str, str]] = {
    "": {"index.md": "tilemma", "installing.md": "Installing", "tutorial.md": "Tutorial"},
    "Language": {"language.md": "Language", "errors.md": "Errors", "instructions.md": "Instructions"},
    "Use": {
        "ops.md": "Operations",
        "torch.md": "PyTorch",
        "tuning.md": "Timing and tuning",
        "exporting.md": "Exporting",
        "performance.md": "Performance",
    },
    "The PTX machine": {
        "machine.md": "Machine",
        "hazards.md": "Hazards",
        "checking-other-kernels.md": "Other kernels",
    },
    "Inside": {
        "architecture.md": "Architecture",
        "atoms.md": "Catalogue",
        "contributing.md": "Contributing",
        "changelog.md": "Changes",
        "security.md": "Security",
    },
}
_LINK = re.compile(r"(?P<before>!?\[[^\]]*\]\()(?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")
_FENCE = re.compile(r"(?ms)^```.*?^```$|`[^`\n]*`")
# A page that a sentence names by its path.
_MENTION = re.compile(r"(?<![\w/`])(?<!\]\()(`?)docs/(?P<page>[\w-]+\.md)\1(?![\w`])")


def published(source: Path) -> str:
    """Where a Markdown file of the repository stands on the site."""
    name = source.relative_to(ROOT).as_posix()
    if name == "README.md":
        return "index.md"
    return name.removeprefix("docs/") if name.startswith("docs/") else name.lower()


class BrokenLink(Exception):
    """A link to a file that is not there."""


def linked(text: str, source: Path, files: dict[str, Path]) -> str:
    """``text`` with links as they are on the site.  Files that are no pages are added to ``files``."""
    here = posixpath.dirname(published(source))
    code = [m.span() for m in _FENCE.finditer(text)]

    def target(m: re.Match[str]) -> str:
        given = m["target"]
        if "://" in given or given.startswith("mailto:") or any(a <= m.start() < b for a, b in code):
            return m[0]
        path = (source.parent / given).resolve()
        if not path.exists():
            raise BrokenLink(f"{source.relative_to(ROOT)} links to {given}, which does not exist")
        inside = path.relative_to(ROOT).as_posix()
        if inside.startswith("examples/gallery/") and path.suffix == ".py":
            to = f"gallery/{path.stem}.md"
        elif path.suffix == ".md":
            to = published(path)
        else:
            to = inside.removeprefix("docs/")
            files[to] = path
        return f"{m['before']}{posixpath.relpath(to, here or '.')}{m['anchor'] or ''})"

    text = _LINK.sub(target, text)
    code = [m.span() for m in _FENCE.finditer(text)]

    def mention(m: re.Match[str]) -> str:
        path = ROOT / "docs" / m["page"]
        if any(a < m.start() < b for a, b in code) or not path.exists():
            return m[0]
        title = _title(path.read_text(encoding="utf-8"), m["page"])
        return f"[{title}]({posixpath.relpath(published(path), here or '.')})"

    return _MENTION.sub(mention, text)


def notebook(path: Path) -> str:
    """A notebook with its outputs as Markdown."""
    lines = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        lines.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        for output in cell.get("outputs", ()):
            lines.append(_output(output))
    return "\n\n".join(lines) + "\n"


def _output(output: Mapping[str, Any]) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        return f'<img alt="output" src="data:image/png;base64,{"".join(data["image/png"]).strip()}">'
    if "text/html" in data:
        # A document of its own: its styles and scripts concern it alone.
        return f'<iframe class="output" srcdoc="{escape("".join(data["text/html"]))}"></iframe>'
    text = "".join(data.get("text/plain", output.get("text", ())) or output.get("traceback", ()))
    return "```text\n" + re.sub(r"\x1b\[[0-9;]*m", "", text).rstrip() + "\n```"


def notebooks() -> list[Path]:
    return sorted(p for folder in ("docs", "examples") for p in (ROOT / folder).rglob("*.ipynb"))


def documents() -> Iterator[Path]:
    """The Markdown files that are pages."""
    yield from (ROOT / n for n in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"))
    yield from sorted((ROOT / "docs").glob("*.md"))


def pages() -> tuple[dict[str, str], dict[str, Path]]:
    """Texts by published path, and files to copy.  BrokenLink for a link to a file that is not there."""
    files: dict[str, Path] = {}
    texts = {published(p): linked(p.read_text(encoding="utf-8"), p, files) for p in documents()}
    for e in ENTRIES.values():
        texts[f"gallery/{e.name}.md"] = gallery.page(e)
        texts[f"gallery/{e.name}.svg"] = gallery.picture(e)
    for path in notebooks():
        texts[f"notebooks/{path.stem}.md"] = notebook(path)
    texts["reference/python.md"] = reference.python()
    texts["reference/commands.md"] = reference.commands()
    return texts, files


def navigation(texts: Mapping[str, str]) -> list[Any]:
    """The menu; every page stands in it."""
    menu: list[Any] = []
    for section, entries in MENU.items():
        shown = [{title: path} for path, title in entries.items() if path in texts]
        menu += shown if not section else [{section: shown}]
    kernels = [{"All": "gallery.md"}, *({e.title: f"gallery/{e.name}.md"} for e in ENTRIES.values())]
    menu.insert(2, {"Gallery": kernels})
    if made := [path for path in texts if path.startswith("notebooks/")]:
        menu.insert(3, {"Notebooks": [{_title(texts[path], path): path} for path in made]})
    menu.append({"Reference": [{"Python": "reference/python.md"}, {"Command line": "reference/commands.md"}]})
    known = re.findall(r"[\w/.-]+\.md", json.dumps(menu))
    menu += [{_title(t, path): path} for path, t in texts.items() if path.endswith(".md") and path not in known]
    return menu


def _title(text: str, path: str) -> str:
    found = re.search(r"(?m)^# (.+)$", text)
    return found[1] if found else Path(path).stem


def settings(texts: Mapping[str, str], source: Path, target: Path) -> dict[str, Any]:
    """For mkdocs.  Fonts of the reader's computer: neither the build nor a page asks another host."""
    schemes = [
        {"media": f"(prefers-color-scheme: {name})", "scheme": scheme, "primary": "indigo"}
        for name, scheme in (("light", "default"), ("dark", "slate"))
    ]
    return {
        "site_name": "tilemma",
        "docs_dir": str(source),
        "site_dir": str(target),
        "use_directory_urls": False,
        "theme": {
            "name": "material",
            "font": False,
            "palette": schemes,
            "features": ["navigation.sections", "navigation.top", "content.code.copy", "search.suggest"],
        },
        "plugins": ["search"],
        "markdown_extensions": ["tables", "attr_list", "pymdownx.highlight", "pymdownx.superfences"],
        "extra_css": ["site.css"],
        "nav": navigation(texts),
        "validation": {"links": {"anchors": "info"}},
    }


def write(target: Path) -> Path:
    """The pages and the settings under ``target``; the path of the settings."""
    shutil.rmtree(target, ignore_errors=True)
    texts, files = pages()
    texts["site.css"] = ".output { width: 100%; min-height: 30em; border: 0 }\n"
    for name, text in texts.items():
        path = target / "pages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for name, source in files.items():
        path = target / "pages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, path)
    chosen = target / "mkdocs.yml"
    # JSON is YAML.
    chosen.write_text(json.dumps(settings(texts, target / "pages", target / "html"), indent=1), encoding="utf-8")
    return chosen


def fetched(html: Path) -> list[str]:
    """What the built pages make a browser fetch from another host."""
    foreign = re.compile(r'<(?:script|link|img|iframe)[^>]*\s(?:src|href)="?(https?:)?//[^">]*')
    texts = ((path, path.read_text(encoding="utf-8")) for path in sorted(html.rglob("*.html")))
    return [f"{path}: {m[0]}" for path, x in texts for m in foreign.finditer(x) if "canonical" not in m[0]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=BUILD / "site")
    folder = parser.parse_args().folder.resolve()
    chosen = write(folder)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-f", str(chosen)]
    done = subprocess.run(command, env=os.environ | NO_NETWORK)
    if done.returncode:
        sys.exit(done.returncode)
    if found := fetched(folder / "html"):
        sys.exit("\n".join(f"fetched from another host: {x}" for x in found))
    print(folder / "html" / "index.html")


if __name__ == "__main__":
    main()
