"""Every hazard that the machine reports, with its reason and its fix."""

from __future__ import annotations

from tilemma.machine.hazards import HazardError


class Race(HazardError):
    code = "race"
    found = "{access} {space}, not ordered after the access of PTX line {first_line}"
    expected = "a barrier, or another release-acquire pair, between the two accesses"
    fix = "add `{barrier}` between PTX lines {first_line} and {second_line}"
    why = (
        "Warps of a CTA usually run close to lockstep and shared memory answers in order, so the other warp "
        "is most often done. A cache miss, another resident CTA or a newer GPU changes which warp comes first."
    )

    @property
    def remedy(self) -> str:
        """The barrier, and where: a loop's iterations, or CTAs, can collide at one line."""
        facts = self.facts
        if self.advice or type(self) is not Race:
            return super().remedy
        barrier = f"`{facts['barrier']}`" if str(facts["barrier"]).endswith(";") else facts["barrier"]
        first, second = facts["first_line"], facts["second_line"]
        if first == second:
            return f"add {barrier} between two executions of PTX line {first}"
        if facts.get("carried"):
            low, high = min(first, second), max(first, second)
            return f"add {barrier} after PTX line {high}, before the next execution of PTX line {low}"
        return f"add {barrier} between PTX lines {min(first, second)} and {max(first, second)}"


class RaceOfEqualValues(Race):
    code = "race-equal-values"
    found = "{access} {space}, not ordered after the same store of another warp, of the same value"
    expected = "one writer, or a barrier between the two"
    fix = "let one warp write, or add `{barrier}`"
    why = (
        "Triton lets several warps write the same values to the same place (`tl.histogram`, reductions along the "
        "slowest axis). The ISA calls it a data race; both orders leave the same values. A note by "
        "default, an error under `--strict`."
    )
    strict_only = True


class RaceOfRoundedValues(Race):
    code = "race-rounded-values"
    found = "{access} {space}; the values differ by their rounding only"
    expected = "one lane that writes"
    fix = "let one lane write, or compute the value in the same way in all lanes"
    why = (
        "In a reduction of a product (`tl.sum(x * y)`) Triton fuses the multiplication into the first sum of a "
        "butterfly, so that the lanes of a pair round differently; all of them write the result. Which one stays "
        "is open, so that the last bits of the result are. Launched with `enable_fp_fusion=False` the values are "
        "equal. A note by default, an error under `--strict`."
    )
    strict_only = True


class RaceOfLanes(Race):
    code = "race-lanes"
    found = "{access} {space}; not all lanes that read it at PTX line {first_line} are known to be past that line"
    expected = "`bar.warp.sync` between an `ldmatrix` and the arrival by one lane on behalf of the whole warp"
    fix = "add `bar.warp.sync 0xffffffff;` after PTX line {first_line} and before one lane signals the writer"
    why = (
        "A lane that is past a `.sync` matrix load knows that its whole warp has executed it, and widely used "
        "pipelines let it release the buffer; but by the text of the ISA only a barrier orders the other lanes' "
        "reads. A note by default, an error under `--strict`."
    )
    strict_only = True


class RaceOfUnusedValue(Race):
    code = "race-unused-value"
    found = "{access} {space}, not ordered after the access of PTX line {first_line}, of a value that is not used"
    expected = "a load by the thread that stores, or a barrier between the loads of the others and the store"
    fix = "load the value only in the thread that stores, or add `{barrier}` before PTX line {second_line}"
    why = (
        "Where one thread adds to a scalar in memory, Triton (also as the compiler of torch.compile) lets all "
        "threads load it, compute, and guards the store alone. The other threads see the old value or the new one "
        "and use neither. The ISA calls it a data race. A note by default, an error under `--strict`."
    )
    strict_only = True


