"""An element type from outside of the package: 8 bits, 3 of exponent, 4 of mantissa, with infinities."""

import ml_dtypes
import numpy as np

from tilemma.dtypes import DType, Format, register

E3M4 = register(
    DType(
        "f8_e3m4", 8, "float", np.dtype(ml_dtypes.float8_e3m4), "e3m4", "b8", ("f32",), Format(3, 4, infinite=True)
    )
)
