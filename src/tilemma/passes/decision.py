"""The decisions of passes, for `explain`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from tilemma.errors import Span
from tilemma.records import record


@record
class Decision:
    """One decision: the pass, its subject, a sentence, and JSON-ready data.

    ``warning``: a correct program whose behaviour may surprise the user.
    """

    pass_name: str
    subject: str
    text: str
    data: Mapping[str, Any] = field(default_factory=dict)
    warning: bool = False
    span: Span | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.pass_name}: {'warning: ' if self.warning else ''}{self.subject}: {self.text}"

    def to_json(self) -> dict[str, Any]:
        return {
            "pass": self.pass_name,
            "subject": self.subject,
            "text": self.text,
            "data": dict(self.data),
            "warning": self.warning,
            "span": self.span.to_json() if self.span else None,
        }