class RaceOfTensorMapCopy(Race):
    code = "race-tensor-map-copy"
    found = "{access} {space}; the warp's lanes are not ordered after the write of PTX line {first_line}"
    expected = "`bar.warp.sync` between the change of a tensor map by one lane and its copy by the warp"
    fix = "add `bar.warp.sync 0xffffffff;` before PTX line {second_line}"
    why = (
        "Triton 3.6 changes a tensor map with lane 0 and copies it with the whole warp at once. By its `.sync` "
        "the copy waits for all lanes; by the text of the ISA only a barrier orders their memory accesses. A "
        "note by default, an error under `--strict`."
    )
    strict_only = True


class ReadBeforeArrival(HazardError):
    code = "read-before-arrival"
    found = "{access} {space} before the {agent} of PTX line {other_line} is known to have arrived"
    expected = "a wait for that copy, visible to the thread that reads"
    fix = "{wait}"
    in_general = "wait for the copy (its group or its mbarrier), then a barrier for the threads that did not wait"
    why = (
        "The copy is often fast enough, above all when its data is in L2 from an earlier run; then the old "
        "contents of shared memory are those of the same tile."
    )


class OverwriteInFlight(HazardError):
    code = "overwrite-in-flight"
    found = "{access} {space} that the {agent} of PTX line {other_line} may still be {doing}"
    expected = "the {agent} has finished before these bytes are overwritten"
    fix = "{wait}"
    in_general = (
        "wait for the reader's group (`wgmma.wait_group`, "
        "`cp.async.bulk.wait_group.read`), then tell the writer through a barrier or an mbarrier; of two CTAs let "
        "one write each element of global memory, or order them"
    )
    why = (
        "The tensor core or the copy engine normally reads its source soon after issue; under load, power "
        "throttling or deeper pipelining it reads later, and then reads the next tile's bytes."
    )


class OverwriteOfOtherWarps(OverwriteInFlight):
    code = "overwrite-in-flight-warps"
    found = "{access} {space}; not all warps are known to have waited for PTX line {other_line}"
    expected = "all four warps of the warpgroup have waited for their part, and the writer is ordered after that"
    fix = "let each of the four warps signal the writer after its own wait, or add a barrier of the warpgroup"
    in_general = ""
    why = (
        "A wgmma group belongs to the warpgroup, and widely used pipelines let one of its threads release the "
        "buffer; but `wgmma.wait_group` makes only its own warp wait. A note by default, an error under "
        "`--strict`."
    )
    strict_only = True


class OverwriteOfWarpsByStore(OverwriteOfOtherWarps):
    code = "overwrite-in-flight-store"
    found = "{access} {space}; not all warps are known to have waited for PTX line {other_line}"
    fix = "add a barrier of the warpgroup between `wgmma.wait_group` and the store"
    why = (
        "`wgmma.wait_group` makes only its own warp wait. The four warps usually run close together, so that the "
        "others' part of the product has been read too."
    )
    strict_only = False


class MissingProxyFence(HazardError):
    code = "missing-proxy-fence"
    found = "{access} through the async proxy {space} that PTX line {other_line} wrote through the generic proxy"
    expected = 'a proxy fence between the write and the access (PTX ISA, "Proxies")'
    fix = (
        "add `fence.proxy.async.shared::cta;` after the write of PTX line {other_line} and before the barrier "
        "that hands the data over"
    )
    why = (
        "The two proxies use different paths to the same memory. On today's chips stores usually drain in "
        "time, so that the stale read shows up only now and then."
    )


class MissingProxyFenceGlobal(MissingProxyFence):
    code = "missing-proxy-fence-global"
    fix = (
        "add `fence.proxy.async.global;` after the write of PTX line {other_line} and before the release that "
        "hands the data over, or before the copy"
    )
    why = (
        "The copy engine reads global memory through the async proxy, stores write it through the generic proxy. "
        "A copy that runs soon after the store may read what was there before."
    )


class MissingProxyFenceAfterCopy(MissingProxyFence):
    code = "missing-proxy-fence-cp-async"
    found = "{access} through the async proxy {space} that the cp.async of PTX line {other_line} wrote"
    expected = "by the PTX ISA, `fence.proxy.async` by each writer after its wait, then a barrier"
    fix = "add `fence.proxy.async.shared::cta;` between `cp.async.wait_group` and the barrier"
    why = (
        "cp.async writes through the generic proxy. Widely used kernels omit the fence and no failure is "
        "known; the ISA promises nothing. A note by default, an error under `--strict`."
    )
    strict_only = True


