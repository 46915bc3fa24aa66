"""A headless Chromium for tests of pages, where one is on PATH or named by TILEMMA_CHROMIUM."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome-headless-shell")
# Pixels: the narrowest window that Chromium opens is 500 wide.
NARROW = 520
BROWSER = os.environ.get("TILEMMA_CHROMIUM") or next((p for n in NAMES if (p := shutil.which(n))), None)


def dom(folder: Path, page: str, fragment: str = "", width: int = 1280) -> str:
    """The page's document after its scripts have run, in a window of ``width`` pixels."""
    if BROWSER is None:
        pytest.skip("no Chromium on PATH, and TILEMMA_CHROMIUM names none")
    file = folder / "page.html"
    file.write_text(page, "utf-8")
    command = [
        *(BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"),
        *(f"--window-size={width},900", f"--user-data-dir={folder / 'profile'}"),
        file.as_uri() + fragment,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert "</html>" in done.stdout, done.stderr[-2000:]
    return done.stdout


def ask(folder: Path, page: str, script: str, width: int = 1280, fragment: str = "") -> Any:
    """The value, as JSON, that the body of a function ``script`` returns in the page after its own scripts."""
    run = (
        "<script>addEventListener('load', () => { let said; try { said = (() => {" + script + "})(); }"
        " catch (e) { said = 'error: ' + e.stack; }"
        " const out = document.createElement('pre'); out.id = 'said'; out.textContent = JSON.stringify(said);"
        " document.body.append(out); });</script></body>"
    )
    document = dom(folder, page.replace("</body>", run), fragment, width)
    found = re.search(r'<pre id="said">(.*?)</pre>', document, re.DOTALL)
    assert found is not None
    return json.loads(unescape(found[1]))
