"""Run-time errors of the reference executor: programs whose result is not defined."""

from __future__ import annotations

from tilemma.errors import CompileError, LaunchError


class ProgramFault(CompileError):
    """The program did something with no defined result."""

    exit_status = 1


class UnwrittenRead(ProgramFault):
    code = "unwritten-read"
    found = "{space} buffer `{buffer}` is read where nothing has been written: {where}"
    expected = "every element read to have been written before"
    fix = "write or copy to `{buffer}` first, or give it an initial value"


class InFlightRead(ProgramFault):
    code = "in-flight-read"
    found = "`{buffer}` is read while an asynchronous copy into it is under way: {where}"
    expected = "a wait for the copy's future or event before its data is used"
    fix = "wait for the copy first"


class InFlightWrite(ProgramFault):
    code = "in-flight-write"
    found = "`{buffer}` is written while an asynchronous copy into it is under way: {where}"
    expected = "a wait for the copy's future or event before its destination is written again"
    fix = "wait for the copy first"


class InFlightSource(ProgramFault):
    code = "in-flight-source"
    found = "`{buffer}` was overwritten while an asynchronous copy was still reading it"
    expected = "the source of a copy to stay as it is until the copy has been waited for"
    fix = "wait for the copy before writing to `{buffer}` again"


class UnwaitedCopy(ProgramFault):
    code = "unwaited-copy"
    found = "the asynchronous copy `{future}` is never waited for"
    expected = "every future to be waited for before its scope ends"
    fix = "add `wait {future}`"
    python_fix = "add `wait({future})`"


class UnwaitedMultiply(ProgramFault):
    code = "unwaited-multiply"
    found = "accumulator `{fragment}` is read before the multiply `{future}` has been waited for"
    expected = "a wait for the multiply's future first"
    fix = "add `wait {future}` before this statement"
    python_fix = "add `wait({future})` before this statement"


class ViewOutside(ProgramFault):
    code = "view-outside"
    found = "the view of `{buffer}` reaches over its edge: {where}"
    expected = "views of shared and local buffers to fit exactly"
    fix = "change the view's origin or extent, or the size of `{buffer}`"


class SlotOutside(ProgramFault):
    code = "slot-outside"
    found = "slot {slot} of `{name}`, which has {slots}"
    expected = "a slot from 0 to {last}"
    fix = "index it modulo its number of slots"


def within(name: str, slot: int, slots: int) -> int:
    """``slot``, which must be one of the ``slots`` of the operand ``name``."""
    if not 0 <= slot < slots:
        raise SlotOutside(name=name, slot=slot, slots=slots, last=slots - 1)
    return slot


class CopyMisfit(ProgramFault):
    code = "copy-misfit"
    found = "a copy from {source} to {target}"
    expected = "equal element types and extents on both sides"
    fix = "make both sides the same tile; conversion belongs to mma.load, mma.store and element loops"


class TileMismatch(ProgramFault):
    code = "tile-mismatch"
    found = "{what}"
    expected = "{rule}"
    fix = "change the tile extents or the layout contract"


class BrokenPattern(ProgramFault):
    code = "sparse-pattern"
    found = "metadata 0b{bits:04b} of row {row}, chunk {chunk} of `{name}`"
    expected = "{rule}"
    fix = "make the values and their metadata with `tilemma.sparse.compress`"


class FragmentUnset(ProgramFault):
    code = "fragment-unset"
    found = "register tile `{name}` is used before it was filled or loaded"
    expected = "a fill or a load that reaches this statement"
    fix = "fill or load `{name}` first"


class FragmentElsewhere(ProgramFault):
    code = "fragment-elsewhere"
    found = "register tile `{name}` is held by {holders} instances of an inner scope"
    expected = "exactly one instance that holds it"
    fix = "put this statement into an equal `parallel`"


class VariableDiverged(ProgramFault):
    code = "variable-diverged"
    found = "`{name}` has a different value in each instance of the scope that just ended"
    expected = "one value for all threads of the scope that declares it"
    fix = "declare `{name}` inside that scope, or assign the same value in all its instances"


class LaneDependent(ProgramFault):
    code = "lane-dependent"
    found = "a statement of a whole group depends on the lane, through {through}"
    expected = "neither its operands nor the control around it to differ between lanes"
    fix = "move the statement out of the `: thread` level, or remove the dependence"
    python_fix = 'move the statement out of the `parallel` with `level="thread"`, or remove the dependence'


class WriteConflict(ProgramFault):
    code = "write-conflict"
    found = "several {who} write different values to the same place in `{buffer}`"
    expected = "one writer for each element, or equal values"
    fix = "give each its own place, or use an atomic operation"


class Deadlock(ProgramFault):
    code = "deadlock"
    found = "no thread can continue: {waiting}"
    expected = "for every wait, a trigger that reaches it"
    fix = "check the initial state of the events (`= ready`), and that every wait has its trigger"
    python_fix = "check the initial state of the events (`ready=True`), and that every wait has its trigger"


class EventOverrun(ProgramFault):
    code = "event-overrun"
    found = "event `{event}` completes generation {done} before a waiter has waited for generation {seen}"
    expected = "an event to be at most one generation ahead of its waits"
    fix = (
        "make the triggering side wait for a release before its next iteration; a counter for `.at` must continue "
        "from one loop to the next, and credits are given once, before the loop"
    )


class EventTwice(ProgramFault):
    code = "event-twice"
    found = "`{event}` is triggered again before the generation is complete that the last trigger belongs to"
    expected = "one trigger for each generation, by each role that triggers the event"
    fix = "wait, between two triggers, for an event that depends on all triggers of this one"


class EventCount(ProgramFault):
    code = "event-count"
    found = "the triggers of event `{event}` disagree: {counts} threads"
    expected = "the sites of one role to be reached by the same instances, and each slot by the same roles"
    fix = "trigger it from equal scopes, or give the count: `event<n>`"
    python_fix = "trigger it from equal scopes, or give the count: `event(threads=n)`"


class AssertionFailed(ProgramFault):
    code = "assertion-failed"
    found = "assertion failed: {message}"
    expected = "the asserted condition to hold"
    fix = "check the arguments of the call"


class NotInReference(CompileError):
    code = "not-in-reference"
    found = "{what} is not built yet in the CPU reference"
    expected = "a construct that the reference executes"
    fix = "leave it out for now"


class ArgumentMisfit(LaunchError):
    code = "cpu-argument"
    found = "kernel `{kernel}`: {what}"
    expected = "{expected}"
    fix = "pass an argument that fits the parameter"