class MissingProxyFenceAfterRead(MissingProxyFence):
    code = "missing-proxy-fence-read"
    found = "{access} through the async proxy {space} that PTX line {other_line} read through the generic proxy"
    fix = (
        "add `fence.proxy.async.shared::cta;` after the read of PTX line {other_line} and before the arrival or "
        "barrier that gives the buffer back"
    )
    why = (
        "The two proxies are not ordered against each other: a copy may overtake a read that was issued before "
        "it. Pipelines whose buffers only tensor cores read need no fence; others have seen stale tiles under "
        "load (deepseek-ai/DeepEP#621). A note by default, an error under `--strict`."
    )
    strict_only = True


class MissingTensorMapFence(HazardError):
    code = "missing-tensor-map-fence"
    found = "a copy uses the tensor map at global address {address:#x}, which PTX line {other_line} has written"
    expected = "a proxy fence of the warp that issues the copy, after the write is known to it"
    fix = "add `fence.proxy.tensormap::generic.acquire.gpu [map], 128;` before the copy"
    why = (
        "The copy engine keeps tensor maps in a cache of its own. A map that is used for the first time is read "
        "from memory; one that has been changed may still be the old one."
    )


class UninitialisedShared(HazardError):
    code = "uninitialised-shared"
    found = "{access} {space} that nothing has written"
    expected = "every byte that is read was written before"
    fix = "write the bytes first (zero-fill what lies beyond the edge of the tensor), or read fewer"
    why = (
        "Shared memory keeps the data of the previous CTA or kernel; that is often zero or the very same "
        "data from the run before."
    )


class UninitialisedRegister(HazardError):
    code = "uninitialised-register"
    found = "register `{register}` is read before anything wrote it"
    expected = "a write on every path to the read"
    fix = "initialise `{register}`, for example with `mov`, before the branch"
    why = "The register holds whatever an earlier value of the same physical register was; zero is common."


class OutOfBounds(HazardError):
    code = "out-of-bounds"
    found = "{access} {space}, {what}"
    expected = "addresses inside an allocation"
    fix = "predicate the access, or correct the address arithmetic or the extents"
    why = (
        "Device allocations lie next to one another and shared memory is larger than what a CTA asked for: "
        "the access hits mapped memory and silently reads or destroys something else."
    )


class Misaligned(HazardError):
    code = "misaligned"
    found = "{access} at address {address:#x}, which is no multiple of {alignment}"
    expected = 'an address aligned to {alignment} bytes (PTX ISA, "{section}")'
    fix = "align the base and the stride, or use a narrower access"
    why = "Ordinary loads trap, but matrix, bulk and descriptor accesses drop the low bits and read elsewhere."


class WriteToReadOnly(HazardError):
    code = "write-to-read-only"
    found = "{access} the array `{array}`, which is read-only by the launch or by NumPy's `writeable` flag"
    expected = "writes only to arrays that are not read-only"
    fix = "declare the array as written, or correct the address"
    why = "Nothing protects device memory against a kernel; the caller's data changes silently."


class RegisterInFlight(HazardError):
    code = "register-in-flight"
    found = "register `{register}` is {how} while the wgmma of PTX line {other_line} may still {use} it"
    expected = "`wgmma.wait_group` for that wgmma's group before its registers are touched"
    fix = "add `wgmma.wait_group.sync.aligned 0;` before PTX line {ptx_line} (commit the group first)"
    why = (
        "wgmma works on registers after the instruction has been issued. Short ones finish before the next "
        "instructions get that far, and ptxas inserts waits of its own where it sees the hazard."
    )


