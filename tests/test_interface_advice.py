"""Advice of functions of the package, of the reference executor, and of device functions: followed, it works."""

# A case is easier to read on one line.
# ruff: noqa: E501
from __future__ import annotations

import linecache
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensor_layouts import Layout

import tilemma as tm
from tilemma import c_export, croqtile, dtypes
from tilemma.atoms import catalogue
from tilemma.c_export.header import Exported, header
from tilemma.croqtile import tokens
from tilemma.cute import TiledMMA
from tilemma.errors import TilemmaError
from tilemma.ir import tile as t
from tilemma.ir.builder import Builder
from tilemma.ir.expr import binary
from tilemma.ir.tiles import Tile
from tilemma.ir.types import BLOCK, GROUP, WARPGROUP, Contract, EventRef
from tilemma.kernels import Kernel
from tilemma.layouts import canonical_atom, shared_layout, tile_to_shape
from tilemma.passes.check_events import CheckEvents
from tilemma.targets.cpu import execute
from tilemma.tools import picture

FOLLOWED = frozenset((
    "cannot-export", "copy-misfit", "copy-outside-block", "cpu-argument", "device-function", "device-function-overloaded",
    "event-subscript",
    "event-waiters-apart", "export-cannot-write", "file-too-large", "fragment-elsewhere", "no-descriptors",
    "no-kernel-source", "packed-load", "packed-use", "picture-too-large", "sparse-metadata", "sparse-pattern",
    "tile-mismatch", "type-not-registered", "variable-diverged",
))  # fmt: skip


def refused(code: str, advice: str, call: Callable[[], Any]) -> None:
    assert code in FOLLOWED
    with pytest.raises(TilemmaError) as caught:
        call()
    assert caught.value.code == code, caught.value.render()
    assert advice in caught.value.remedy, caught.value.render()


def co(text: str) -> Kernel:
    return Kernel(next(iter(croqtile.load(text, "interface.co").sources.values())))


# ---- programs ----------------------------------------------------------------------------------------------------

DEVICE = "__device__ float f(float* p, int n) {{ {} }}\n__co__ void k(global f32 [4] x, global f32 [4] y) {{ parallel b by 1 : block {{ foreach i in 4 {{ y.at(i) = {}; }} }} }}\n"
# The body of a device function that is refused; the same with the subset; the same in the kernel.
SUBSET = [
    ("float v[2]; v[0] = p[n]; return v[0] + 1.0f;", "float v = p[n]; return v + 1.0f;", "x.at(i) + 1.0f"),
    ("for (int i = 0; i < 4; i++) { if (i == n) continue; p[i] += 0.0f; } return p[n] + 1.0f;",
     "for (int i = 0; i < 4; i++) { if (i != n) { p[i] += 0.0f; } } return p[n] + 1.0f;", "x.at(i) + 1.0f"),
    ("switch (n) { default: return p[n] + 1.0f; }", "if (n >= 0) { return p[n] + 1.0f; } return 0.0f;", "x.at(i) + 1.0f"),
    ("float* q = p; return q[n] + 1.0f;", "return p[n] + 1.0f;", "x.at(i) + 1.0f"),
    ("p[n]; return p[n] + 1.0f;", "return p[n] + 1.0f;", "x.at(i) + 1.0f"),
]  # fmt: skip


@pytest.mark.parametrize("case", SUBSET, ids=lambda c: c[0][:12])
def test_device_functions(case: tuple[str, str, str]) -> None:
    wrong, right, inside = case
    refused(
        "device-function",
        "write it with these, or in the kernel",
        lambda: co(DEVICE.format(wrong, "f(x, i)")).compile("sm_80"),
    )
    for text in (DEVICE.format(right, "f(x, i)"), DEVICE.format("return 0.0f;", inside)):
        x, y = np.float32([1, 2, 3, 4]), np.zeros(4, np.float32)
        co(text)(x, y)
        np.testing.assert_array_equal(y, x + 1)
        assert co(text).compile("sm_80").ptx


def test_two_device_functions_of_one_name() -> None:
    text = "__device__ float f(float a) { return a; }\n__device__ float SECOND(int a) { return a * 2; }\n"
    text += "__co__ void k(global f32 [4] x) { parallel b by 1 : block { x.at(0) = f(1.0f) + SECOND(2); } }\n"
    wrong, right = text.replace("SECOND", "f"), text.replace("SECOND", "g")
    advice = "give each function a name of its own"
    refused("device-function-overloaded", advice, lambda: co(wrong).compile("sm_80"))
    x = np.zeros(4, np.float32)
    co(right)(x)
    assert x[0] == 5


