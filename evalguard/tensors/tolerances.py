"""How much two tensors may differ: by dtype, platform and operation, each with its reason.

``rtol`` and ``atol`` are those of torch.testing.assert_close: an element may differ by
``atol + rtol * |base|``. What is quantised in blocks has an error that no rtol describes; it is
held to a least signal to noise ratio of the whole tensor.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """A row of the table; "" in ``platform`` or ``operation`` stands for any.

    Attributes:
        dtype: of the tensors; of two the coarser one.
        rtol: relative tolerance, and ``atol`` the absolute one.
        reason: why this tolerance.
        snr: least signal to noise ratio in dB, in place of rtol and atol; None: those count.
        platform: "": any.
        operation: "": any.
        atol: absolute tolerance.
    """

    dtype: str
    platform: str = ""
    operation: str = ""
    rtol: float = 0.0
    atol: float = 0.0
    snr: float | None = None
    reason: str


_CLOSE = "torch.testing.assert_close's for this dtype"
_REDUCED = (
    "the library multiplies float32 matrices in TF32 or float16 there: greatest absolute "
    "difference 2.4e-4 to 6.1e-4 for outputs of about 1 (pytorch/ao #2460: 5.7e-4)"
)
_FLOAT8 = "half a step of its mantissa"
_BLOCKS = "quantised in blocks: 6 dB below what weights of a heavy-tailed distribution keep"
_SCALED = "with a scale beside it: 6 dB below what one scale a tensor keeps of heavy tails"
_K_BLOCKS = "quantised in blocks: a tensor below this is not this type's rounding of the base"
_TWO_BITS = "vectors of three sizes: of heavy tails little is left but the signs, which are judged"


def _snr(value: float, *dtypes: str, reason: str = _K_BLOCKS) -> tuple[Tolerance, ...]:
    return tuple(Tolerance(dtype=dtype, snr=value, reason=reason) for dtype in dtypes)


TOLERANCES: tuple[Tolerance, ...] = (
    Tolerance(dtype="float64", rtol=1e-7, atol=1e-7, reason=_CLOSE),
    Tolerance(dtype="float32", rtol=1.3e-6, atol=1e-5, reason=_CLOSE),
    Tolerance(dtype="float16", rtol=1e-3, atol=1e-5, reason=_CLOSE),
    Tolerance(dtype="bfloat16", rtol=1.6e-2, atol=1e-5, reason=_CLOSE),
    Tolerance(dtype="float8_e4m3fn", rtol=2**-4, atol=2**-10, reason=_FLOAT8),
    Tolerance(dtype="float8_e5m2", rtol=2**-3, atol=2**-17, reason=_FLOAT8),
    Tolerance(dtype="float32", platform="cuda", operation="matmul", rtol=1e-2, atol=1e-3,
              reason=_REDUCED + "; torch.backends.cuda.matmul.allow_tf32 turns it on"),
    Tolerance(dtype="float32", platform="rocm", operation="matmul", rtol=1e-2, atol=1e-3,
              reason=_REDUCED),
    Tolerance(dtype="float32", platform="cuda", operation="conv", rtol=1e-2, atol=1e-3,
              reason=_REDUCED + "; torch.backends.cudnn.allow_tf32 is on by default"),
    Tolerance(dtype="float32", platform="openvino", operation="matmul", rtol=1.6e-2, atol=8e-3,
              reason="OpenVINO's CPU default computes float32 in bfloat16 (4.7e-3 measured); with "
              "INFERENCE_PRECISION_HINT f32 the row of any platform holds"),
    Tolerance(dtype="float32", platform="ggml", operation="conv", rtol=1e-2, atol=2e-3,
              reason="ggml_conv_1d casts its input to float16: relative 1.4e-3 (ggml #915)"),
    Tolerance(dtype="float32", platform="ggml", operation="gelu", rtol=1e-2, atol=2e-3,
              reason="ggml_gelu is a float16 table of the tanh form; ggml_gelu_erf is exact"),
    Tolerance(dtype="float32", platform="ggml", operation="attention", rtol=1e-3, atol=1e-4,
              reason="flash attention with float16 keys and values: 9e-5 (3e-7 without)"),
    Tolerance(dtype="float32", operation="matmul", rtol=1.3e-6, atol=5e-5,
              reason="another order of summation of some thousand terms of about 1"),
    Tolerance(dtype="float32", operation="attention", rtol=1e-5, atol=1e-5,
              reason="softmax in blocks (flash attention) sums in another order"),
    *_snr(24.0, "int8 scaled", "uint8 scaled", reason=_SCALED),
    *_snr(22.0, "float8_e4m3fn scaled", "float8_e4m3fnuz scaled", reason=_SCALED),
    *_snr(16.0, "float8_e5m2 scaled", "float8_e5m2fnuz scaled", reason=_SCALED),
    *_snr(14.0, "int7 scaled", "int6 scaled", reason=_SCALED),
    *_snr(8.0, "int5 scaled", "int4 scaled", reason=_SCALED),
    *_snr(3.0, "int3 scaled", reason=_SCALED),
    *_snr(0.0, "int2 scaled", "int1 scaled", reason=_SCALED),
    *_snr(10.0, "nvfp4 scaled", "mxfp4 scaled", "nf4 scaled", "fp4 scaled", reason=_BLOCKS),
    *_snr(36.0, "q8_0", "q8_1", "q8_k", reason=_BLOCKS),
    *_snr(18.0, "q5_0", "q5_1", reason=_BLOCKS),
    *_snr(12.0, "q4_0", "q4_1", reason=_BLOCKS),
    *_snr(26.0, "q6_k"),
    *_snr(19.0, "q5_k"),
    *_snr(13.0, "q4_k", "iq4_nl", "iq4_xs", "mxfp4", "nvfp4"),
    *_snr(8.0, "q3_k", "iq3_xxs", "iq3_s"),
    *_snr(4.0, "q2_k"),
    *_snr(0.0, "iq2_xxs", "iq2_xs", "iq2_s", reason=_TWO_BITS),
    *_snr(1.0, "iq1_s", "iq1_m", "tq1_0", "tq2_0"),
)  # fmt: skip
PLATFORMS = tuple(
    dict.fromkeys(tolerance.platform for tolerance in TOLERANCES if tolerance.platform)
)
OPERATIONS = tuple(
    dict.fromkeys(tolerance.operation for tolerance in TOLERANCES if tolerance.operation)
)
_EXACT = "whole numbers: assert_close allows no difference"


def find_tolerance(dtypes: Iterable[str], *, platform: str = "", operation: str = "") -> Tolerance:
    """Return what two tensors may differ by: the larger of their dtypes, as assert_close has it.

    The row for this platform and operation counts, else that for the operation, else the dtype's.
    """
    rows = [_find_row(dtype, platform, operation) for dtype in dtypes]
    noisy = [row for row in rows if row.snr is not None]
    if noisy:
        return min(noisy, key=lambda row: row.snr or 0.0)
    return max(rows, key=lambda row: (row.rtol, row.atol))


def _find_row(dtype: str, platform: str, operation: str) -> Tolerance:
    for wanted in ((platform, operation), ("", operation), ("", "")):
        for row in TOLERANCES:
            if (row.dtype, row.platform, row.operation) == (dtype, *wanted):
                return row
    return Tolerance(dtype=dtype, reason=_EXACT)