class RegisterInFlightBeforeWait(HazardError):
    code = "register-in-flight-before-wait"
    found = "results of the wgmma of PTX line {other_line} are used before the `wgmma.wait_group` that follows"
    expected = "`wgmma.wait_group` for that wgmma's group before its registers are touched"
    fix = "move the `wgmma.wait_group.sync.aligned 0;` before PTX line {ptx_line} (commit the group first)"
    why = (
        "Triton 3.9 emits this for `tl.dot` with sums in f16 and for sums of limited precision of 8-bit floats: "
        "LLVM moves instructions on registers before the wait. ptxas sees the use and makes the wgmma complete "
        "before it, which costs the overlap. A note by default, an error under `--strict`."
    )
    strict_only = True


class MissingWgmmaFence(HazardError):
    code = "missing-wgmma-fence"
    found = "wgmma uses registers ({registers}) that were {touched} without a `wgmma.fence` in between"
    expected = "`wgmma.fence.sync.aligned` before the first wgmma and after its registers were touched"
    fix = "add `wgmma.fence.sync.aligned;` before PTX line {ptx_line}"
    why = "ptxas often serialises such code or the register write has long retired; nothing guarantees it."


class MissingWgmmaFenceAfterMove(MissingWgmmaFence):
    code = "missing-wgmma-fence-after-move"
    why = (
        "Triton 3.9 emits this for a `tl.dot` that starts from a loaded value: LLVM places the copies of the "
        "registers between the fence and the first wgmma. ptxas sees the copies and orders them. A note by "
        "default, an error under `--strict`."
    )
    strict_only = True


class InadmissibleDescriptor(HazardError):
    code = "inadmissible-descriptor"
    found = "the descriptor of operand {operand}, {descriptor:#018x}: {problem}"
    expected = 'a descriptor that the ISA admits (PTX ISA, "Matrix Descriptor Format")'
    fix = "correct the field; {advice}"
    why = "The tensor core never traps on a descriptor: it reads whatever bytes the fields lead to."


class SwizzleMismatch(HazardError):
    code = "swizzle-mismatch"
    found = "operand {operand} is read with swizzle {reader}, but PTX line {other_line} wrote it with {writer}"
    expected = "writer and reader agree on the swizzle"
    fix = "set the descriptor's swizzle mode (bits 62-63: 0 none, 1 128 B, 2 64 B, 3 32 B) to match the tensor map"
    why = "All bytes are there, permuted within the rows: constant or symmetric test data gives the right sum."


class OperandLayout(HazardError):
    code = "operand-layout"
    found = "operand {operand} as the instruction reads it is no tile of `{array}`: {what}"
    expected = "row r and column k of the operand come from one row and one column of the tensor"
    fix = "make the layout that wrote the tile (swizzle, strides, box) the one that the instruction reads"
    why = (
        "The elements are all there but in other places; constant or symmetric test data hides it. Not found: a "
        "whole tile that is read in place of another one of the same array (rows read twice, the columns of an "
        "earlier stage, both operands further along K). Valid programs do the same: row numbers modulo M repeat "
        "rows at the edge, shifted products pair any columns. A comparison of results (`--expect`) finds these."
    )


class WgmmaNotUniform(HazardError):
    code = "wgmma-not-uniform"
    found = "{what}"
    expected = "all four warps of the warpgroup execute the same wgmma with the same operands"
    fix = "take the branch at warpgroup granularity; build descriptors from values equal in all four warps"
    why = "The hardware takes the descriptor of one warp; the others' values are not looked at."


class MbarrierBeforeInit(HazardError):
    code = "mbarrier-before-init"
    found = "{access} the mbarrier at shared address {address:#x}, {what}"
    expected = "`mbarrier.init` by one thread, then a barrier, then use"
    fix = "{fix_text}"
    in_general = "initialise the mbarrier in one thread, and put a barrier between that and the first use"
    why = "Leftover shared memory often looks like a valid barrier from the run before."


class MbarrierInitNotVisible(HazardError):
    code = "mbarrier-init-not-visible"
    found = (
        "an asynchronous copy uses the mbarrier at {address:#x}, whose init at PTX line {other_line} is not fenced"
    )
    expected = "`fence.mbarrier_init` or `fence.proxy.async` after the init, before the async proxy uses it"
    fix = "add `fence.mbarrier_init.release.cluster;` after PTX line {other_line}"
    why = "The init has usually reached shared memory by the time the copy engine looks at it."


