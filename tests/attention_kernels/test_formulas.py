"""A kernel (C++) and its space (expressions) state the same shared memory and registers.

Of each kernel the constants at the top level are taken, as they are, into one namespace for each
configuration, with the configuration's macros as constants; the compiler then checks them all.
"""

from __future__ import annotations

import dataclasses
import os
import random
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import pytest
import yaml

from evotune.runs.setup import load_setup
from evotune.runs.spaces import find_space
from evotune.space.language import parse_expression
from evotune.workers.executor import CaseJob
from tests.sweeps import swept

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")

KERNELS = Path(__file__).parents[2] / "kernels"
FEW, MANY = 100, 1000  # random configurations of each kernel
SOON = ("attention-wgmma", "attention-mma-features", "attention-varlen-wgmma")
SOON += ("attention-paged", "attention-scalar", "linear-skinny")


@dataclass(frozen=True)
class Stated:
    """Expressions of a kernel's constants, and the names in its space that must have their values.

    - `templates`: headers with class templates whose constants the kernel uses.
    - `defaults`: constants that a header gives where the space does not.
    - `registers`: an expression that is -1 where the kernel does not state the registers.
    - `shape`: sizes but for those of heads and values, which are one of `sizes`; or the space's own
      case.
    - `variant`: of that shape, where it is not the space's first one.
    """

    space: str
    kernel: str
    shared_bytes: str
    templates: tuple[str, ...] = ()
    registers: str = "-1"
    registers_in_space: str = ""
    defaults: str = ""
    device: str = "h200"
    shape: Mapping[str, int] = field(default_factory=dict)
    variant: Mapping[str, str] = field(default_factory=dict)
    sizes: tuple[tuple[int, int], ...] = ()


