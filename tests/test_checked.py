"""Conditions on the arguments of public functions."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest

from tilemma.checked import Condition, checked, instance, integer, integers, one_of, optional
from tilemma.errors import WrongArgument, WrongArgumentType


@pytest.mark.parametrize(
    ("condition", "good", "wrong_values", "wrong_types"),
    [
        (integer(1, 4), (1, 4, np.int8(2)), (0, 5, 10**5000), (1.0, True, "1", None)),
        (integers(0, 9, 2), ((1, 2), [0, 9]), ((1,), (1, 10)), ((1, "2"), range(2), None)),
        (integers(0, 9, most=3), ((), (1, 2, 3)), ((1, 1, 1, 1),), ((1.5,),)),
        (one_of("K", "MN"), ("K",), ("k",), (1, None)),
        (one_of(0, 32), (0, np.int64(32)), (1,), ("32", False)),
        (optional(instance("text", str)), ("", None), (), (1, b"")),
    ],
)
def test_a_condition(
    condition: Condition, good: Sequence[object], wrong_values: Sequence[object], wrong_types: Sequence[object]
) -> None:
    @checked(value=condition)
    def function(other: object, value: object = None) -> object:
        return value

    for value in good:
        assert function(0, value) is function(0, value=value) is value
    for kind, values in ((WrongArgument, wrong_values), (WrongArgumentType, wrong_types)):
        for value in values:
            for args, keywords in (((0, value), {}), ((0,), {"value": value})):
                with pytest.raises(kind, match=re.escape(condition.wanted)) as caught:
                    function(*args, **keywords)
                assert type(caught.value) is kind and "`function` got" in str(caught.value)
                assert isinstance(caught.value, ValueError)