class MbarrierInitNotVisibleToCopy(MbarrierInitNotVisible):
    code = "mbarrier-init-not-visible-cta"
    why = (
        "For copies to an mbarrier of its own CTA, Triton (3.9) puts only a `bar.sync` between the init and the "
        "first tensor copy, CuTe's tutorial for Hopper a barrier of the cluster, and no failure is known; the ISA "
        "asks for the fence. A note by default, an error under `--strict`."
    )
    strict_only = True


class MbarrierReinit(HazardError):
    code = "mbarrier-reinit"
    found = "mbarrier at {address:#x}: {what}"
    expected = "an mbarrier is initialised once, and invalidated before its bytes are used otherwise"
    fix = "{fix_text}"
    in_general = (
        "initialise once, by one thread; give data other bytes; `mbarrier.inval` before "
        "the bytes serve something else"
    )
    why = "The 8 bytes are ordinary memory to the hardware; a write merely changes the counts."


class MbarrierArrivals(HazardError):
    code = "mbarrier-arrivals"
    found = "{n} arrivals on the mbarrier at {address:#x}, which expects {pending} more (of {expected_count})"
    expected = "as many arrivals in a phase as the count given to `mbarrier.init`"
    fix = "correct the count of `mbarrier.init` (PTX line {init_line}), or the arrivals"
    why = "The surplus counts to the next phase, which then completes too early; often nothing reads yet."


class MbarrierIncomplete(HazardError):
    code = "mbarrier-complete"
    found = "mbarrier at {address:#x}: {what}"
    expected = "fewer arrivals by `.noComplete` than the phase still expects (PTX ISA, `mbarrier.arrive`)"
    fix = "leave out `.noComplete` for the last arrivals, or correct the count of `mbarrier.init`"
    why = "The unit counts as for any arrival; what it does when the count reaches zero is not defined."


class MbarrierBytes(HazardError):
    code = "mbarrier-bytes"
    found = "mbarrier at {address:#x}: {what}"
    expected = "in each phase `expect_tx` announces exactly the bytes of its copies"
    fix = "make the expected bytes equal to the sum of the boxes bound to the barrier in one phase"
    why = "With too few bytes expected the phase completes early, and the rest of the tile mostly arrives in time."


class Deadlock(HazardError):
    code = "deadlock"
    found = "no warp can go on: {summary}"
    expected = "every wait is answered by an arrival, a copy or a barrier"
    fix = "{advice}"
    in_general = "add the missing arrival, bytes or warp that the wait-for graph names"
    why = (
        "On hardware this is a hang; with other tile counts or clock rates the same code may pass. A warp that "
        "has missed a phase of an mbarrier and does nothing afterwards that others can see is a note by default, "
        "an error under `--strict`: TileLang's producers have such warps beside the one that issues the copies."
    )


class AlignedUnderDivergence(HazardError):
    code = "aligned-under-divergence"
    found = "`{opcode}` is executed by lanes {active} of a warp whose lanes {live} are alive"
    expected = "`.aligned` and `.sync` instructions are executed by all their threads together"
    fix = "move the instruction out of the branch, or make the branch uniform for the warp"
    why = "Some chips execute it as if all lanes were there, some hang, some give undefined results."


class ShuffleOfInactiveLane(HazardError):
    code = "shuffle-inactive-lane"
    found = "`{opcode}` reads the register of lane {sources}, which does not execute it"
    expected = 'a source lane that has not exited and is in the member mask (PTX ISA, "shfl.sync")'
    fix = "keep all lanes of the warp until the shuffle is done, or limit it to those that are there (operand c)"
    why = "The value is whatever the register file holds: often the lane's last value, which may be the right one."


class BarrierCount(HazardError):
    code = "barrier-count"
    found = "barrier {barrier}: {what}"
    expected = "all participants of a barrier's phase name the same thread count, and exactly that many arrive"
    fix = "give every `bar` on barrier {barrier} the count of the threads that take part"
    why = "A wrong count releases the barrier early, or mixes two phases; the data has often arrived anyway."


