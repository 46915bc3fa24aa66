# ruff: noqa
# mypy: ignore-errors
import torch
from torch.profiler import profile, ProfilerActivity
shapes=[(512,512,16384),(256,512,65536),(408,496,48640),(392,512,48896),(480,480,64000),(416,480,39296),(344,496,27392),(1000,1000,1000),(736,1472,752)]
z=torch.empty(256<<20,dtype=torch.uint8,device="cuda")
ab=[(torch.randn(m,k,device="cuda").bfloat16(),torch.randn(n,k,device="cuda").bfloat16()) for m,n,k in shapes]
for a,b in ab: a@b.mT
torch.cuda.synchronize()
with profile(activities=[ProfilerActivity.CUDA]) as prof:
    for a,b in ab:
        for _ in range(2): z.zero_(); a@b.mT
    torch.cuda.synchronize()
import json,os
prof.export_chrome_trace("/tmp/h18c_t.json")
d=json.load(open("/tmp/h18c_t.json"))
ev=sorted([e for e in d["traceEvents"] if e.get("cat")=="kernel"],key=lambda e:e["ts"])
for e in ev:
    if "elementwise" in e["name"] or "FillFunctor" in e["name"]: continue
    g=e["args"]; print(round(e["dur"],1),g.get("grid"),g.get("block"),"smem",g.get("shared memory"),e["name"][:170])