SIZES = tuple((size, size) for size in (32, 64, 96, 128))
DENSE = {"batch": 1, "heads": 4, "kv_heads": 2, "seq_len": 512}
PACKED = {"sequences": 5, "heads": 4, "kv_heads": 2, "tokens_q": 900, "tokens_k": 900}
PACKED |= {"longest_q": 400, "longest_k": 400}
# 24 rows of a kv head: fewer than some tiles have.
PAGES = {"sequences": 3, "queries": 12, "heads": 4, "kv_heads": 2, "longest": 500, "page_size": 16}
_SIZES_OF = ("wmma/block", "mma/block", "wgmma/rings", "wgmma/choices", "varlen/walk")
_SIZES_OF += ("varlen/tile", "paged/pages")
SIZES_IN = {*(f"attention/{name}.cuh" for name in _SIZES_OF)}
SIZES_IN |= {"linear/linear_stages.cuh", "linear/linear_tiles.cuh"}
WGMMA_REGISTERS = (
    "PRODUCER_WARPS == 4 ? (kMoveRegisters ? kConsumerRegisters : kEntryRegisters) : -1"
)
MMA_BYTES = (
    "kCluster ? kInboxAt + 8 : most(most(kStagesEnd, kQueryBytes), WARPS_KV > 1 ? kInboxAt : 0)"
)
MMA_TEMPLATES = tuple(f"attention/{name}.cuh" for name in ("mma/shared_rows", "parts/merge"))
WMMA_BYTES = "kBarriersAt + (PRODUCER_WARPS > 0 ? 16 * (STAGES + 1) : 0)"
NO_MASK = "HAS_MASK = 0, MASK_IS_PADDING = 0, MASK_IS_BIAS = 0, MASK_VIA = 0, MASK_STAGES = 1"
NO_MASK += ", MASK_VIA_SHARED = 1, kMaskBytes = 1"
WGMMA_BYTES = (
    "kBarriersAt + 8 * kBarriers + (SPLIT_KV > 1 ? 8 : 0) + (HIDE_ENDS ? 32 * QUERY_STAGES : 0)"
)
VARLEN_BYTES = "most(kStagesAt + STAGES * kStageBytes, kQueryBytes)"
PAGED_BYTES = "kPartsAt + 4 * WARPS_KV * (BLOCK_M < 24 ? BLOCK_M : 24) * (kPartStride + 4)"
MASKS: tuple[dict[str, str], ...] = ({"mask": "padding"}, {"mask": "bool"}, {"mask": "bias"})
MASKS += ({"mask": "bias", "mask_dtype": "float32"},)
SCALAR_BYTES = "2 * BLOCK_N * (kKeyStride + VALUE_DIM) + 4 * WARPS * (HEAD_DIM + BLOCK_N)"
RUNGS = [
    Stated(
        "attention-scalar",
        "attention/1_scalar.cu",
        SCALAR_BYTES,
        defaults="constexpr int VALUE_DIM = HEAD_DIM;",
        shape=DENSE,
        sizes=SIZES,
    ),
    Stated(
        "attention-wmma",
        "attention/2_wmma.cu",
        WMMA_BYTES,
        ("attention/wmma/block.cuh",),
        shape=DENSE,
        sizes=SIZES,
    ),
    Stated(
        "attention-mma",
        "attention/3_mma.cu",
        MMA_BYTES,
        MMA_TEMPLATES,
        defaults="constexpr int VALUE_DIM = HEAD_DIM, LANE_KEYS = 2;",
        shape=DENSE,
        sizes=SIZES,
    ),
    Stated(
        "attention-mma-features",
        "attention/3_mma.cu",
        MMA_BYTES,
        MMA_TEMPLATES,
        defaults="constexpr int LANE_KEYS = 2;",
        shape=DENSE,
        sizes=((64, 64), (80, 80), (192, 128), (256, 256)),
    ),
    Stated(
        "attention-mma-masks",
        "attention/3_mma.cu",
        MMA_BYTES,
        MMA_TEMPLATES,
        defaults="constexpr int LANE_KEYS = MASK_KEYS;",
        shape=DENSE,
        sizes=((64, 64), (80, 80), (192, 128)),
    ),
    Stated(
        "attention-varlen",
        "attention/attention_varlen.cu",
        VARLEN_BYTES,
        ("attention/mma/shared_rows.cuh",),
        defaults="constexpr int VALUE_DIM = HEAD_DIM, WARPS_KV = 1, LANE_KEYS = 2;",
        shape=PACKED,
        sizes=SIZES,
    ),
    Stated(
        "attention-varlen-wgmma",
        "attention/attention_varlen_wgmma.cu",
        "kSharedBytes",
        registers="kMoveRegisters ? kConsumerRegisters : kEntryRegisters",
        registers_in_space="consumer_registers",
        defaults="constexpr int VALUE_DIM = HEAD_DIM, BIAS_IN_PRODUCT = 0, PRODUCER_WARPS = 4, "
        f"CLUSTER = 1, SPLIT_KV = 1, {NO_MASK};",
        shape=PACKED,
        sizes=SIZES,
    ),
    Stated(
        "attention-paged",
        "attention/attention_paged.cu",
        PAGED_BYTES,
        ("attention/mma/shared_rows.cuh", "attention/parts/merge.cuh"),
        defaults="constexpr int SWIZZLE_XOR = 1, SWIZZLE_PAD = 2, SWIZZLE = SWIZZLE_XOR, "
        "VALUE_DIM = HEAD_DIM, SHARE_QK_SMEM = 1, LANE_KEYS = 2;",
        shape=PAGES,
        sizes=((32, 32), (64, 64), (128, 128)),
    ),
    Stated(
        "attention-tma",
        "attention/4_tma.cu",
        "kSharedBytes",
        shape=DENSE,
        sizes=SIZES,
    ),
    Stated(
        "attention-wgmma",
        "attention/5_wgmma.cu",
        WGMMA_BYTES,
        registers=WGMMA_REGISTERS,
        registers_in_space="consumer_registers",
        defaults="constexpr int VALUE_DIM = HEAD_DIM, HAS_WINDOW = 0, BIAS_IN_PRODUCT = 0, "
        f"{NO_MASK};",
        shape=DENSE,
        sizes=SIZES,
    ),
    Stated(
        "attention-wgmma-features",
        "attention/5_wgmma.cu",
        WGMMA_BYTES,
        registers=WGMMA_REGISTERS,
        registers_in_space="consumer_registers",
        defaults=f"constexpr int {NO_MASK};",
        shape=DENSE,
        sizes=((64, 64), (96, 32), (128, 128), (192, 128), (256, 256)),
    ),
    *(
        Stated(
            "attention-wgmma-masks",
            "attention/5_wgmma.cu",
            WGMMA_BYTES,
            registers=WGMMA_REGISTERS,
            registers_in_space="consumer_registers",
            defaults="constexpr int BIAS_IN_PRODUCT = 0, HALF_BLOCKS = 0, WEIGHT_SETS = 1, "
            "EXP2_FMA_SHARE = 0, "
            "kMaskBytes = MASK_IS_FLOAT32 ? 4 : MASK_IS_BIAS ? 2 : 1;",
            shape=DENSE,
            variant=variant,
            sizes=((64, 64), (128, 128), (192, 128)),
        )
        for variant in MASKS
    ),
    Stated("linear", "linear/linear.cu", "kSharedBytes"),
    Stated("linear-skinny", "linear/linear.cu", "kSharedBytes"),
    Stated("linear-mma", "linear/linear_mma.cu", "kSharedBytes", device="l4"),
]


