"""An independent check of synchronisation: a decided kernel is executed for one block, access by access, with a
vector clock for every thread.

Nothing of the pass is used: regions are sets of elements, loops run with numbers, every barrier joins clocks.
Which thread of an instance touches which element is known of copies alone: thread t moves the chunks t,
t + threads, .. of the tile.  Elsewhere all pairs of threads must be ordered; one statement repeated on the same
view keeps its threads to their elements.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product

import numpy as np

from tilemma.atoms import catalogue
from tilemma.ir import expr as e
from tilemma.ir import tile as t
from tilemma.ir.types import Space, View

NEVER = 2**60


@dataclass
class Access:
    op: t.Op
    what: str
    resource: str
    elements: np.ndarray | None
    write: bool
    agent: str
    threads: np.ndarray
    turn: int
    view: tuple
    # For each of the threads: from which of its times on the access is over, and passed to the async proxy.
    over: np.ndarray = field(default=None)
    passed: np.ndarray = field(default=None)
    committed: bool = False
    # For each of the elements of a copy: the number of its thread.
    owners: np.ndarray | None = None


class Oracle:
    def __init__(self, kernel: t.Kernel, dims: dict[str, int], threads: int, block=None):
        self.kernel, self.dims, self.threads = kernel, dims, threads
        self.clock = np.zeros((threads, threads), dtype=np.int64)
        self.history: list[Access] = []
        self.races: list[str] = []
        self.loads: dict[str, list[tuple[View, dict]]] = {}
        self.shared_fragments: set[str] = set()
        self.turn = 0
        # For each loop around: the instances that have left its turn, and by which jump.
        self.left: list[dict] = []
        self.offsets = {}

    def run(self) -> list[str]:
        for op in self.kernel.body:
            assert isinstance(op, t.Parallel)
            env = {i.name: 0 for i in op.indices}
            self.body(op.body, [(np.arange(self.threads), env, 0, self.threads)])
        return self.races

    # ---- control -----------------------------------------------------------------------------------------

    def body(self, body, instances):
        """``instances``: (threads, values of names, first thread, index) of each instance, in lockstep."""
        for op in body:
            self.turn += 1
            # `break` and `continue` end the turns of the innermost loop, for the instances that get to them.
            instances = [i for i in instances if not self.left or i[2:] not in self.left[-1]]
            if instances:
                self.op(op, instances)

    def op(self, op, instances):
        match op:
            case t.Parallel():
                inner = []
                size = op.level.threads
                extents = [self.value(i.extent, instances[0][1]) for i in op.indices]
                for threads, env, first, _ in instances:
                    for n, point in enumerate(product(*(range(x) for x in extents))):
                        start = first + n * size
                        mine = threads[(threads >= start) & (threads < start + size)]
                        values = {i.name: v for i, v in zip(op.indices, point, strict=True)}
                        if len(mine):
                            inner.append((mine, {**env, **values}, start, size))
                self.body(op.body, inner)
            case t.For():
                bounds = (op.start, op.stop, op.step)
                ranges = {tuple(self.value(x, env) for x in bounds) for _, env, _, _ in instances}
                assert len(ranges) == 1, "trip counts differ: not for this oracle"
                staying = instances
                for v in range(*ranges.pop()):
                    here = [(m, {**env, op.index.name: v}, f, s) for m, env, f, s in staying]
                    self.left.append({})
                    self.body(op.body, here)
                    jumped = self.left.pop()
                    staying = [i for i in staying if jumped.get(i[2:]) is not t.Break]
            case t.Break() | t.Continue():
                self.left[-1].update({i[2:]: type(op) for i in instances})
            case t.If() | t.InThreads():
                taken = [i for i in instances if self.value(op.cond, i[1])]
                left = [i for i in instances if not self.value(op.cond, i[1])]
                if taken:
                    self.body(op.then if isinstance(op, t.If) else op.body, taken)
                if left and isinstance(op, t.If):
                    self.body(op.otherwise, left)
            case t.DeclareFragment():
                if op.plan is not None and op.plan.residence == "shared":
                    self.shared_fragments.add(op.name)
            case t.Barrier():
                self.barrier(op, instances)
            case t.CopyCommit() | t.MmaCommit() | t.CopyWait() | t.MmaWait() | t.ProxyFence():
                self.settle(op, instances)
            case _:
                self.statement(op, instances)

    # ---- synchronisation ---------------------------------------------------------------------------------

    def barrier(self, op, instances):
        here = np.unique(np.concatenate([m for m, *_ in instances]))
        if op.threads == self.threads:
            classes = [here]
        else:
            groups: dict = {}
            for m, _, first, size in instances:
                key = first // op.threads if size <= op.threads and (op.id_step or op.threads == 32) else 0
                groups.setdefault(key, []).append(m)
            classes = [np.unique(np.concatenate(g)) for g in groups.values()]
        for members in classes:
            assert len(members) == op.threads, f"{len(members)} threads at a barrier for {op.threads}"
            self.tick(members)
            joined = self.clock[members].max(axis=0)
            self.clock[members] = joined

    def tick(self, threads):
        self.clock[threads, threads] += 1

    def settle(self, op, instances):
        here = np.concatenate([m for m, *_ in instances])
        self.tick(here)
        for a in self.history:
            mine = np.isin(a.threads, here)
            if not mine.any():
                continue
            now = self.clock[a.threads, a.threads]
            kind = {"cp.async": (t.CopyCommit, t.CopyWait), "wgmma": (t.MmaCommit, t.MmaWait)}.get(a.agent)
            if kind and isinstance(op, kind[0]):
                a.committed = True
            elif kind and isinstance(op, kind[1]) and a.committed and op.pending == 0:
                a.over = np.where(mine & (a.over == NEVER), now, a.over)
            elif isinstance(op, t.ProxyFence):
                a.passed = np.where(mine & (a.passed == NEVER) & (a.over <= now), now, a.passed)

    # ---- statements --------------------------------------------------------------------------------------

    def statement(self, op, instances):
        fresh = []
        done = set()
        for threads, env, first, size in instances:
            for what, resource, view, write, agent in self.parts(op, env):
                members = threads
                if isinstance(op, t.Copy) and op.plan is not None:
                    level = op.plan.level
                    if level.kind == "block":
                        if what in done:
                            continue
                        members = np.unique(np.concatenate([m for m, *_ in instances]))
                        assert len(members) == op.plan.threads
                    else:
                        assert level.threads == size
                if isinstance(op, t.Copy):
                    done.add(what)
                fresh.append(self.access(op, what, resource, view, write, agent, members, env))
        for a in fresh:
            self.check(a)
        for a in fresh:
            self.tick(a.threads)
            now = self.clock[a.threads, a.threads]
            a.over = now.copy() if a.agent == "thread" else np.full(len(a.threads), NEVER)
            a.passed = np.full(len(a.threads), NEVER)
        self.history += fresh

    def parts(self, op, env):
        match op:
            case t.Copy(src=src, dst=dst):
                agent = "cp.async" if op.plan.engine == "cp.async" else "thread"
                yield from self.memory("src", src, False, agent)
                yield from self.memory("dst", dst, True, agent)
            case t.Load(src=src, fragment=f):
                if op.plan.method == "descriptor":
                    self.loads[f.name] = [*self.loads.get(f.name, [])[-3:], (src, env)]
                else:
                    yield from self.memory("src", src, False, "thread")
                    yield "reg", f"%{f.name}", None, True, "thread"
            case t.Store(dst=dst, fragment=f):
                yield "reg", f"%{f.name}", None, False, "thread"
                yield from self.memory("dst", dst, True, "thread")
            case t.Fill(fragment=f):
                yield "reg", f"%{f.name}", None, True, "thread"
            case t.SetElement(view=view):
                yield from self.memory("element", view, True, "thread")
            case t.Mma() if catalogue[op.atom].kind == "wgmma":
                for letter, x in (("a", op.a), ("b", op.b)):
                    if isinstance(x, View):
                        yield from self.memory(letter, x, False, "wgmma")
                    elif x.name in self.shared_fragments:
                        src, _ = self.loads[x.name][-1]
                        yield from self.memory(letter, src, False, "wgmma")
                    else:
                        yield letter, f"%{x.name}", None, False, "wgmma"
                yield "c", f"%{op.acc.name}", None, True, "wgmma"
        for x in t_expressions(op):
            for part in e.walk(x):
                if isinstance(part, e.Element):
                    yield from self.memory("read", part.view, False, "thread")

    def memory(self, what, view, write, agent):
        if view.base.space is not Space.LOCAL:
            yield what, view.base.name, view, write, agent

    def access(self, op, what, resource, view, write, agent, members, env):
        elements, owners, seen = (None, None, ()) if view is None else self.elements(view, env)
        if not isinstance(op, t.Copy) or view.static_shape != (op.dst.static_shape or op.src.static_shape):
            owners = None
        else:
            owners = owners * view.base.dtype.bits // 8 // op.plan.vector % op.plan.threads
        return Access(op, what, resource, elements, write, agent, members, self.turn, seen, owners=owners)

    def elements(self, view, env):
        v = view.map(lambda x: e.const(self.value(x, env)))
        axes = [range(e.value_of(a.extent)) for a in v.axes]
        origin = [e.value_of(o) for o in v.offsets]
        slot = -1 if v.slot is None else e.value_of(v.slot)
        # Row-major number of each element in a box wide enough for every buffer of these tests.
        number = np.zeros([len(a) for a in axes] or [1], dtype=np.int64) + slot * 2**40
        for d, o in enumerate(origin):
            number += o * 2 ** (16 * (len(origin) - 1 - d))
        for n, a in enumerate(v.axes):
            shape = [-1 if m == n else 1 for m in range(len(axes))]
            step = e.value_of(a.step) * 2 ** (16 * (len(origin) - 1 - a.dim))
            number = number + (np.arange(len(axes[n])) * step).reshape(shape)
        found, first = np.unique(number, return_index=True)
        return found, first, (tuple(origin), slot)

    def check(self, y):
        for x in self.history:
            if x.resource != y.resource or not (x.write or y.write):
                continue
            if y.elements is None:
                self.check_registers(x, y)
                continue
            if not meet(x.elements, y.elements):
                continue
            same_statement = x.op is y.op and x.what == y.what and x.view == y.view
            proxies = x.write and x.agent != "wgmma" and y.agent == "wgmma"
            over = x.passed if proxies else x.over
            seen = self.clock[np.ix_(y.threads, x.threads)] >= over[None, :]
            own = y.threads[:, None] == x.threads[None, :]
            if same_statement:
                ok = bool((~own | (seen & own)).all())
            elif x.owners is not None and y.owners is not None:
                _, of_x, of_y = np.intersect1d(x.elements, y.elements, True, return_indices=True)
                ok = bool(seen[y.owners[of_y], x.owners[of_x]].all())
            elif len(y.threads) == len(x.threads) == 1:
                ok = bool(seen.all())
            else:
                ok = bool(seen.all()) or self.one_warp(x, y)
            if not ok:
                first, second = (f"{type(a.op).__name__}.{a.what}" for a in (x, y))
                self.races.append(f"{y.resource}: {first} then {second}")

    @staticmethod
    def one_warp(x, y):
        """ldmatrix is `.sync`: a lane past it knows that the whole warp has read."""
        read = isinstance(x.op, t.Load) and x.op.plan.method == "ldmatrix" and not x.write
        return read and len(np.unique(np.concatenate([x.threads, y.threads]) // 32)) == 1

    def check_registers(self, x, y):
        if not np.isin(x.threads, y.threads).any() or (x.agent == y.agent == "wgmma"):
            return
        if (x.over == NEVER).any():
            self.races.append(f"{y.resource}: {type(x.op).__name__} still running at {type(y.op).__name__}")

    # ---- numbers -----------------------------------------------------------------------------------------

    def value(self, x, env):
        table = {n: e.const(v) for n, v in {**self.dims, **env}.items()}
        found = e.substitute(x, table)
        assert isinstance(found, e.Const), found
        return int(found.value)


def t_expressions(op):
    from tilemma.ir.walk import expressions

    return list(expressions(op))


def meet(a, b):
    """Whether two ascending arrays have a common number."""
    if not (len(a) and len(b)) or a[0] > b[-1] or b[0] > a[-1]:
        return False
    if a[0] == b[0]:
        return True
    places = np.searchsorted(a, b)
    return bool((a[np.minimum(places, len(a) - 1)] == b).any())


def races(kernel, dims, threads):
    """The races of one block of ``kernel``, with ``threads`` threads and dimensions ``dims``."""
    return Oracle(kernel, dims, threads).run()
