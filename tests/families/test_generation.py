"""Every family: generation with a cache under a method."""

from __future__ import annotations

import pytest
import torch

from patches import YaRN, applied
from tests.families.reference import FAMILIES, TOKENS, model_of, token_ids

NEW = 8


@pytest.mark.filterwarnings("ignore:this model also scales its queries")
@pytest.mark.filterwarnings("ignore:.*normalises")
@pytest.mark.parametrize("name", FAMILIES)
def test_cached_greedy_generation_is_that_of_full_passes(name: str) -> None:
    model, prompt = model_of(name), token_ids()
    settings = {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    with applied(model, YaRN(factor=4)):
        made = model.generate(prompt, **settings, return_dict_in_generate=True, output_logits=True)
        with torch.no_grad():
            full = model(input_ids=made.sequences[:, :-1], use_cache=False).logits[0, TOKENS - 1 :]
    assert made.sequences.shape == (1, TOKENS + NEW)
    assert torch.equal(made.sequences[0, TOKENS:], full.argmax(-1))
    torch.testing.assert_close(torch.cat(made.logits), full, rtol=1e-4, atol=1e-4)
    unpatched = model.generate(prompt, **settings, return_dict_in_generate=True, output_logits=True)
    assert not torch.allclose(unpatched.logits[0], made.logits[0], atol=1e-3)
