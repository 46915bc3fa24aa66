"""The pipelined examples with 2, 3 and 4 stages, and 1, 2 and 3 consumers, for every target."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tilemma.kernels import Kernel
from tilemma.modules import load, load_python

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@dataclass(frozen=True)
class Configuration:
    """``settings`` are the example's constants; ``arch`` the targets it is for; small tiles, so that the machine
    is soon done."""

    name: str
    settings: dict[str, int] = field(default_factory=dict)
    archs: tuple[str, ...] = ("sm_90a",)
    languages: tuple[str, ...] = ("py", "co")

    def __str__(self) -> str:
        return "-".join([self.name, *(f"{k}{v}".lower() for k, v in self.settings.items())])

    def kernel(self, language: str) -> Kernel:
        """The example's kernel, its constants not yet set ("py"), or set ("co")."""
        path = EXAMPLES / language / f"{self.name}.{language}"
        if language == "py":
            return load_python(path).only()
        return load(path, defines={k: str(v) for k, v in self.settings.items()}).only()

    def constants(self, language: str) -> dict[str, int]:
        """What a call or `compile` of `kernel` has to be given."""
        return self.settings if language == "py" else {}


STAGES = (2, 3, 4)
BOTH = ("sm_80", "sm_90a")
CONFIGURATIONS = [
    Configuration("double_buffer", {}, BOTH),
    Configuration("multistage", {}, BOTH),
    *(Configuration("event_pipeline", {"STAGES": s}, BOTH) for s in STAGES),
    *(Configuration("tma_pipeline", {"STAGES": s}) for s in STAGES),
    *(
        Configuration("warp_specialized", {"STAGES": s, "CONSUMERS": c, "TILE_N": 128})
        for s in STAGES
        for c in (1, 2, 3)
    ),
    *(
        Configuration("persistent", {"STAGES": s, "CONSUMERS": c, "TILE_N": 128, "GRID": 2, "RASTER": 2})
        for s in STAGES
        for c in (1, 2, 3)
    ),
    *(Configuration("multicast", {"STAGES": s, "TILE_N": 128, "GRID": 1}) for s in STAGES),
    Configuration("multicast", {"STAGES": 3, "CLUSTER": 4, "TILE_N": 128, "GRID": 1}),
    *(Configuration("pingpong", {"STAGES": s, "TILE_N": 128, "GRID": 1}) for s in STAGES),
]
