"""mask(x): some tokens of a text replaced by the mask token."""

import torch
from torch import Tensor


def mask_tokens(ids: Tensor, maskable: Tensor, ratio: float, mask_id: int, generator: torch.Generator) -> Tensor:
    """Copy of `ids` `(batch, tokens)` in which each `maskable` token is `mask_id` with chance `ratio`.

    A row that no draw hits loses one random maskable token all the same, unless `ratio` is 0: a query of eight tokens
    would else pass whole in four of ten cases at 10 %, and the decoder would copy it. Rows without a maskable token
    stay as they are. EmbedDistill, Sec. 4.3 and App. E.
    """
    if ratio == 0:
        return ids.clone()
    draws = torch.rand(ids.shape, generator=generator).masked_fill(~maskable, 2.0)
    hit = draws < ratio
    smallest = torch.zeros_like(hit)
    smallest[torch.arange(len(ids)), draws.argmin(dim=1)] = True
    hit |= smallest & maskable & ~hit.any(dim=1, keepdim=True)
    return ids.masked_fill(hit, mask_id)
