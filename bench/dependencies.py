"""The tests with the oldest or the newest of every dependency that pyproject.toml allows.

    python bench/dependencies.py lowest      # each declared lower bound, exactly
    python bench/dependencies.py newest      # what pip installs today
    python bench/dependencies.py newest -- tests/language

Makes a virtual environment in a temporary folder, installs this checkout and what its tests need, and runs a part
of the tests (or those given after `--`).  Exit status: that of pytest, or 2 where something cannot be installed.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Front ends, compiler, reference, PTX machine, assembler, command line: some of each, in a few minutes.
TESTS = (
    "tests/test_cli.py",
    "tests/test_testing.py",
    "tests/test_records.py",
    "tests/layouts",
    "tests/assemble",
    "tests/atoms/test_choose.py",
    "tests/croqtile/test_parse.py",
    "tests/croqtile/test_run.py",
    "tests/machine/test_kernels.py",
    "tests/runtime/test_arrays.py",
)
# Of the extra `dev`, what the tests import.
NEEDED = ("lark", "pytest", "pytest-xdist", "hypothesis", "nvidia-cuda-nvcc", "nvidia-cuda-nvdisasm")


def requirements() -> dict[str, str]:
    """The dependencies that the tests need, with their specifiers."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = {}
    for text in (*project["dependencies"], *project["optional-dependencies"]["dev"]):
        match = re.match(r"([\w.-]+)\s*([^;]*)", text)
        assert match is not None, text
        if text in project["dependencies"] or match[1] in NEEDED:
            found[match[1]] = match[2].strip()
    return found


def lower_bound(specifier: str) -> str:
    """`>=1.26,<3` as `==1.26`; what has no lower bound is an error of pyproject.toml."""
    match = re.search(r">=\s*([\w.]+)", specifier)
    if match is None:
        raise SystemExit(f"`{specifier}` has no lower bound")
    return f"=={match[1]}"


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("which", choices=("lowest", "newest"))
    arguments.add_argument("tests", nargs="*", default=TESTS)
    options = arguments.parse_args()
    wanted = [
        name + (lower_bound(specifier) if options.which == "lowest" else specifier)
        for name, specifier in requirements().items()
    ]
    with tempfile.TemporaryDirectory(prefix="tilemma-dependencies-") as folder:
        venv.create(folder, with_pip=True)
        python = str(Path(folder, "Scripts" if sys.platform == "win32" else "bin", "python"))
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        newest = ["--upgrade", "--upgrade-strategy", "eager"] if options.which == "newest" else []
        for packages in ([*newest, *wanted], ["--no-deps", "--editable", str(ROOT)]):
            if subprocess.run([*pip, *packages]).returncode:
                return 2
        subprocess.run([python, "-m", "pip", "freeze", "--exclude-editable"])
        return subprocess.run(
            [python, "-m", "pytest", "-x", "-p", "no:cacheprovider", *options.tests], cwd=ROOT
        ).returncode


if __name__ == "__main__":
    sys.exit(main())