def test_copies_outside_of_blocks() -> None:
    text = "__co__ void k(global f16 [64] b, global f16 [64] d) {{ parallel r by 2 : cluster-grid {{ {} parallel p by 2 : block {{ s = dma.copy b => shared; {} }} }} }}"
    copy = "dma.copy b => d;"
    refused(
        "copy-outside-block", "move it into the `parallel ... : block`",
        lambda: co(text.format(copy, "")).compile("sm_90a"),
    )  # fmt: skip
    assert co(text.format("", copy)).compile("sm_90a").ptx

    def python(inside: bool) -> Any:
        @tm.kernel
        def k(b: tm.Global["f16", 64], d: tm.Global["f16", 64]):
            for _ in tm.parallel(2, level="cluster-grid"):
                if not inside:
                    tm.dma.copy(b, d)
                for _ in tm.parallel(2, level="block"):
                    tm.dma.copy(b, to="shared")
                    if inside:
                        tm.dma.copy(b, d)

        return k.compile("sm_90a").ptx

    refused("copy-outside-block", '`for ... in parallel(..., level="block"):`', lambda: python(False))
    assert python(True)


APART = """
__co__ void k(global f32 [K, N] x, global f32 [K, N] y) {
  parallel cta by 1 : block {
    shared event full[2], empty[2] = ready;
    shared f32 [4, 64] a[2];
    parallel p by 3 : group-4 {
      inthreads.async (p < 2) {
        WAITS
      }
      OWN
      inthreads.async (p == 2) {
        foreach k in cdiv(K, 4) {
          wait full[k % 2];
          dma.copy a[k % 2] => y.subspan(4, 64).at(k, 0);
          trigger empty[k % 2];
        }
      }
    }
  }
}
"""
FILL = "tma.copy.async<full[k % 2]> x.subspan(4, 64).at(k, 0) => a[k % 2]; trigger full[k % 2];"
ALONE = "foreach k in cdiv(K, 4) { wait empty[k % 2]; }"


def test_waits_of_threads_that_others_do_not_wait_for() -> None:
    def kernel(waits: str, own: str = "") -> Kernel:
        return co(APART.replace("WAITS", waits).replace("OWN", own))

    other = f"inthreads (p == 0) {{ foreach k in cdiv(K, 4) {{ wait empty[k % 2]; {FILL} }} }}"
    refused(
        "event-waiters-apart", "let the same threads of a role wait and trigger",
        lambda: kernel(f"inthreads (p == 1) {{ {ALONE} }} {other}").compile("sm_90a"),
    )  # fmt: skip
    x = np.random.default_rng(0).standard_normal((24, 64)).astype(np.float32)
    together = kernel(f"foreach k in cdiv(K, 4) {{ wait empty[k % 2]; inthreads (p == 0) {{ {FILL} }} }}")
    for seed in range(3):
        y = np.zeros_like(x)
        together.on("machine", arch="sm_90a", seed=seed, schedule="starve")(x, y)
        np.testing.assert_array_equal(y, x)


PACKED = """__co__ void k(global s4 [64, 64] a, global s32 [64, 64] c) {{ parallel p by 1 : block {{
  s = dma.copy a => shared; {} parallel g by 1 : group {{ mc = mma.fill.s32 0; {} mma.store mc, c; }} }} }}"""


def test_packed_elements() -> None:
    wrong = PACKED.format("", "ma = mma.load.s8 s.data; mb = mma.load.s8 s.data; mma.row.row mc, ma, mb;")
    loop = "shared s8 [64, 64] w; foreach {i, j} in [64, 64] { w.at(i, j) = __to<s8>(s.data.at(i, j)); }"
    right = PACKED.format(loop, "mma.row.row mc, w, w;")
    refused("packed-load", "convert them with an element loop", lambda: co(wrong).compile("sm_80"))
    assert co(right).compile("sm_80").ptx
    scale = "ma = mma.load a; mb = mma.load a; mma.row.row.scale mc, ma, mb, a.view(64, 1).from(0, 0), 1;"
    single = "ma = mma.load a; mb = mma.load a; mma.row.row.scale mc, ma, mb, a.at(0, 0), 1;"
    refused("packed-use", "read them by one of these", lambda: co(PACKED.format("", scale)).compile("sm_80"))
    assert co(PACKED.format("", single)).compile("sm_80").ptx


