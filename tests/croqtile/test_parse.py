"""Syntax: precedence, every statement of both dialects, and the texts of syntax errors."""

from __future__ import annotations

import numpy as np
import pytest

import tilemma as tm
from tilemma import croqtile
from tilemma.croqtile import ast
from tilemma.croqtile.extract import extract
from tilemma.croqtile.node import Node
from tilemma.croqtile.parse import SyntaxProblem, parse
from tilemma.errors import CompileError
from tilemma.ir.printer import print_kernel


def function(text: str) -> ast.Function:
    return parse(extract(text, "t.co", {}).kernels[0])


def statement(text: str) -> ast.Statement:
    return function(f"__co__ void f() {{ {text} }}").body.body[0]


def show(e: object) -> str:
    """An expression with every operation in parentheses."""
    match e:
        case ast.Name(text=s):
            return s
        case ast.Int(value=v) | ast.Float(value=v):
            return str(v)
        case ast.Binary():
            return f"({show(e.a)} {e.op} {show(e.b)})"
        case ast.Unary():
            return f"({e.op}{show(e.operand)})"
        case ast.Bound():
            return f"(#{show(e.operand)})"
        case ast.Count():
            return f"|{show(e.operand)}|"
        case ast.Ternary():
            return f"({show(e.cond)} ? {show(e.a)} : {show(e.b)})"
        case ast.Paren():
            return show(e.inner)
        case ast.Member():
            return f"{show(e.base)}.{e.name}" + ("" if e.args is None else f"({', '.join(map(show, e.args))})")
        case ast.Call():
            return f"{show(e.function)}({', '.join(map(show, e.args))})"
        case ast.Subscript():
            return f"{show(e.base)}[{', '.join(map(show, e.indices))}]"
        case ast.Step():
            sign = "++" if e.sign > 0 else "--"
            return f"({sign}{show(e.target)})" if e.before else f"({show(e.target)}{sign})"
    return type(e).__name__


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a + b * c", "(a + (b * c))"),
        ("a * b # c", "(a * (b # c))"),
        ("a # b # c", "((a # b) # c)"),
        ("a * b & c", "(a * (b & c))"),
        ("a & b | c ^ d", "(((a & b) | c) ^ d)"),
        ("!a & b", "(!(a & b))"),
        ("-a * b", "((-a) * b)"),
        ("a << b + c", "(a << (b + c))"),
        ("a < b == c > d", "((a < b) == (c > d))"),
        ("a && b || c && d", "((a && b) || (c && d))"),
        ("a ? b : c ? d : e", "(a ? b : (c ? d : e))"),
        ("a #+ b #* c", "(a #+ (b #* c))"),
        ("a * #p", "(a * (#p))"),
        ("#p # q", "((#p) # q)"),
        ("~a # b", "((~a) # b)"),
        ("|x.span| / 2", "(|x.span| / 2)"),
        ("(a + b) * c", "((a + b) * c)"),
        ("x.span(0) - 1", "(x.span(0) - 1)"),
        ("k(-1)", "k((-1))"),
        ("s[1][2].at(i, j)", "s[1][2].at(i, j)"),
        ("a\n  .at(i)", "a.at(i)"),
        ("e.at(k++)", "e.at((k++))"),
        ("++k + 1", "((++k) + 1)"),
        ("a - -1", "(a - (-1))"),
        ("croq::f(1)", "croq::f(1)"),
    ],
)
def test_precedence(text: str, expected: str) -> None:
    s = statement(f"y = {text};")
    assert isinstance(s, ast.Assign)
    assert show(s.value) == expected


