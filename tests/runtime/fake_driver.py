from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from typing import Any


class FakeDriver:
    """A driver that records what it is asked, with host memory as device memory."""

    def __init__(self, capabilities: tuple[tuple[int, int], ...] = ((9, 0), (8, 0))) -> None:
        self.capabilities = capabilities
        self.calls: list[tuple[Any, ...]] = []
        self.launches: list[dict[str, Any]] = []
        self.context_stack: list[int] = []
        self.modules: list[bytes] = []
        self.static_shared = 0
        self.required_cluster = 0
        self.memory: dict[int, Any] = {}
        self.capturing: set[int] = set()
        self._numbers = itertools.count(100)

    def count(self, name: str) -> int:
        return sum(call[0] == name for call in self.calls)

    def device_count(self) -> int:
        return len(self.capabilities)

    def device_name(self, ordinal: int) -> str:
        return f"Fake {ordinal}"

    def device_attribute(self, ordinal: int, name: str) -> int:
        major, minor = self.capabilities[ordinal]
        known = {"COMPUTE_CAPABILITY_MAJOR": major, "COMPUTE_CAPABILITY_MINOR": minor}
        known |= {"MEMORY_CLOCK_RATE": 3_201_000, "GLOBAL_MEMORY_BUS_WIDTH": 6144}
        return known.get(name, 232448 if name == "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN" else 1)

    def primary_context(self, ordinal: int) -> int:
        self.calls.append(("primary_context", ordinal))
        return 1000 + ordinal

    def current_context(self) -> int:
        return self.context_stack[-1] if self.context_stack else 0

    def push_context(self, context: int) -> None:
        self.calls.append(("push_context", context))
        self.context_stack.append(context)

    def pop_context(self) -> None:
        self.calls.append(("pop_context",))
        self.context_stack.pop()

    def load_module(self, image: bytes) -> Any:
        assert self.current_context(), "a module is loaded into a context"
        self.modules.append(image)
        return ("module", self.current_context(), len(self.modules))

    def function(self, module: Any, name: str) -> Any:
        return (module, name)

    def function_attribute(self, function: Any, name: str) -> int:
        known = {"SHARED_SIZE_BYTES": self.static_shared, "REQUIRED_CLUSTER_WIDTH": self.required_cluster}
        return known.get(name, 32)

    def set_function_attribute(self, function: Any, name: str, value: int) -> None:
        self.calls.append(("set_function_attribute", name, value))

    def tensor_map(self, *fields: Any) -> bytes:
        self.calls.append(("tensor_map", *fields))
        return bytes([self.count("tensor_map") % 256]) * 128

    def launcher(
        self,
        function: Any,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared: int,
        cluster: tuple[int, int, int] | None,
        overlap: bool = False,
    ) -> Callable[[int, int], None]:
        def launch(stream: int, arguments: int) -> None:
            self.launches.append(
                {
                    "function": function,
                    "grid": grid,
                    "block": block,
                    "shared": shared,
                    "cluster": cluster,
                    "overlap": overlap,
                    "stream": stream,
                    "arguments": arguments,
                    "context": self.current_context(),
                }
            )

        return launch

    def allocate(self, size: int) -> int:
        room = ctypes.create_string_buffer(size)
        self.memory[ctypes.addressof(room)] = room
        return ctypes.addressof(room)

    def allocate_zeroed(self, size: int) -> int:
        self.calls.append(("allocate_zeroed", size))
        return self.allocate(size)

    def free(self, pointer: int) -> None:
        del self.memory[pointer]

    def copy_to_device(self, target: int, source: int, size: int) -> None:
        ctypes.memmove(target, source, size)

    def copy_to_host(self, target: int, source: int, size: int) -> None:
        ctypes.memmove(target, source, size)

    def copy(self, target: int, source: int, size: int) -> None:
        ctypes.memmove(target, source, size)

    def fill(self, pointer: int, value: int, size: int) -> None:
        ctypes.memset(pointer, value, size)

    def fill_async(self, pointer: int, value: int, size: int, stream: int) -> None:
        self.calls.append(("fill_async", size, stream))

    def event(self) -> Any:
        return []

    def record(self, event: Any, stream: int) -> None:
        # A launch takes a microsecond.
        event[:] = [len(self.launches)]

    def reached(self, event: Any) -> bool:
        return False

    def elapsed(self, start: Any, stop: Any) -> float:
        return (stop[0] - start[0]) * 1e-6

    def synchronize(self, stream: int) -> None:
        self.calls.append(("synchronize", stream))

    def is_capturing(self, stream: int) -> bool:
        return stream in self.capturing

    def graph(self, start: Any) -> Any:
        return start

    def replay(self, graph: Any, stream: int) -> None:
        graph(stream)

    def forget(self, graph: Any) -> None:
        pass

    def stream_number(self, stream: int) -> int:
        return stream

    def pointer_device(self, pointer: int) -> int:
        return 0


def argument(launch: dict[str, Any], index: int, size: int = 8) -> bytes:
    """The bytes of argument ``index`` as the driver would copy them."""
    place = ctypes.c_void_p.from_address(launch["arguments"] + 8 * index).value
    assert place is not None
    return ctypes.string_at(place, size)