# ---- tile IR that the front ends refuse before, by other errors --------------------------------------------------


def ir(body: Callable[..., None], **arrays: Any) -> None:
    b = Builder("f")
    tiles = [
        b.array_param(
            n, dtypes.dtype(str(a.dtype)) if a.dtype.name in dtypes.BY_NAME else _typed(a), list(a.shape)
        )
        for n, a in arrays.items()
    ]
    with b.parallel(["blk"], [1], BLOCK):
        body(b, *tiles)
    execute(b.finish(), arrays, {}, dims={})


def _typed(a: Any) -> dtypes.DType:
    return next(x for x in dtypes.BY_NAME.values() if x.numpy == a.dtype)


def test_copies_of_other_types() -> None:
    def body(convert: bool) -> Callable[..., None]:
        def inner(b: Builder, x: Tile, y: Tile) -> None:
            if not convert:
                b.copy(x, y)
                return
            with b.foreach("i", 4) as i:
                b.set_element(y, [i], b.element(x, [i]))

        return inner

    x, y = np.float16([1, 2, 3, 4]), np.zeros(4, np.float32)
    refused(
        "copy-misfit",
        "conversion belongs to mma.load, mma.store and element loops",
        lambda: ir(body(False), x=x, y=y),
    )
    ir(body(True), x=x, y=y)
    np.testing.assert_array_equal(x, y)
    same = np.zeros(4, np.float16)
    ir(body(False), x=x, y=same)
    np.testing.assert_array_equal(x, same)


def test_products_of_other_extents() -> None:
    def body(b: Builder, x: Tile, y: Tile, z: Tile) -> None:
        with b.parallel(["w"], [1], GROUP):
            mc = b.fill("mc", 0.0, dtypes.f32)
            b.mma(contract, mc, x, y)
            b.store(mc, z)

    x, z = np.ones((8, 16), np.float16), np.zeros((8, 8), np.float32)
    contract = Contract.ROW_ROW
    short, turned = np.ones((8, 12), np.float16), np.ones((16, 8), np.float16)
    for y in (short, turned):
        refused(
            "tile-mismatch", "change the tile extents or the layout contract", lambda y=y: ir(body, x=x, y=y, z=z)
        )
    ir(body, x=x, y=np.ones((8, 16), np.float16), z=z)
    np.testing.assert_array_equal(z, np.full((8, 8), 16))
    contract = Contract.ROW_COL
    ir(body, x=x, y=turned, z=z)
    np.testing.assert_array_equal(z, np.full((8, 8), 16))


def test_instances_that_hold_a_tile_each() -> None:
    def body(b: Builder, x: Tile, z: Tile) -> None:
        mc = b.fill("mc", 1.0, dtypes.f32)
        with b.parallel(["p"], [2], WARPGROUP):
            b.mma(Contract.ROW_ROW, mc, x, x)
        if not inside:
            b.store(mc, z.subspan([1, 1], [0, 0]))
            return
        with b.parallel(["p"], [2], WARPGROUP) as (p,):
            b.store(mc, z.subspan([1, 1], [p, 0]))

    x, z, inside = np.ones((1, 1), np.float16), np.zeros((2, 1), np.float32), False
    refused("fragment-elsewhere", "put this statement into an equal `parallel`", lambda: ir(body, x=x, z=z))
    inside = True
    ir(body, x=x, z=z)
    assert z.tolist() == [[2], [2]]


def test_variables_of_instances() -> None:
    def body(b: Builder, y: Tile) -> None:
        if how == "inside":
            with b.parallel(["p"], [2], GROUP) as (p,):
                n = b.declare("n", 0)
                b.assign(n, p.value)
                b.set_element(y, [p], n)
            return
        n = b.declare("n", 0)
        with b.parallel(["p"], [2], GROUP) as (p,):
            b.assign(n, p.value if how == "apart" else binary("add", 3, 4))
        b.set_element(y, [0], n)

    y, how = np.zeros(2, np.int32), "apart"
    refused("variable-diverged", "declare `n` inside that scope, or assign the same value", lambda: ir(body, y=y))
    for how, wanted in (("inside", [0, 1]), ("equal", [7, 1])):
        ir(body, y=y)
        assert y.tolist() == wanted


