# ruff: noqa
# mypy: ignore-errors
import torch
import h18c_a as a
from h18c_a import *
from tilemma.ops.plans import prepared
m,n,k=512,512,16384
x,y=torch.randn(m,k,device="cuda").bfloat16(),torch.randn(n,k,device="cuda").bfloat16()
out=torch.empty(m,n,device="cuda",dtype=torch.bfloat16)
p=arguments.problem(Call(describe(x),describe(y.mT),rules=PLAIN),describe(out),made=True)
q=torch.cuda.current_stream().cuda_stream
for plan,mode in ((P(64,128,split=4),""),(P(64,128,split=3),""),(P(64,176,split=5),""),(P(128,128,split=8),""),(P(64,176,split=5),"spread")):
    a.MODE=mode
    for l in prepared(p,plan)[0][:1]: l.start(q)
torch.mm(x,y.mT,out=out)
torch.cuda.synchronize()
