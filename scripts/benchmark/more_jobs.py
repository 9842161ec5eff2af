"""The jobs that are more than a forward pass: changing methods, passkeys, a whole sweep."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmark import shapes
from benchmark.jobs import alternate, seconds


def method_change(folder: str, repeats: int) -> dict[str, float]:
    """Seconds to load a model, to put a method in and out again, and to do so for the first time.

    Each change is checked: the first by a forward pass, those behind it by their numbers.
    """
    from transformers import AutoModelForCausalLM

    from patches import YaRN, applied

    began = time.perf_counter()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    loading = time.perf_counter() - began

    def change() -> None:
        with applied(model, YaRN(factor=8), context_length=262_144):
            pass

    def trust() -> None:
        with applied(model, YaRN(factor=8), context_length=262_144, verify=False):
            pass

    first = seconds(change, "cpu")
    checked, unchecked = alternate([change, trust], repeats)
    return {"ours": checked, "unchecked": unchecked, "first": first, "plain": loading}


def passkey(model: str, length: int, device: str, depths: int, trials: int) -> dict[str, float]:
    """A grid of trials, against a prefill and greedy decoding for each.

    Every fifth trial is decoded, spread over the depths, and the time multiplied.
    """
    from harness.passkey import PasskeyTask, depth_values
    from harness.probes.passkey import passkey_rows
    from harness.zoo.tokenizer import ZooTokenizer

    it = shapes.make(model, device=device)
    tokenizer = ZooTokenizer()
    task = PasskeyTask(tokenizer, digits=5, distractors=0, seed=0)
    prompts = [
        task.prompt(length, depth, index, trial)
        for index, depth in enumerate(depth_values(depths))
        for trial in range(trials)
    ]
    some = prompts[2::5]
    words = it.get_input_embeddings().weight.shape[0]
    assert max(int(p.input_ids.max()) for p in prompts) < words

    def ours() -> None:
        list(passkey_rows(it, tokenizer, prompts, distractors=0, generate=False))

    def peer() -> None:
        for prompt in some:
            ids = torch.from_numpy(prompt.input_ids[: -prompt.answer_tokens])[None].to(device)
            with torch.inference_mode():
                it.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    max_new_tokens=prompt.answer_tokens,
                    min_new_tokens=prompt.answer_tokens,
                    do_sample=False,
                    pad_token_id=0,
                )

    list(passkey_rows(it, tokenizer, prompts[:1], distractors=0, generate=False))  # warms up
    return {
        "ours": seconds(ours, device),
        "plain": seconds(peer, device) * len(prompts) / len(some),
    }


def overhead(sweep: str, quick: bool) -> dict[str, float]:
    """A sweep's seconds within the model, in all, and spent on figures."""
    from harness import engine, measure_pass, outputs, runner
    from harness.probes import passkey as passkey_probe
    from harness.spec import load_sweep

    spent = {"model": 0.0, "draw": 0.0}

    def counted(function: Callable[..., Any], into: str) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                spent[into] += time.perf_counter() - began

        return timed

    measure_pass.measure = counted(engine.measure, "model")  # type: ignore[assignment]
    measure_pass.token_nll = counted(engine.token_nll, "model")  # type: ignore[assignment]
    batch = passkey_probe._batch_rows
    passkey_probe._batch_rows = counted(batch, "model")  # type: ignore[assignment]
    grow = passkey_probe.SharedPrefix.grow
    passkey_probe.SharedPrefix.grow = counted(grow, "model")  # type: ignore[method-assign]
    runner.load_model = counted(runner.load_model, "model")  # type: ignore[assignment]
    outputs.make_figures = counted(outputs.make_figures, "draw")  # type: ignore[assignment]
    loaded = load_sweep(Path(sweep))
    if quick:
        loaded = loaded.model_copy(update={"context_lengths": ["1x", "2x", "4x"]})
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        runner.run_sweep(loaded, Path(folder) / "results", quiet=True)
        wall = time.perf_counter() - began
    return {"wall": wall, **spent}