def text_of(source: str, seen: set[str] | None = None) -> str:
    """The source with the headers of its sizes in the place of their first includes."""
    seen = set() if seen is None else seen
    path = KERNELS / source

    def included(match: re.Match[str]) -> str:
        header = os.path.normpath(PurePosixPath(source).parent / match[1])
        if header not in SIZES_IN or header in seen:
            return ""
        seen.add(header)
        return text_of(header, seen)

    return re.sub(r'^#include "([^"]+)"$', included, path.read_text(), flags=re.MULTILINE)


def constants_of(stated: Stated) -> str:
    """The kernel's constants and type names at the top level, in their order."""
    text = text_of(stated.kernel)
    types = "Rows|ValueRows|WarpParts|SplitParts"
    kept = rf"^(?:constexpr (?:int|unsigned|bool) [^;]*;|using (?:{types}) [^;]*;)"
    found = re.findall(kept, text, re.MULTILINE)
    return "\n".join(each for each in found if stated.templates or not each.startswith("using"))


def macros_of(stated: Stated) -> str:
    text = text_of(stated.kernel)
    return "\n".join(re.findall(r"^#define \w+ \(.*\)$", text, re.MULTILINE))


def templates_of(stated: Stated) -> Iterator[str]:
    """The class templates over numbers, with nothing in them but constants of numbers."""
    for header in stated.templates:
        text = (KERNELS / header).read_text()
        struct = r"^(template <int [^\n]*>\nstruct \w+) \{\n(.*?)^\};$"
        for head, body in re.findall(struct, text, re.MULTILINE | re.DOTALL):
            if "class " in head:
                continue
            lines = re.findall(r"^  static constexpr (?:int|bool|unsigned) .*$", body, re.MULTILINE)
            yield "\n".join([head, "{", *lines, "};"])


def checks(stated: Stated, folder: Path, count: int) -> Iterator[str]:
    """A namespace for each of `count` random configurations, over the head sizes."""
    space = yaml.safe_load(find_space(stated.space).read_text())
    space["root"] = str(KERNELS.parent)
    constants, templates = constants_of(stated), "\n".join(templates_of(stated))
    for head_dim, value_dim in stated.sizes or ((0, 0),):
        if stated.shape:
            shape = {**stated.shape, "head_dim": head_dim}
            shape |= {"value_dim": value_dim} if value_dim != head_dim else {}
            space["problem"] |= {"shapes": [shape], "held_out": []}
        if stated.variant:
            space["problem"]["variants"] = [dict(stated.variant)]
        path = folder / "space.yaml"
        path.write_text(yaml.safe_dump(space))
        setup = load_setup(path, stated.device, compile_only=True)
        assert setup.planner is not None
        rng = random.Random(head_dim)
        for number in range(count // max(1, len(stated.sizes))):
            cases: Sequence[CaseJob] = ()
            while not cases:  # an edge case may need more shared memory than there is
                configuration = setup.planner.bound.sample(rng)
                cases = setup.planner.proposal(number, configuration).cases
            case = cases[0]
            registers = -1
            if stated.registers_in_space:
                expression = parse_expression(stated.registers_in_space)
                registers = setup.planner.bound.evaluate(
                    expression, configuration, case.case.symbols
                )
            defined = " ".join(f"constexpr int {n} = {v};" for n, v in case.compile.defines)
            yield f"""namespace c{head_dim}_{number} {{
{defined}
{stated.defaults}
{templates}
{constants}
static_assert(({stated.shared_bytes}) == {case.plan.launches[0].shared_bytes}, "bytes");
constexpr int registers = {stated.registers};
static_assert(registers == -1 || registers == {registers}, "registers");
}}"""


def complaints(stated: Stated, folder: Path, count: int) -> str:
    """The compiler's words on the checks that fail."""
    source = folder / "checks.cpp"
    most = "constexpr unsigned most(unsigned a, unsigned b) { return a < b ? b : a; }"
    source.write_text("\n".join([most, macros_of(stated), *checks(stated, folder, count)]))
    command = ["g++", "-std=c++17", "-fsyntax-only", "-w", str(source)]
    return subprocess.run(command, check=False, capture_output=True, text=True).stderr


@pytest.mark.parametrize("count", [FEW, pytest.param(MANY, marks=pytest.mark.soak)])
@pytest.mark.parametrize(
    "stated", swept(RUNGS, lambda stated: stated.space in SOON), ids=lambda stated: stated.space
)
def test_a_kernel_and_its_space_state_the_same(stated: Stated, count: int, tmp_path: Path) -> None:
    assert complaints(stated, tmp_path, count) == ""


def test_a_formula_that_differs_is_seen(tmp_path: Path) -> None:
    (stated,) = (each for each in RUNGS if each.space == "attention-tma")
    wrong = dataclasses.replace(stated, shared_bytes="kBarriersAt + 16 * STAGES")
    assert "static assertion failed: bytes" in complaints(wrong, tmp_path, count=40)
