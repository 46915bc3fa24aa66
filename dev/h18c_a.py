# ruff: noqa
# mypy: ignore-errors
import sys, time, os, subprocess
from dataclasses import replace
from functools import partial
from concurrent.futures import ProcessPoolExecutor
import sweep_ops as s
from tilemma.ops import arguments, candidates as cand, steps as st_
from tilemma.ops.arguments import Call, PLAIN
from tilemma.ops.plan import Plan, Hardware, estimate
from tilemma.ops.operand_layouts import transposed_product
from tilemma.ops.steps import steps, workspaces
from tilemma.kernels import facts_of
from tilemma.runtime.arrays import describe
MODE = ""
_old = st_._constants
def _new(problem, plan):
    v = _old(problem, plan)
    if plan.by_hand: v["MODE"] = MODE
    return v
st_._constants = _new
def P(m, n, k=64, split=1, st=0, swap=False, cluster=(1, 1), share=True, grid=132, raster=16):
    groups = 2 if m == 128 else 1
    st = st or min(8, (227*1024-1024)//((m+n)*k*2))
    return Plan("pipelined", (m, n, k), groups, st, raster, grid//(cluster[0]*cluster[1]), split, "direct", swap, (), cluster, share, False, True)
CASES = {
 (512,512,16384): [(P(64,128,split=4),["","loads","l2","l2loads","spread"]),(P(64,128,split=3),["","loads","l2","l2loads"]),(P(64,176,split=5),["","loads","l2","l2loads","spread"]),
   (P(128,128,split=8),["","loads","l2","l2loads","spread"]),(P(128,128,split=7),[""]),(P(128,128,split=8,cluster=(2,1)),["","loads","l2"]),(P(64,256,split=8),["","loads","l2"]),(P(64,256,split=6),[""]),(P(128,256,split=16),["","l2"])],
 (256,512,65536): [(P(64,128,split=8),["","loads","l2","l2loads"]),(P(64,128,split=7),["","loads"]),(P(64,176,split=11),["","loads","l2"]),(P(128,128,split=16),["","loads","l2"]),(P(64,256,split=16),["","loads","l2"]),(P(64,128,128,split=8),["","loads"]),(P(128,176,split=22),[""])],
 (408,496,48640): [(P(64,256,split=9),["","loads","l2","l2loads"]),(P(64,176,split=6),["","loads"]),(P(64,128,split=4),[""]),(P(128,168,split=11),["","loads"]),(P(128,128,split=8),["","loads","l2"]),(P(64,168,split=6),["","loads","l2"]),(P(64,248,split=9),["","loads","l2"])],
}
def compile_one(x):
    global MODE
    shape, plan, MODE, pad = x
    sh = s.Shape("long K", *shape)
    call, out = s.call_of(sh, s.imagined)
    problem = arguments.problem(call, out, made=True)
    p = transposed_product(problem) if plan.swap else problem
    work = {n: s.imagined(a, d, False) for n, (a, d) in workspaces(p, plan).items()}
    bad = []
    for step in steps(p, plan, work):
        names = [a.buffer.name for a in step.kernel.build(**step.constants).arrays]
        facts = facts_of(dict(zip(names, step.args, strict=False)))
        try:
            cubin = step.kernel.compile("sm_90a", facts=facts, **step.constants).assembled()
            if cubin.spills or cubin.warnings: bad.append((plan, MODE, cubin.spills, cubin.warnings))
        except Exception as e: bad.append((plan, MODE, str(e)[:300]))
    return bad
def main():
    jobs = [(sh, p, m, 0) for sh, l in CASES.items() for p, ms in l for m in ms]
    t = time.time()
    with ProcessPoolExecutor(int(os.environ.get("J", 15))) as pool:
        for b in pool.map(compile_one, jobs):
            if b: print(b)
    print("compiled", len(jobs), time.time() - t, flush=True)
    if "dry" in sys.argv: return
    global MODE
    import torch
    from ops_types import replayed
    from tilemma.ops.plans import prepared, _calls, _launches
    def start(ls):
        q = torch.cuda.current_stream().cuda_stream
        for l in ls: l.start(q)
    for (m, n, k), l in CASES.items():
        for pad in (0, 64):
            ab = [(torch.randn(m, k+pad, device="cuda").bfloat16()[:, :k], torch.randn(n, k+pad, device="cuda").bfloat16()[:, :k]) for _ in range(3)]
            out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
            problems = [arguments.problem(Call(describe(a), describe(b.mT), rules=PLAIN), describe(out), made=True) for a, b in ab]
            want = ab[0][0].double() @ ab[0][1].double().mT
            rows, runs, alive = [], [], []
            for plan, modes in l:
                for MODE in modes if not pad else modes[:2]:
                    found = [prepared(p, plan) for p in problems]
                    alive.append(found)
                    if MODE in ("", "spread"):
                        out.fill_(float("nan")); start(found[0][0]); off = ((out.double()-want).abs().max()/want.abs().max()).item()
                        if not off < 0.01: print("WRONG", off, plan, MODE)
                    runs.append(lambda i, f=found: start(f[i][0])); rows.append((s.brief(plan), MODE or "full"))
                    if MODE == "":
                        runs.append(lambda i, f=found: start(f[i][0][:1])); rows.append((s.brief(plan), "main"))
                        if not pad:
                            runs.append(lambda i, f=found: start(f[i][0][1:])); rows.append((s.brief(plan), "add"))
            runs.append(lambda i: torch.mm(ab[i][0], ab[i][1].mT, out=out)); rows.append(("torch", ""))
            for r in runs: r(0)
            ts = replayed(runs, 3, 9)
            print((m, n, k), "pad", pad, "torch", round(ts[-1], 1))
            last = None
            for (a, b), x in zip(rows[:-1], ts):
                if a != last: print("\n   ", a, end=": ")
                last = a
                print(b, round(x, 1), end=" ")
            print(flush=True)
    torch.cuda.synchronize()
if __name__ == "__main__": main()
