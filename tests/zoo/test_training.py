"""Training is seeded, resumes as if it had not stopped, and saves what transformers loads."""

import json

import pytest
import torch

from harness.corpus import SourceFile
from harness.errors import ModelError
from harness.zoo import ZOO, model_card, zoo_folder
from harness.zoo.architectures import build_model
from harness.zoo.documents import TrainingText
from harness.zoo.training import Recipe, save_model, train


@pytest.fixture(scope="module")
def text(zoo_tokenizer):
    source = "\n".join(f"def function_{i}(x): return x + {i}" for i in range(300))
    return TrainingText(zoo_tokenizer, [SourceFile(name="a.py", text=source, sha256="")], 96)


def recipe(steps):
    return Recipe(steps=steps, batch=2, window_tokens=96, warmup_steps=1)


def quiet(line):
    del line


def test_an_interrupted_training_ends_where_an_undisturbed_one_does(text, tmp_path):
    whole, _ = train("llama-10k", text, recipe(4), tmp_path / "a", say=quiet, checkpoint_every=2)

    class StopError(Exception):
        pass

    def stop_after_the_first_checkpoint(line):
        if "step 2  passkey" in line:
            stop_after_the_first_checkpoint.seen = True
        elif getattr(stop_after_the_first_checkpoint, "seen", False):
            raise StopError

    with pytest.raises(StopError):
        train(
            "llama-10k",
            text,
            recipe(4),
            tmp_path / "b",
            say=stop_after_the_first_checkpoint,
            checkpoint_every=2,
        )
    said = []
    resumed, card = train(
        "llama-10k", text, recipe(4), tmp_path / "b", say=said.append, checkpoint_every=2
    )
    assert card["steps"] == 4
    for (name, a), b in zip(whole.named_parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b), name


@pytest.mark.parametrize("change", ["seed", "steps", "name"])
def test_a_checkpoint_of_another_training_is_refused(text, tmp_path, change):
    train("llama-10k", text, recipe(2), tmp_path, say=quiet)
    other = Recipe(
        steps=3 if change == "steps" else 2,
        batch=2,
        window_tokens=96,
        warmup_steps=1,
        seed=1 if change == "seed" else 0,
    )
    name = "llama-500k" if change == "name" else "llama-10k"
    with pytest.raises(ModelError, match="another training"):
        train(name, text, other, tmp_path, say=quiet)


def test_training_changes_the_model_and_its_card_says_how(text, tmp_path):
    model, card = train("llama-500k", text, recipe(2), tmp_path, say=quiet)
    torch.manual_seed(0)
    fresh = build_model("llama-500k")
    assert not torch.equal(model.model.embed_tokens.weight, fresh.model.embed_tokens.weight)
    assert card["tokens"] == 2 * 2 * 96
    assert card["trained_length"] == 96
    assert {"python", "torch", "transformers"} <= set(card["versions"])
    json.dumps(card)


@pytest.mark.parametrize("name", list(ZOO))
def test_a_saved_model_is_loaded_with_the_same_logits(name, tmp_path):
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    model = build_model(name).eval()
    for parameter in model.parameters():
        parameter.data = parameter.data.half().float()
    save_model(model, {"name": name}, tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto").eval()
    ids = torch.randint(0, 2048, (1, 40))
    with torch.inference_mode():
        assert torch.equal(model(ids).logits, again(ids).logits)
    assert again.dtype == torch.float32
    assert (tmp_path / "model.safetensors").stat().st_size < 10e6


def test_the_learning_rate_warms_up_and_decays():
    r = Recipe(steps=100, warmup_steps=10)
    scales = [r.lr_scale(s) for s in range(100)]
    assert scales[0] == 0.1
    assert scales[9:51] == [1.0] * 42
    assert scales[51:] == sorted(scales[51:], reverse=True)
    assert 0 < scales[-1] < 0.05


@pytest.mark.parametrize("name", list(ZOO))
def test_shapes(name):
    model = build_model(name)
    assert 3e6 < sum(p.numel() for p in model.parameters()) < 5e6
    assert model.config.max_position_embeddings == 256
    if name == "gemma-local-global":
        assert model.config.layer_types.count("full_attention") >= 2
        assert model.config.sliding_window <= 64


def test_an_unknown_name_lists_the_known_ones():
    for function in (build_model, zoo_folder, model_card):
        with pytest.raises(ModelError, match="llama-10k, llama-500k, gemma-local-global"):
            function("llama-1k")


@pytest.mark.parametrize("name", list(ZOO))
def test_the_shipped_card_tells_a_whole_training(name):
    card = model_card(name)
    assert card["name"] == name
    assert card["passkey_accuracy"] >= 0.95
    assert card["steps"] * card["recipe"]["batch"] * card["trained_length"] == card["tokens"]
    assert (zoo_folder(name) / "model.safetensors").stat().st_size < 10e6


def test_the_manifest_names_every_training_file():
    from harness.corpus import HELD_OUT
    from harness.zoo import MANIFEST

    manifest = json.loads(MANIFEST.read_text())
    assert manifest["held_out"] == list(HELD_OUT)
    assert len(manifest["files"]) > 300
    assert not set(manifest["files"]) & set(HELD_OUT)
    assert all(len(digest) == 64 for digest in manifest["files"].values())