class RegisterPool(HazardError):
    code = "setmaxnreg-pool"
    found = "{what}"
    expected = "the CTA's warps together never need more registers than the kernel was launched with"
    fix = "lower the `inc` counts or let the other warpgroups `dec` further first"
    why = "`setmaxnreg.inc` waits until registers are free: it hangs, or works only while few CTAs are resident."


class ExitBeforeCluster(HazardError):
    code = "exit-before-cluster"
    found = "{access} the shared memory of CTA {rank} of the cluster, whose warps have all exited"
    expected = "a CTA exits only after all accesses of the cluster to its shared memory"
    fix = (
        "end every CTA with `barrier.cluster.arrive` and `barrier.cluster.wait`; in a kernel with `drained` leave "
        "that out, or let each block wait, before it ends, for what the others do to its shared memory and events"
    )
    why = "Its shared memory is not handed out at once; when it is, the access corrupts another CTA."


class ExitWithPending(HazardError):
    code = "exit-with-pending"
    found = "the CTA's threads exit while the {agent} of PTX line {other_line} {what}"
    expected = "a wait for every asynchronous operation that uses the CTA's shared memory or registers"
    fix = "{wait}"
    in_general = "wait for the operation before the threads exit"
    why = "Shared memory of the finished CTA is often not reused before the operation is done."


class NotInTarget(HazardError):
    code = "not-in-target"
    found = "`{opcode}` needs {needs}, the target is {target}"
    expected = "instructions of the target"
    fix = "compile for {needs}, or use another instruction"
    why = "The assembler refuses it; text that reaches the machine without one must be refused too."


class NoSuchForm(HazardError):
    code = "no-such-form"
    found = "`{opcode}` does not exist: {reason}"
    expected = "a combination of shape, types and modifiers that the ISA lists"
    fix = "choose another form; `tilemma atoms` lists those there are"
    why = "ptxas is more lenient than the ISA in places (sparsity selectors), and the result is then undefined."


class SparseMetadata(HazardError):
    code = "sparse-metadata"
    found = "{what}"
    expected = 'metadata that the ISA defines (PTX ISA, "Sparse matrix storage")'
    fix = "compute the metadata from the positions of the stored elements"
    why = "The tensor core picks some elements of B whatever the metadata says."


class BadTensorMap(HazardError):
    code = "tensor-map-inadmissible"
    found = "{what}"
    expected = "a tensor map that the driver can encode, used as it was encoded"
    fix = "correct the tensor map or the copy"
    why = "The driver refuses a bad map, but a copy that uses a good one wrongly moves other bytes."


class MbarrierElsewhere(HazardError):
    code = "mbarrier-elsewhere"
    found = "`{opcode}` writes to CTA {written} and completes on an mbarrier of CTA {awaited}"
    expected = "the destination and its mbarrier in one CTA (PTX ISA, `cp.async.bulk`, `st.async`, `red.async`)"
    fix = "map both addresses to the same rank with `mapa`"
    why = "The ISA leaves the behaviour open: the bytes may be counted by another mbarrier, or not at all."


class ElectedOnce(HazardError):
    code = "copy-by-many"
    found = "`{opcode}` is executed by {n} lanes at once with the same operands"
    expected = "one thread issues a bulk copy"
    fix = "elect one thread: `elect.sync` and a predicate"
    why = "Each lane issues its own copy: the bytes are right, the barrier is completed several times over."


class StepLimit(HazardError):
    code = "step-limit"
    found = "{steps} warp instructions were executed without an end"
    expected = "a kernel that ends within the limit"
    fix = "look at the loop at this line, or raise `max_steps`"
    why = "A loop that never ends is a hang."


class Trap(HazardError):
    code = "trap"
    found = "the program executed `{opcode}`"
    expected = "no trap"
    fix = "see the assertion that leads to this line"
    why = "Hardware stops the kernel too, with an unspecific launch failure."