STATEMENTS = """
int x = 1, y = 2;  mutable int i = 0;  mutable z = 1;  bool b = true;  f32 v;  f32 w {0.0f};  half h = 1.0;
shared f16 [4, N] s;  local f32 [4] l {0.0f};  global f32 [M] g;  shared f16 [64, 64] t[2][3], u;
f32 [a.span] o;
f32 [d / {1, 3}, 4] r;  shared f32 [auto] q;
shared event e;  shared event full[2], empty[2] = ready, z;  shared event<256> e[4];  local event ge[2][2];
d : [7, 8];  mdspan<2> d : [7, 8];  mdspan d2 = {9, 10};  d3 : d [(0)/2, (1)+1];  d4 : [d, 6];  d5 : d / {2, 4};
t = {1, 2};  ituple<3> t = {1, 2, 3};  t2 = {t, 4};  t3 = t {(0), 1};  ituple v = [a, 9];
frag mc[2][3] {0.0};  frag.f32 acc {0.0};  frag f32[64] m {-inf};  frag f16[64, 128] p;
a = b;  x.at(i, j) = 1;  x.at(i) += 2;  i -= 1;  i++;  --i;  x.at(i)++;  q = Q.subspan(1, _).at(0, h).sqz();
parallel p by 6 {}  parallel by 1 : group-4 {}  parallel {m, n} by [cdiv(M, T), 4] : block {}
parallel t = {x, y} by [3, 4] {}  parallel p by 2 : block, q by 32 : thread {}  parallel p by 2 mma.commit;
parallel.async p by 2 : block {}  parallel.async<s> p by 2 {}  parallel<s> p by 2 {}
parallel p by 2 : block<cooperative> {}
parallel p by 2 : device(gpu) {}  [[launch_bounds(_, 1)]] [[maxnreg(40)]] parallel p by 4 : block {}
foreach k in 16 {}  foreach {i, j} in [8, 16] {}  foreach k in K/16 i++;  foreach idx in [x.span] {}
foreach x {}
foreach x, y(1:-1:2) {}  foreach k(1:) {}  foreach k(1::) {}  foreach k(::2) {}  foreach k(:-1) {}
foreach c = a(1:-1) {}
foreach i in [4] : unroll {}  foreach i in [4] : unroll(4) {}  foreach i in 8 : vectorize(i, 8) {}
foreach i in 4 if (i) {}
foreach {i} in [4], {j} in [5] {}  foreach t = {i, j} in [4, 5] {}
with x in 128 {}  with {x, y} in [10, 10] where a <-> b {}  with t = {x, y} in s, iv in [4, 4] {}
while (i < 4) {}  while (e) break;  if (a) {} else if (b) {} else {}  if (call f(x)) {}
if (a) if (b) {} else {}
inthreads (p <= 2) {}  inthreads.async (wg == 0) {}  break;  continue;  yield;  return;  return x;  ;
sync.shared;  sync.barrier : block;  sync.fence : thread<shared>;
wait e;  wait a, b;  wait e[s];  wait e.at(order);  wait<0> e;  trigger e;  trigger e.at(k++);
trigger e after f, g;
trigger.cluster e;  trigger ge, e[0];
dma.copy a => b;  f = dma.copy a => shared;  f = dma.copy.async.swiz<128> a.at(i) => local after g;
dma.copy.zfill a => b;
f = dma.transp<1, 0, 2> a => local;  f = dma.transp.async<{1, 0}> a => local;  f = dma.any;
dma.copy.sp<2:4> a => b;
f = dma.pad<{1, 1}, {0, 0}, {1, 0}, 0> a => local;  f = dma.pad.async<{1}, {0}, {1}, 1> a => local;
tma.copy.async<full[s]>.swiz<3> a => b;  f = tma.load.async.evict_first.swiz<128>.promote<256> a => s;
f = tma.any;
tma.copy.async.multicast a.at(0).zfill => b;  dma.copy a => select(c, x, y);  m = a.map<local>(4, 5);
swap(f, g);  swap f, g;  rotate(a, b, c);  call f(a, 1);
call ns::f<16, #p, f32>(a.data, |a.span|, nullptr);  int y = call f(x);
print("a", b);  println();  print!("x" "y", b.span);  assert(a > 0, "m");  assert(a);
apply {i, j} in m.span { m.at(i, j) = 1.0; }  apply i in m.span m.at(i) /= s.at(i);
reduce_max(d, s, 1);  reduce_sum(d, s, 1);  all_reduce_sum(d);  copy(d, s);
mc = mma.fill 0.0;  mc = mma.fill.f32 0.0f;  mma.fill mc, 0.0f;  mma.fill mc[0][1], 0.0f;
mc = mma.fill.f32 -inf;
ma = mma.load a.chunkat(_, k);  mb = mma.load.swiz<128> s;  ma = mma.load.frag s;  mma.load s, m;
ma = mma.load.async s;
mma.row.row mc, ma, mb;  mma.row.col.sp mc, a, b, me;  mma.col.row.scale mc, a, b, sa, sb;
f = mma.row.row.async mc, a, b;
mma.row.row.order<3, 2, 1, 0> mc, a, b;  [[schedule(k_tiles(3, 2, 1, 0))]] mma.col.col mc, a, b;
mma.scale mc, sa, sb;
mma.store mc, d;  mma.store.transp mc, d;  mma.store.mask mc, d, r, c;  mma.commit;  mma.wait<0>;
y = __to<f16>(x);  y = __to<"__fp16*">(x);  y = |f16|;  y = &x.at(0);  y = inf;  y = 0x1F;  y = 3ull;
y = 1.0e-5f;
x = a.view(4, 5 : 6, 7).from(1, 2);  x = a.subspan(4).step(2).at(1);  x = a.modspan(4).at(1);
x = a.chunk(4, 8).at(i, j);
"""


