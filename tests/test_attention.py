"""Statistics against the N x N reference, for every family and every column."""

import copy

import numpy as np
import pytest
import torch

import harness
from harness import attention, layer_call, tiles
from harness.engine import AttentionSettings, measure
from harness.errors import DataError, ModelError
from harness.rows import STATISTICS
from tests.models import MODELS, lfm2, make_model, random_ids
from tests.naive_attention import naive

TOKENS = 48
WINDOW = 7


def reference(model, ids):
    """Statistics ``(layers, heads, queries)`` and losses, in float64, from the same weights."""
    double = model.double()
    with naive(double, WINDOW) as found, torch.inference_mode():
        logits = double(ids, use_cache=False).logits
    losses = torch.nn.functional.cross_entropy(logits[0, :-1], ids[0, 1:], reduction="none")
    layers = [found[i] for i in sorted(found)]
    return {n: torch.stack([x[n] for x in layers]).numpy() for n in STATISTICS}, losses.numpy()


def settings(**changes):
    return AttentionSettings(**({"local_window": WINDOW} | changes))


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", list(MODELS))
def test_float64_agrees_to_eight_digits(name, seed):
    model, ids = make_model(name, seed, torch.float64), random_ids(seed, TOKENS)
    result = measure(model, ids, attention=settings())
    expected, losses = reference(model, ids)
    assert result.nll == pytest.approx(losses, abs=1e-8)
    for column in STATISTICS:
        np.testing.assert_allclose(
            result.attention.values[column], expected[column], atol=1e-8, rtol=1e-8, err_msg=column
        )


@pytest.mark.parametrize("name", ["llama", "gemma2", "gemma3", "mistral"])
def test_float32_is_within_a_tenth_of_a_millinat(name):
    model, ids = make_model(name, 2), random_ids(2, TOKENS)
    result = measure(model, ids, attention=settings())
    expected, losses = reference(model, ids)
    assert np.abs(result.nll - losses).max() < 1e-4
    found = result.attention.values
    assert np.abs(found["entropy_nats"] - expected["entropy_nats"]).max() < 1e-4
    for column in STATISTICS:
        np.testing.assert_allclose(found[column], expected[column], atol=1e-4, rtol=1e-4)


def test_bfloat16_statistics_are_those_of_its_own_queries_and_keys():
    model, ids = make_model("llama", 0, torch.bfloat16), random_ids(0, TOKENS)
    result = measure(model, ids, nll=False, attention=settings()).attention
    with naive(model, WINDOW) as found, torch.inference_mode():
        model(ids, use_cache=False)
    # The first layer sees the same queries and keys in both; later ones differ by rounding.
    assert result.values["entropy_nats"][0] == pytest.approx(
        found[0]["entropy_nats"].numpy(), abs=1e-4
    )


