"""The tokens of one PTX text, taken one after the other."""

from __future__ import annotations

from tilemma.errors import Span
from tilemma.machine.lexer import PtxSyntax, Token, statement_tokens, syntax_error, tokenize


class Cursor:
    """A place among the tokens of ``text``, which errors call ``name``."""

    def __init__(self, text: str, name: str) -> None:
        self.text, self.name = text, name
        self.tokens = tokenize(text, name)
        self.position = 0

    @property
    def token(self) -> Token:
        token = self.tokens[self.position]
        return self._split(token) if token.kind == "statement" else token

    def _split(self, statement: Token) -> Token:
        """An instruction where none is expected: its first token, after it was replaced by its tokens."""
        self.tokens[self.position : self.position + 1] = statement_tokens(self.text, self.name, statement)
        return self.tokens[self.position]

    def advance(self) -> Token:
        token = self.token
        # The cursor stays at the last token, the end of the text.
        if token.kind != "end":
            self.position += 1
        return token

    def accept(self, text: str) -> bool:
        token = self.tokens[self.position]
        if token.text == text and token.kind != "string":
            self.position += 1
            return True
        return False

    def expect(self, text: str) -> Token:
        if self.token.text != text:
            raise self.error(f"expected `{text}`, found {self.shown()}")
        return self.advance()

    def shown(self) -> str:
        return "the end of the text" if self.token.kind == "end" else f"`{self.token.text}`"

    def error(self, what: str, token: Token | None = None) -> PtxSyntax:
        at = token or self.token
        return syntax_error(self.name, at.line, at.column, what, max(1, len(at.text)))

    def span_of(self, token: Token) -> Span:
        return Span(self.name, token.line, token.column, token.line, token.column + max(1, len(token.text)))

    def integer(self) -> int:
        negative = self.accept("-")
        if self.token.kind != "int":
            raise self.error(f"expected an integer, found {self.shown()}")
        value = self.value_of(self.advance())
        return -value if negative else value

    def value_of(self, token: Token) -> int:
        """An integer literal; a leading 0 makes it octal (PTX ISA, "Integer Constants")."""
        text = token.text.rstrip("U")
        octal = len(text) > 1 and text.isdecimal() and text[0] == "0"
        try:
            return int(text, 8 if octal else 0)
        except ValueError:
            raise self.error(f"`{token.text}` is no integer", token) from None

    def word(self) -> str:
        if self.token.kind != "word":
            raise self.error(f"expected a name, found {self.shown()}")
        return self.advance().text