def test_subscripts_of_events() -> None:
    def kernel(slots: int, ref: dict[str, Any]) -> t.Kernel:
        b = Builder("f")
        b.array_param("x", dtypes.f32, [4])
        with b.parallel(["blk"], [1], BLOCK):
            e = b.event("e", slots)
            with b.parallel(["g"], [2], GROUP) as (g,):
                with b.inthreads(binary("eq", g.value, 0), asynchronous=True):
                    b.emit(t.TriggerEvent(EventRef(e, **ref)))
                with b.inthreads(binary("eq", g.value, 1), asynchronous=True):
                    b.emit(t.WaitEvent(EventRef(e, **ref)))
        return b.finish()

    def check(slots: int, ref: dict[str, Any]) -> None:
        CheckEvents().run(kernel(slots, ref), [])

    zero = binary("add", 0, 0)
    refused("event-subscript", "write `e[s]`, or `e.at(order)`", lambda: check(2, {}))
    check(2, {"slot": zero})
    check(2, {"order": zero})
    refused(
        "event-subscript", "leave the subscript out, or declare `event e[S]`", lambda: check(0, {"slot": zero})
    )
    check(0, {})
    check(1, {"slot": zero})


def test_arguments_of_the_reference() -> None:
    def body(b: Builder, x: Tile) -> None:
        b.set_element(x, [0], 1.0)

    b = Builder("f")
    x = b.array_param("x", dtypes.f32, [4])
    with b.parallel(["blk"], [1], BLOCK):
        body(b, x)
    kernel = b.finish()
    for wrong in ({}, {"x": np.zeros(4)}, {"x": np.zeros(5, np.float32)}):
        refused(
            "cpu-argument",
            "pass an argument that fits the parameter",
            lambda w=wrong: execute(kernel, w, {}, dims={}),
        )
    right = np.zeros(4, np.float32)
    execute(kernel, {"x": right}, {}, dims={})
    assert right[0] == 1


# ---- functions ---------------------------------------------------------------------------------------------------


def test_scalars_that_c_does_not_have() -> None:
    def made(declared: str) -> Exported:
        text = f"__co__ void k(global f32 [4] x, {declared} v) {{ parallel b by 1 : block {{ x.at(0) = __to<f16>(v); }} }}"
        kernel = co(text)
        return Exported("k", "sm_80", kernel.compile("sm_80").launches, b"")

    refused("cannot-export", "declare it as f32 and convert it in the kernel", lambda: header(made("f16")))
    assert "float v" in header(made("f32"))


def test_folders_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = co("__co__ void k(global f32 [4] x) { parallel b by 1 : block { x.at(0) = 1.0f; } }")
    monkeypatch.setattr(type(kernel.compile("sm_80")), "cubin", b"\x7fELF")
    file = tmp_path / "file"
    file.write_text("")
    refused("export-cannot-write", "choose another folder", lambda: c_export.export(kernel, file / "f", "sm_80"))
    assert all(p.exists() for p in c_export.export(kernel, tmp_path / "folder", "sm_80"))


def test_large_files(monkeypatch: pytest.MonkeyPatch) -> None:
    one = "__co__ void k{0}(global f32 [4] x) {{ parallel b by 1 : block {{ x.at({0}) = 1.0f; }} }}\n"
    monkeypatch.setattr(tokens, "MAX_CHARACTERS", 150)
    texts = [one.format(n) for n in range(2)]
    refused(
        "file-too-large", "one `.co` file per family of kernels", lambda: croqtile.load("".join(texts), "large.co")
    )
    for text in texts:
        assert co(text).compile("sm_80").ptx


def test_descriptors_of_cute() -> None:
    ss = TiledMMA(catalogue["SM90_64x64x16_F16F16F16_SS"])
    rs = TiledMMA(next(a for n, a in catalogue.items() if n.startswith("SM90_64x64x16_F16F16F16_RS")))
    tile = shared_layout("f16", 64, 64, "K", 128)
    thread = rs.thr_slice(0)
    refused("no-descriptors", "use `fragment_A`", lambda: list(thread.descriptors("A", tile.layout, "K")))
    assert thread.fragment_A(thread.partition_A(tile.layout))
    thread = ss.thr_slice(0)
    refused("no-descriptors", "pass what `partition_A` returns", lambda: thread.fragment_A(Layout(64, 1)))
    assert thread.fragment_A(thread.partition_A(tile.layout))
    odd = Layout(((64, 16), 1, 2), ((20, 1), 0, 17))
    refused(
        "no-descriptors", "build the tile from a canonical atom with tile_to_shape", lambda: thread.fragment_A(odd)
    )
    assert thread.fragment_A(thread.partition_A(tile_to_shape(canonical_atom(16, "K", 128), (64, 64))))


