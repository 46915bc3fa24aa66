"""Keywords and operators of the lexer: the grammar's terminal for each text."""

from __future__ import annotations

from tilemma import dtypes

# Element types that the language has and tilemma has not: they read as types, to be refused by name.
FOREIGN_TYPES = ("f8_ue4m3", "f8_ue8m0", "u6", "s6", "u2", "s2")

TYPES = frozenset((*dtypes.names(), *FOREIGN_TYPES))
# Those that Croqtile does not have: a program may use them as names.
OWN_TYPES = frozenset({"b1", "e4m3", "e5m2"})

_GROUPS: dict[str, tuple[str, ...]] = {
    "STORAGE": ("global", "shared", "local"),
    "LEVEL": ("block", "thread", "group", "cluster", "device", "term"),
    "EXCHANGE": ("swap", "rotate"),
    "PRINT": ("print", "println", "print!", "println!"),
    "REDUCE": ("reduce_max", "reduce_sum", "all_reduce_sum", "copy"),
    "MATRIX": (
        "load_matrix_a",
        "load_matrix_b",
        "load_matrix_c",
        "load_matrix_e",
        "load_matrix_sfa",
        "load_matrix_sfb",
        "store_matrix_d",
    ),
    "WHOLE": ("_",),
    "CO": ("__co__",),
    "TO": ("__to",),
}
_SELF = (
    "void", "auto", "mdspan", "ituple", "stream", "event", "frag", "mutable", "dma", "tma", "mma", "parallel",
    "by", "foreach", "in", "with", "where", "while", "if", "else", "inthreads", "break", "continue", "yield",
    "return", "sync", "wait", "trigger", "after", "call", "assert", "apply", "setreg", "true", "false", "inf",
    "nullptr",
)  # fmt: skip

WORDS: dict[str, str] = {w: w.upper() for w in _SELF}
WORDS |= {w: terminal for terminal, ws in _GROUPS.items() for w in ws}
WORDS |= dict.fromkeys(TYPES, "TYPE")


def terminal_of(text: str) -> str:
    """The terminal of a word: types that a program has registered are types too."""
    return WORDS.get(text) or ("TYPE" if text in dtypes.BY_NAME else "NAME")


OPERATORS: dict[str, str] = {
    "=": "ASSIGN", "+=": "UPDATE", "-=": "UPDATE", "*=": "UPDATE", "/=": "UPDATE", "%=": "UPDATE",
    "++": "STEP", "--": "STEP", "||": "OROR", "&&": "ANDAND", "==": "EQUALITY", "!=": "EQUALITY",
    "<=": "COMPARISON", ">=": "COMPARISON", "<<": "SHIFT", ">>": "SHIFT", "+": "PLUS", "-": "MINUS", "*": "STAR",
    "/": "SLASH", "%": "SLASH", "#+": "BOUNDSUM", "#-": "BOUNDSUM", "#*": "BOUNDPRODUCT", "#/": "BOUNDPRODUCT",
    "#%": "BOUNDPRODUCT", "!": "BANG", "&": "AMP", "^": "CARET", "|": "PIPE", "#": "HASH", "~": "TILDE",
    "?": "QUESTION", "??": "QUESTIONS", "<->": "BINDS",
}  # fmt: skip

# Descriptions of the terminals without a fixed spelling.
NAMES = {
    "NAME": "a name", "MEMBER": "a member such as `.at`", "INT": "a number", "FLOAT": "a number",
    "STRING": "a string", "TYPE": "a type", "STORAGE": "`global`, `shared` or `local`",
    "LEVEL": "a level (`block`, `group`, `group-4`, `thread`, `cluster`)", "MAPPED": "`.map`", "$END": "the end",
    "ASSIGN": "`=`", "UPDATE": "`=`", "PIPE": "`|`", "AMP": "`&`", "STEP": "`++`",
}  # fmt: skip

# The words before a device function.
DEVICE_MARKS = ("__device__", "__co_device__")

# Constructs that splice in text of another language: read whole, never run.
FOREIGN = {
    "__cpp__": "inline C++ (`__cpp__`)",
    "__cok__": "device code blocks (`__cok__`)",
    "__asm__": "inline assembly (`__asm__`)",
    "asm": "inline assembly (`asm`)",
    "goto": "`goto`",
    "template": "templates of kernels (`template`)",
    "static_assert": "`static_assert`",
    "constexpr": "`if constexpr`",
}
