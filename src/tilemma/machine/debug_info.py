"""Source positions of PTX (PTX ISA, "Debugging Directives"): `.file`, `.loc` and the functions inlined at a place.

`.file` may follow its uses, and the names of inlined functions are in `.section .debug_str`: both are
looked up in the text before it is parsed.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilemma.machine.syntax import Location


def file_names(text: str) -> dict[int, str]:
    """The files that `.file` declares, by number."""
    found: dict[int, str] = {}
    for line in text.splitlines():
        words = line.split('"')
        head = words[0].split()
        if len(words) >= 3 and len(head) == 2 and head[0] == ".file" and head[1].isdigit():
            found[int(head[1])] = words[1]
    return found


def debug_strings(text: str) -> dict[str, str]:
    """The strings of `.section .debug_str`, by the label in front of each."""
    body = text.partition(".debug_str")[2].partition("{")[2].partition("}")[0]
    labels: list[tuple[str, int]] = []
    data = bytearray()
    for line in body.splitlines():
        for word in line.replace(",", " ").split():
            if word.endswith(":"):
                labels.append((word[:-1], len(data)))
            elif word.isdigit():
                data.append(int(word) & 0xFF)
    found: dict[str, str] = {}
    for label, at in labels:
        end = data.find(0, at)
        found[label] = bytes(data[at : end if end >= 0 else len(data)]).decode("utf-8", "replace")
    return found


class Locations:
    """The places that `.loc` directives name.

    ``inlined_at`` names a call site; if that function has been inlined itself, its own `.loc` names the next one.
    """

    def __init__(self, text: str) -> None:
        self.files: Mapping[int, str] = file_names(text)
        self.strings: Mapping[str, str] = debug_strings(text) if "inlined_at" in text else {}
        self.known: dict[tuple[int, int, int], Location] = {}

    def plain(self, at: tuple[int, int, int]) -> Location:
        file, line, column = at
        return Location(self.files.get(file, f"file {file}"), line, max(1, column))

    def add(
        self, at: tuple[int, int, int], function: str = "", inlined_at: tuple[int, int, int] | None = None
    ) -> Location:
        """The location of a `.loc` directive."""
        found = self.plain(at)
        if inlined_at is not None:
            outer = self.known.get(inlined_at) or self.plain(inlined_at)
            name = self.strings.get(function, function)
            found = Location(found.file, found.line, found.column, name, outer)
        self.known[at] = found
        return found