@pytest.mark.parametrize("line", STATEMENTS.strip().split("\n"))
def test_every_statement(line: str) -> None:
    for s in function(f"__co__ void f() {{ {line} }}").body.body:
        assert isinstance(s, ast.Statement)


@pytest.mark.parametrize(
    "header",
    [
        "void f()",
        "auto f(f32 [M, K] x)",
        "f32 [M, N] f(global f16 [N, 4] x, int n)",
        "int f(f32 [?, 4] x, global f32 [??] y, f32 mdspan<2> z, mdspan<2> s, stream st)",
        "void f(f32 [M]& out, int, bool flag, half h)",
    ],
)
def test_headers(header: str) -> None:
    assert function(f"__co__ {header} {{}}").name == "f"


def test_every_node_lies_within_its_parent() -> None:
    root = function(
        "__co__ void f(f32 [M] x) {\n  parallel p by 2 : block {\n    y = x.at(p * 2 + 1) #+ 3;\n  }\n}"
    )

    def inside(node: Node) -> None:
        for value in vars(node).values():
            for child in value if isinstance(value, tuple) else (value,):
                if isinstance(child, Node):
                    a, b = node.span, child.span
                    assert (a.line, a.column) <= (b.line, b.column)
                    assert (b.end_line, b.end_column) <= (a.end_line, a.end_column)
                    inside(child)

    inside(root)


@pytest.mark.parametrize(
    ("text", "line", "column", "found", "expected"),
    [
        ("x = 3\n  y = 4;", 1, 6, "a statement that does not end", "`;`"),
        ("x = ;", 1, 5, "`;` cannot stand here", "an expression"),
        ("x = a b;", 1, 7, "`b` cannot stand here", "`;`"),
        ("x = (a;", 1, 7, "`;` cannot stand here", "`)`"),
        ("x = (a];", 1, 7, "`]` closes `(`", "`)`"),
        ("parallel p by : block {}", 1, 15, "`:` cannot stand here", "an expression"),
        ("parallel p 4 {}", 1, 12, "`4` cannot stand here", "`by`"),
        ("foreach 3 in 4 {}", 1, 9, "`3` cannot stand here", "a name"),
        ("if a {}", 1, 4, "`a` cannot stand here", "`(`"),
        ("int event = 3;", 1, 5, "`event` is a word of the language", "a name"),
        ("f16 = 3;", 1, 1, "`f16` is an element type", "a name"),
        ("dma.copy a b;", 1, 12, "`b` cannot stand here", "`=>`"),
        ("else {}", 1, 1, "`else` does not follow an `if`", "`else` directly after the body of its `if`"),
        ("x.at(1) 3;", 1, 9, "`3` cannot stand here", "`;`"),
        ("int x += 2;", 1, 7, "`+=` cannot stand here", "`=`"),
        ("shared event e *= ready;", 1, 16, "`*=` cannot stand here", "`=`"),
        ("mdspan<2> s -= {2, 3};", 1, 13, "`-=` cannot stand here", "`=`"),
        ("x = f(y /= 2);", 1, 9, "`/=` cannot stand here", "an operator"),
        (".at(3);", 1, 1, "`.at` cannot stand here", "a statement"),
    ],
)
def test_syntax_errors(text: str, line: int, column: int, found: str, expected: str) -> None:
    with pytest.raises(SyntaxProblem) as e:
        function(f"__co__ void f() {{\n{text}\n}}")
    span = e.value.span
    assert span is not None
    assert (span.line - 1, span.column) == (line, column), e.value
    assert found in e.value.message, e.value
    assert expected in e.value.expectation, e.value


