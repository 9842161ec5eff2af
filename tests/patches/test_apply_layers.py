"""Methods for some of the layers, and methods inside one another."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch

from patches import Linear, PatchError, RopePatch, YaRN, applied
from tests.patches.checks import unchanged, with_tables_exchanged
from tests.patches.tiny_models import logits, make_model


class TestLayerTypes:
    def test_local_layers_keep_their_bits(self) -> None:
        model = make_model("gemma3")
        positions, hidden = torch.arange(200)[None], torch.zeros(1, 200, 32)
        local = model.model.rotary_emb(hidden, positions, "sliding_attention")
        full = model.model.rotary_emb(hidden, positions, "full_attention")
        with unchanged(model), applied(model, YaRN(factor=4)) as found:
            patched = model.model.rotary_emb
            assert found.layers_changed == (1, 3)
            kept = patched(hidden, positions, "sliding_attention")
            assert all(torch.equal(one, other) for one, other in zip(kept, local, strict=True))
            assert not torch.equal(patched(hidden, positions, "full_attention")[0], full[0])

    def test_local_layers_on_request(self) -> None:
        model = make_model("gemma3")
        both = ("full_attention", "sliding_attention")
        for layers, changed in ((both, (0, 1, 2, 3)), (("sliding_attention",), (0, 2))):
            with unchanged(model), applied(model, Linear(factor=4, layers=layers)) as found:
                assert found.layers_changed == changed
                assert set(found.tables) == set(layers)

    @pytest.mark.parametrize("name", ["gemma2", "gpt_oss"])
    @pytest.mark.parametrize("layer_type", ["sliding_attention", "full_attention"])
    def test_part_of_the_layers_that_share_a_module(self, name: str, layer_type: str) -> None:
        model = make_model(name)
        index = model.config.layer_types.index(layer_type)
        wanted = with_tables_exchanged(model, index, Linear(factor=4))
        patch = Linear(factor=4, layers=(layer_type,))
        with unchanged(model), applied(model, patch) as found:
            assert found.layers_changed == (index,)
            assert set(found.tables) == {layer_type}
            assert torch.equal(logits(model, 200), wanted)

    @pytest.mark.parametrize("kind", ["dynamic", "longrope"])
    def test_the_check_leaves_no_length_in_tables_that_are_kept(self, kind: str) -> None:
        parameters: dict[str, Any] = {"rope_type": kind, "factor": 2.0, "rope_theta": 1e4}
        if kind == "longrope":
            rotary = make_model("gemma2").model.rotary_emb
            size = rotary.inv_freq.numel()
            parameters |= {"short_factor": [1.0] * size, "long_factor": [3.0] * size}
            parameters["original_max_position_embeddings"] = 64
        model = make_model("gemma2", parameters)
        part = Linear(factor=4, layers=("sliding_attention",))
        with applied(model, part, verify=False):
            wanted = logits(model, 40)
        with unchanged(model), applied(model, part):
            assert torch.equal(logits(model, 40), wanted)

    def test_all_of_the_layers_that_share_a_module(self) -> None:
        model = make_model("gemma2")
        both = Linear(factor=4, layers=("full_attention", "sliding_attention"))
        with applied(model, both) as found:
            named = logits(model)
        with applied(model, Linear(factor=4)):
            assert torch.equal(logits(model), named)
        assert found.layers_changed == (0, 1)

    def test_cached_generation_with_a_part_of_the_layers(self) -> None:
        model = make_model("gemma2")
        prompt = torch.arange(1, 40)[None]
        with applied(model, Linear(factor=4, layers=("full_attention",))):
            found = model.generate(prompt, max_new_tokens=8, do_sample=False, eos_token_id=None)
            with torch.no_grad():
                again = model(input_ids=found[:, :-1], use_cache=False).logits[0, 38:].argmax(-1)
        assert torch.equal(found[0, 39:], again)

    def test_a_model_with_windows_everywhere(self) -> None:
        model = make_model("mistral")
        with applied(model, Linear(factor=4, layers=("sliding_attention",))) as found:
            assert found.layers_changed == (0, 1)
        with (
            unchanged(model),
            pytest.raises(PatchError, match="no layers of type 'full_attention'"),
            applied(model, Linear(factor=4, layers=("full_attention",))),
        ):
            pytest.fail("the context was entered")


class TestNesting:
    @pytest.mark.parametrize("name", ["llama", "cohere", "llama4"])
    @pytest.mark.filterwarnings("ignore:this model also scales its queries")
    @pytest.mark.filterwarnings("ignore:.*normalises")
    def test_the_inner_method_holds(self, name: str) -> None:
        model = make_model(name)

        def alone(patch: RopePatch) -> torch.Tensor:
            with applied(model, patch):
                return logits(model)

        outer, inner = YaRN(factor=4), Linear(factor=2)
        outer_alone, inner_alone = alone(outer), alone(inner)
        with unchanged(model), applied(model, outer):
            with applied(model, inner):
                assert torch.equal(logits(model), inner_alone)
            assert torch.equal(logits(model), outer_alone)

    def test_each_for_its_own_layers(self) -> None:
        model = make_model("gemma3")
        local = Linear(factor=2, layers=("sliding_attention",))
        full = Linear(factor=2)
        with applied(model, Linear(factor=2, layers=("sliding_attention", "full_attention"))):
            wanted = logits(model)
        with unchanged(model), applied(model, local), applied(model, full):
            assert torch.equal(logits(model), wanted)

    def test_on_top_of_a_part_of_the_layers_is_refused(self) -> None:
        model = make_model("gemma2")
        part = Linear(factor=4, layers=("full_attention",))
        for inner in (part, YaRN(factor=2)):
            with (
                unchanged(model),
                applied(model, part),
                pytest.raises(PatchError, match="cannot be put on top"),
                applied(model, inner),
            ):
                pytest.fail("the context was entered")

    def test_a_part_of_the_layers_on_top_of_all(self) -> None:
        model = make_model("gemma2")
        with unchanged(model), applied(model, YaRN(factor=4)):
            wanted = with_tables_exchanged(model, 1, Linear(factor=4))
            with applied(model, Linear(factor=4, layers=("full_attention",))):
                assert torch.equal(logits(model, 200), wanted)

    def test_left_in_the_wrong_order(self) -> None:
        model = make_model("llama")
        with unchanged(model):
            rotary = model.model.rotary_emb
            outer: AbstractContextManager[Any] = applied(model, YaRN(factor=4))
            inner: AbstractContextManager[Any] = applied(model, Linear(factor=2))
            outer.__enter__()
            inner.__enter__()
            with pytest.raises(PatchError, match="from the innermost outwards"):
                outer.__exit__(None, None, None)
            assert model.model.rotary_emb is rotary
            with pytest.raises(PatchError, match="from the innermost outwards"):
                inner.__exit__(None, None, None)
            assert model.model.rotary_emb is rotary
