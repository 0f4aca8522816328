"""What a section of the config is, and the kinds of numbers that keys take."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

AdvEstimator = Literal["gae", "grpo", "gigpo", "rloo", "reinforce_plus_plus"]
Dtype = Literal["float32", "bfloat16", "float16"]
KlKind = Literal["kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3"]

# Far beyond any real run, and small enough that products of a few of them stay exact.
_LARGEST = 10**12
Count = Annotated[int, Field(ge=1, le=_LARGEST)]
NonNegativeInt = Annotated[int, Field(ge=0, le=_LARGEST)]
NonNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
UnitInterval = Annotated[float, Field(ge=0, le=1)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Frequency = Annotated[int, Field(ge=-1, le=_LARGEST)]
Name = Annotated[str, Field(min_length=1)]


def as_list(value: object) -> object:
    """A key that takes a list takes `console` and `console,wandb` too."""
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


class Section(BaseModel):
    """One section of the config: unknown keys fail, values do not change after loading."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        protected_namespaces=(),
    )