@pytest.mark.parametrize(
    ("text", "code", "covered"),
    [
        ("x = 12ab;", "bad-token", "12ab"),
        ("x = 1.;", "bad-token", "."),
        ("x = a . b;", "bad-token", "."),
        ("x = 'c';", "bad-token", "'c'"),
        ('x = "abc;', "bad-token", '"abc;'),
        ("x = $;", "bad-token", "$"),
        ("x = é;", "bad-token", "é"),
        ("x = 99999999999999999999;", "literal-too-large", "99999999999999999999"),
        ('__cpp__("x");', "not-built-yet", "__cpp__"),
        ('__asm__("nop");', "not-built-yet", "__asm__"),
        ("goto x;", "not-built-yet", "goto"),
        ("[[x]] y = 3;", "misplaced-attribute", "[[x]] y = 3;"),
        ("y = f(1 : 2);", "misplaced-colon", "2"),
        ('__cpp__(R"x(abc', "unterminated-string", 'R"'),
        ("x = 1; /* abc", "unterminated-comment", "/*"),
    ],
)
def test_refused_tokens(text: str, code: str, covered: str) -> None:
    """The error's span covers the token, and nothing else."""
    with pytest.raises(CompileError) as e:
        function(f"__co__ void f() {{\n{text}\n}}")
    span = e.value.span
    assert span is not None and (span.line, span.end_line) == (2, 2)
    assert (e.value.code, text[span.column - 1 : span.end_column - 1]) == (code, covered), e.value


def test_an_error_inside_a_macro_names_it() -> None:
    with pytest.raises(SyntaxProblem) as e:
        function("#define BAD + *\n__co__ void f() {\n  x = 1 BAD 2;\n}")
    assert e.value.span is not None and (e.value.span.line, e.value.span.column) == (3, 9)
    assert "`BAD`" in e.value.notes[0].text


def test_setreg_in_ptx() -> None:
    """The one instruction that is taken, with and without the clobber of memory."""

    def tree(statement: str) -> str:
        text = f"__co__ void k() {{ parallel p by 1 : block {{ parallel w by 1 : group-4 {{ {statement} }} }} }}"
        return print_kernel(croqtile.load(text, "k.co").sources["k"].build())

    plain = tree("setreg.dec 40;")
    for form in (
        'asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");',
        '__asm__("setmaxnreg.dec.sync.aligned.u32 40;" ::: "memory");',
        'asm("setmaxnreg.dec.sync.aligned.u32 40;" : : : "memory");',
    ):
        assert tree(form) == plain
    for form in (
        'asm("setmaxnreg.dec.sync.aligned.u32 40;" : "=r"(x));',
        'asm("setmaxnreg.dec.sync.aligned.u32 40;" ::: "cc");',
    ):
        with pytest.raises(CompileError) as refused:
            tree(form)
        assert refused.value.code == "not-built-yet"


def test_types_that_croqtile_has_not_may_be_names() -> None:
    """`b1` is the second copy of `b` in many programs; where it is declared as a name, it is one."""
    text = """
    __co__ void f(global f16 [32] a, global f16 [32] c) {
      parallel by 1 : block {
        b0 = dma.copy a.subspan(16).at(0) => shared;
        b1 = dma.copy a.subspan(16).at(1) => shared;
        shared f16 [16] e4m3[2];
        dma.copy b1.data => e4m3[1];
        foreach e5m2 in 16 { c.at(e5m2) = b0.data.at(e5m2); c.at(16 + e5m2) = e4m3[1].at(e5m2); }
      }
    }
    """
    a, c = np.arange(32, dtype=np.float16), np.zeros(32, np.float16)
    tm.loads(text)(a, c)
    assert (a == c).all()
    typed = (
        "__co__ void g(global b1 [8, 64] a, global e4m3 [4] x) { parallel by 1 : block { shared b1 [8, 64] s; } }"
    )
    assert tm.loads(typed).g.traced().arrays[0].buffer.dtype.name == "b1"