# Bytes: a text in a variable would be found as the kernel's text.
KERNEL_BYTES = b'import tilemma as tm\n\n@tm.kernel(source=TEXT)\ndef k(x: tm.Global["f32", 4]):\n    for b in tm.parallel(1, level="block"):\n        x[0] = 1.0\n'


def test_functions_without_a_text(tmp_path: Path) -> None:
    def defined(text: str, given: str | None, name: str = "<no such file>") -> Any:
        linecache.cache.pop(name, None)
        scope: dict[str, Any] = {"TEXT": given}
        exec(compile(text, name, "exec"), scope)
        x = np.zeros(4, np.float32)
        scope["k"](x)
        assert x[0] == 1

    file = tmp_path / "kernel.py"
    file.write_bytes(KERNEL_BYTES.replace(b"(source=TEXT)", b""))

    def spoken() -> None:
        # No variable holds the text, from which it would be read.
        exec(compile(file.read_bytes(), "<none>", "exec"), {})

    refused("no-kernel-source", "put the kernel into a file, or pass its text", spoken)
    defined(file.read_text(), None, str(file))
    defined(KERNEL_BYTES.decode(), KERNEL_BYTES.decode())
    refused(
        "no-kernel-source",
        "pass the text that defines `k`, unchanged",
        lambda: defined(KERNEL_BYTES.decode(), "def q(): pass"),
    )


def test_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "__co__ void k(global f32 [M] x) { parallel b by M / 4 : block { foreach i in 4 { x.at(b # i) = 1.0f; } } }"
    # A page of the limit's size is shown.
    monkeypatch.setattr(picture, "MAX_PAGE", len(picture.draw(co(text), {}, shape="M=4").html))
    refused(
        "picture-too-large", "give smaller sizes with `shape`", lambda: picture.draw(co(text), {}, shape="M=32")
    )


SPARSE = """__co__ void k(global f16 [16, 32] a, global u16 [16, WORDS] e, global f16 [16, 64] b, global f32 [16, 16] c) {
  parallel p by 1 : block { parallel g by 1 : group {
    mc = mma.fill.f32 0.0f; ma = mma.load a; me = mma.load e; mb = mma.load b;
    mma.row.row.sp mc, ma, mb, me; mma.store mc, c;
  } }
}"""


def test_metadata() -> None:
    whole = np.float16(tm.sparse.prune((np.arange(16 * 64).reshape(16, 64) % 5 - 2).astype(np.float16)))
    stored, b, c = (
        tm.sparse.compress(whole, "u16"),
        np.eye(16, 64, dtype=np.float16),
        np.zeros((16, 16), np.float32),
    )
    broken = stored.metadata.copy()
    broken[3, 1] = 0b0001_0001_0001_0001
    kernel = co(SPARSE.replace("WORDS", "4"))
    for target, code, advice in (
        ("cpu", "sparse-pattern", "make the values and their metadata with `tilemma.sparse.compress`"),
        ("machine", "sparse-metadata", "compute the metadata from the positions of the stored elements"),
    ):
        refused(code, advice, lambda target=target: kernel.on(target)(stored.values, broken, b, c))
        kernel.on(target)(stored.values, stored.metadata, b, c)
        np.testing.assert_array_equal(c, whole[:, :16].astype(np.float32))
    refused(
        "sparse-metadata",
        "load u8 [16, 8] or u16 [16, 4] or u32 [16, 2]",
        lambda: co(SPARSE.replace("WORDS", "3")).compile("sm_80"),
    )
    for words in ("u8 [16, 8]", "u16 [16, 4]", "u32 [16, 2]"):
        assert co(SPARSE.replace("u16 [16, WORDS]", words)).compile("sm_80").ptx


def test_types_that_cannot_be_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dtypes, "BY_NAME", dict(dtypes.BY_NAME))

    def entry(name: str) -> dtypes.DType:
        return dtypes.DType(name, 8, "uint", np.dtype(np.uint8), "u8", "b16")

    refused("type-not-registered", "pass `DType(name, bits, kind, ...)`", lambda: dtypes.register("byte"))
    for name in ("f32", "two words"):
        refused("type-not-registered", "use another name", lambda name=name: dtypes.register(entry(name)))
    assert dtypes.register(entry("advised_byte")) is dtypes.dtype("advised_byte")
