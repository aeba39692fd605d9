import math

import numpy as np
import pytest

from emberline.encoding.numeric import normalize
from emberline.schema import Normalizer
from emberline.train.features.normalizer import read_normalizer


@pytest.mark.parametrize(
    ("text", "values", "expected"),
    [
        ("method=log10,threshold=1e-10,default=-10", [100.0, 0.0, -5.0, 1e-10], [2.0, -10.0, -10.0, -10.0]),
        ("method=log10", [1000.0, 0.0], [3.0, -10.0]),
        ("method=zscore,mean=1.0,standard_deviation=2.0", [5.0, 1.0], [2.0, 0.0]),
        (" method = minmax , min=2 , max=4", [2.0, 3.0, 6.0], [0.0, 0.5, 2.0]),
    ],
)
def test_a_normalizer_computes_what_its_text_says(text: str, values: list[float], expected: list[float]) -> None:
    assert np.allclose(normalize(read_normalizer(text), np.array(values)), expected, atol=1e-12)


def test_parameters_are_sorted_by_name() -> None:
    expected = Normalizer(method="zscore", parameters=(("mean", 0.0), ("std", 10.0)))
    assert read_normalizer("method=zscore,standard_deviation=10.0,mean=0.0") == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is not of the form name=value"),
        ("log10", "'log10' is not of the form name=value"),
        ("mean=1,standard_deviation=2", "unknown method ''"),
        ("method=zcore,mean=1", r"unknown method 'zcore'; did you mean 'zscore'\?"),
        ("method=expression,expr=sign(x)", "method=expression is not supported yet"),
        ("method=zscore,mean=1", "zscore needs standard_deviation=<number>"),
        ("method=zscore,mean=1,standard_deviation=0", "standard_deviation must be above 0"),
        ("method=zscore,mean=1,std=2", "unknown argument of zscore 'std'"),
        ("method=zscore,mean=nan,standard_deviation=2", "mean must be a finite number, found 'nan'"),
        ("method=zscore,mean=x,standard_deviation=2", "mean must be a finite number, found 'x'"),
        ("method=zscore,mean=1,mean=2", "mean is given twice"),
        ("method=minmax,min=2,max=2", "min must be below max"),
        ("method=log10,threshold=-1", "threshold must not be negative"),
        (f"method=log10,default={math.inf}", "default must be a finite number"),
    ],
)
def test_a_wrong_normalizer_is_named(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_normalizer(text)
