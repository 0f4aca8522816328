"""Random ragged batches for the property tests."""

from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor


@dataclass
class RandomBatch:
    rewards: Tensor
    values: Tensor
    mask: Tensor
    old: Tensor
    new: Tensor
    advantages: Tensor
    index: list[str]
    trajectories: list[str]
    anchors: list[str]
    step_rewards: Tensor

    @property
    def rows(self) -> int:
        return len(self.mask)


@st.composite
def batches(draw: st.DrawFn, max_rows: int = 7, max_tokens: int = 9) -> RandomBatch:
    """Float64 rows with observations anywhere, rows without a single action included (but not all of them)."""
    rows, tokens = draw(st.integers(1, max_rows)), draw(st.integers(1, max_tokens))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    mask = torch.rand((rows, tokens), generator=generator) < draw(st.sampled_from([0.3, 0.7, 1.0]))
    mask[0, draw(st.integers(0, tokens - 1))] = True
    old = -normal(rows, tokens).abs()
    return RandomBatch(
        rewards=normal(rows, tokens),
        values=normal(rows, tokens),
        mask=mask,
        old=old,
        new=old + 0.5 * normal(rows, tokens),
        advantages=normal(rows, tokens),
        index=[draw(st.sampled_from("ab")) for _ in range(rows)],
        trajectories=[draw(st.sampled_from("xyz")) for _ in range(rows)],
        anchors=[draw(st.sampled_from(["hall", "door"])) for _ in range(rows)],
        step_rewards=normal(rows),
    )