@pytest.mark.parametrize("name", list(MODELS))
@pytest.mark.parametrize("rows", [1, 5, 16, 1000])
def test_results_do_not_depend_on_the_tile(name, rows, monkeypatch):
    model, ids = make_model(name, 3), random_ids(3, TOKENS)
    whole = measure(model, ids, attention=settings())
    monkeypatch.setattr(tiles, "tile_rows", lambda call: rows)
    monkeypatch.setattr(layer_call, "CPU_BLOCK_KEYS", max(2, rows // 2))
    tiled = measure(model, ids, attention=settings())
    assert np.abs(whole.nll - tiled.nll).max() < 1e-4
    for column in STATISTICS:
        np.testing.assert_allclose(
            whole.attention.values[column], tiled.attention.values[column], atol=2e-5, rtol=1e-4
        )


@pytest.mark.parametrize("name", list(MODELS))
def test_sampled_queries_are_rows_of_all_queries(name):
    model, ids = make_model(name, 4), random_ids(4, TOKENS)
    everything = measure(model, ids, attention=settings())
    sampled = measure(model, ids, attention=settings(queries=12, seed=5))
    positions = sampled.attention.positions
    assert len(positions) == 12
    assert np.abs(everything.nll - sampled.nll).max() < 1e-4
    for column in STATISTICS:
        np.testing.assert_allclose(
            sampled.attention.values[column],
            everything.attention.values[column][:, :, positions],
            atol=2e-5,
            rtol=1e-4,
        )


def test_chosen_positions():
    model, ids = make_model("llama", 4), random_ids(4, TOKENS)
    result = measure(model, ids, attention=settings(queries=(0, 3, 47))).attention
    assert result.positions.tolist() == [0, 3, 47]
    assert np.isnan(result.values["normalized_entropy"][:, :, 0]).all()
    assert not np.isnan(result.values["normalized_entropy"][:, :, 1:]).any()


def test_samples_are_spread_evenly_and_seeded():
    one = AttentionSettings(queries=16, seed=0).positions(1600)
    assert np.array_equal(one, AttentionSettings(queries=16, seed=0).positions(1600))
    assert not np.array_equal(one, AttentionSettings(queries=16, seed=1).positions(1600))
    assert (one // 100 == np.arange(16)).all()
    assert AttentionSettings(queries=99).positions(8).tolist() == list(range(8))


@pytest.mark.parametrize("name", list(MODELS))
@pytest.mark.parametrize("queries", ["all", 8])
def test_losses_under_the_probe_are_those_without(name, queries):
    model, ids = make_model(name, 5), random_ids(5, TOKENS)
    plain = harness.token_nll(model, ids)
    probed = measure(model, ids, attention=settings(queries=queries)).nll
    assert np.abs(plain - probed).max() < 1e-4


def test_identities_between_the_columns():
    model, ids = make_model("llama", 6, torch.float64), random_ids(6, TOKENS)
    values = measure(model, ids, nll=False, attention=settings()).attention.values
    assert np.allclose(values["effective_tokens"], np.exp(values["entropy_nats"]))
    assert (values["local_mass"] >= values["self_mass"] + values["previous_mass"] - 1e-12).all()
    assert np.allclose(values["local_mass"][:, :, :WINDOW], 1)
    assert np.allclose(values["entropy_nats"][:, :, 0], 0)
    assert (values["normalized_entropy"][:, :, 1:] <= 1 + 1e-12).all()


def test_layer_types_are_the_models():
    model = make_model("gemma3", 0)
    result = measure(model, random_ids(0, 20), attention=settings()).attention
    assert result.layer_types == ("sliding_attention", "full_attention")
    result = measure(make_model("llama", 0), random_ids(0, 20), attention=settings()).attention
    assert result.layer_types == ("full_attention", "full_attention")
    # A window hides the first token from late queries.
    late = measure(model, random_ids(0, 40), attention=settings()).attention.values["sink_mass"]
    assert (late[0, :, 13:] == 0).all()
    assert (late[1, :, 13:] > 0).all()


def test_the_table_has_a_row_per_layer_head_and_query():
    model, ids = make_model("gemma3", 0), random_ids(0, 20)
    table = harness.attention_statistics(model, ids, local_window=WINDOW)
    assert list(table.columns) == ["layer", "layer_type", "head", "position", *STATISTICS]
    assert len(table) == 2 * 4 * 20
    values = measure(model, ids, attention=settings()).attention.values
    row = table.query("layer == 1 and head == 2 and position == 9").iloc[0]
    assert row["entropy_nats"] == values["entropy_nats"][1, 2, 9]
    assert row["layer_type"] == "full_attention"
    few = harness.attention_statistics(model, ids, queries=4)
    assert few["position"].nunique() == 4


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_the_models_own_attention_is_put_back(implementation):
    model, ids = make_model("llama", 0), random_ids(0, 20)
    model.set_attn_implementation(implementation)
    before = model(ids).logits
    measure(model, ids, attention=settings())
    assert model.config._attn_implementation == implementation
    assert torch.equal(model(ids).logits, before)


def test_it_is_put_back_after_an_exception(monkeypatch):
    model, ids = make_model("llama", 0), random_ids(0, 20)

    def fail(*args, **kwargs):
        raise MemoryError

    monkeypatch.setattr(attention, "attend", fail)
    with pytest.raises(MemoryError):
        measure(model, ids, attention=settings())
    assert model.config._attn_implementation == "sdpa"
    assert attention._recorder.get() is None
    monkeypatch.undo()
    measure(model, ids, attention=settings())


def test_parts_with_another_implementation_get_their_own_back():
    model, ids = make_model("llama", 0), random_ids(0, 20)
    model.model.config = copy.deepcopy(model.config)
    model.model.config._attn_implementation = "eager"
    with attention.own_attention(model, settings=settings(), num_tokens=20), torch.inference_mode():
        model.model(ids, use_cache=False)
    assert model.config._attn_implementation == "sdpa"
    assert model.model.config._attn_implementation == "eager"


@pytest.mark.parametrize("name", list(MODELS))
@pytest.mark.parametrize("queries", ["all", 8])
def test_hidden_states_are_those_without_the_probe(name, queries):
    model, ids = make_model(name, 8), random_ids(8, TOKENS)
    with torch.inference_mode():
        plain = model.base_model(ids, use_cache=False).last_hidden_state
        with attention.own_attention(model, settings=settings(queries=queries), num_tokens=TOKENS):
            probed = model.base_model(ids, use_cache=False).last_hidden_state
    assert (plain - probed).abs().max() < 1e-5 * plain.abs().max()


def test_chunks_are_no_windows():
    from transformers import Llama4ForCausalLM, Llama4TextConfig

    config = Llama4TextConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=48,
        intermediate_size_mlp=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_local_experts=2,
        num_experts_per_tok=1,
        no_rope_layers=[1, 0],
        attention_chunk_size=16,
        pad_token_id=0,
    )
    config._experts_implementation = "eager"
    torch.manual_seed(0)
    model, ids = Llama4ForCausalLM(config).double().eval(), random_ids(0, TOKENS)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.2)
    result = measure(model, ids, attention=settings())
    expected, losses = reference(model, ids)
    assert result.nll == pytest.approx(losses, abs=1e-8)
    for column in STATISTICS:
        np.testing.assert_allclose(result.attention.values[column], expected[column], atol=1e-8)
    assert (result.attention.values["entropy_nats"][0, :, [0, 16, 32]] == 0).all()


def test_layers_without_attention_keep_their_numbers():
    model = lfm2().eval()
    found = measure(model, random_ids(0, 20), attention=settings()).attention
    assert found.layers == (1,)
    assert found.layer_types == ("full_attention",)
    assert harness.attention_statistics(model, random_ids(0, 20))["layer"].unique() == [1]


def test_scores_with_a_bias_of_their_own_are_refused():
    model, ids = make_model("llama", 0), random_ids(0, 20)
    with (
        pytest.raises(ModelError, match="position_bias"),
        attention.own_attention(model, settings=settings(), num_tokens=20),
    ):
        model(ids, use_cache=False, position_bias=torch.zeros(1))


@pytest.mark.parametrize("positions", [(), (-1, 3), (3, 3), (4, 2), (0, 20)])
def test_bad_positions_are_refused(positions):
    model, ids = make_model("llama", 0), random_ids(0, 20)
    with pytest.raises(DataError, match="position"):
        measure(model, ids, attention=settings(queries=positions))


def test_the_probe_outside_a_measurement_says_so():
    model, ids = make_model("llama", 0), random_ids(0, 20)
    measure(model, ids, attention=settings())
    model.set_attn_implementation(attention.NAME)
    with pytest.raises(ModelError, match="cannot be measured"):
        model(ids)


@pytest.mark.parametrize("what", ["batch", "padding"])
def test_batches_and_padding_are_refused(what):
    model = make_model("llama", 0)
    ids = random_ids(0, 20, batch=2 if what == "batch" else 1)
    mask = torch.ones_like(ids)
    if what == "padding":
        mask[:, :3] = 0
    with (
        pytest.raises(ModelError, match=what),
        attention.own_attention(model, settings=settings(), num_tokens=20),
    ):
        model(ids, attention_mask=mask, use_cache=False)


@pytest.mark.parametrize("queries", [0, -3, True, "some"])
def test_bad_queries_are_refused(queries):
    model, ids = make_model("llama", 0), random_ids(0, 20)
    with pytest.raises(DataError, match="queries"):
        harness.attention_statistics(model, ids, queries=queries)
    with pytest.raises(DataError, match="local_window"):
        harness.attention_statistics(model, ids, local_window=0)
