"""Training of one zoo model: Muon on the matrices, AdamW on the rest, bfloat16 autocast."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from harness.errors import ModelError
from harness.zoo import TRAINED_LENGTH
from harness.zoo.architectures import build_model
from harness.zoo.documents import IGNORED, Schedule, TrainingText

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """All that a training's outcome depends on, besides the text and the versions."""

    steps: int = 1000
    batch: int = 32
    window_tokens: int = TRAINED_LENGTH
    warmup_steps: int = 40
    muon_lr: float = 0.02
    adamw_lr: float = 3e-3
    seed: int = 0
    schedule: Schedule = field(default_factory=Schedule)

    def lr_scale(self, step: int) -> float:
        """Linear warm-up, flat until half-way, then linear decay to nearly nothing."""
        warm = min(1.0, (step + 1) / self.warmup_steps)
        decay = min(1.0, 2 * (self.steps - step) / self.steps)
        return warm * max(decay, 0.01)


def _optimizers(model: Any, recipe: Recipe) -> list[torch.optim.Optimizer]:
    # AdamW alone learns the text as fast, but not retrieval: Muon finds it in a few hundred steps.
    named = list(model.named_parameters())
    matrices = [p for n, p in named if p.ndim == 2 and "embed" not in n]
    rest = [p for n, p in named if p.ndim != 2 or "embed" in n]
    return [
        torch.optim.Muon(matrices, lr=recipe.muon_lr, weight_decay=0.05),
        torch.optim.AdamW(rest, lr=recipe.adamw_lr, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def _passkey_accuracy(model: Any, text: TrainingText, seed: int, trials: int = 48) -> float:
    """Share of keys of which every digit is the argmax, at the trained length."""
    ids, digits = text.final_answers(seed, trials)
    batch = torch.from_numpy(ids)
    model.eval()
    with torch.inference_mode():
        logits = model(batch, logits_to_keep=digits + 1).logits[:, :-1]
    model.train()
    return float((logits.argmax(-1) == batch[:, -digits:]).all(-1).float().mean())


@dataclass
class _Progress:
    """Steps taken, seconds spent and running losses; what a checkpoint keeps besides weights."""

    step: int = 0
    seconds: float = 0.0
    text_loss: float = float("nan")
    passkey_loss: float = float("nan")
    history: list[dict[str, float]] = field(default_factory=list)

    def add(self, text_loss: float, passkey_loss: float, seconds: float) -> None:
        self.step += 1
        self.seconds += seconds
        for name, value in (("text_loss", text_loss), ("passkey_loss", passkey_loss)):
            old = getattr(self, name)
            setattr(self, name, value if old != old else 0.95 * old + 0.05 * value)


def _save(
    path: Path,
    model: Any,
    optimizers: list[torch.optim.Optimizer],
    at: _Progress,
    made_of: dict[str, Any],
) -> None:
    partial = path.with_suffix(".partial")
    states = [o.state_dict() for o in optimizers]
    content = {"model": model.state_dict(), "optimizers": states, "at": asdict(at)}
    torch.save(content | {"made_of": made_of}, partial)
    partial.replace(path)


def _load(
    path: Path, model: Any, optimizers: list[torch.optim.Optimizer], made_of: dict[str, Any]
) -> _Progress:
    if not path.exists():
        return _Progress()
    saved = torch.load(path, weights_only=True)
    if saved.get("made_of") != made_of:
        raise ModelError(
            f"{path} is the checkpoint of another training (model, recipe, text or tokenizer "
            "differ); remove it to train from scratch, or choose another --work folder"
        )
    model.load_state_dict(saved["model"])
    for optimizer, state in zip(optimizers, saved["optimizers"], strict=True):
        optimizer.load_state_dict(state)
    return _Progress(**saved["at"])


def _step(
    model: Any, optimizers: list[torch.optim.Optimizer], text: TrainingText, recipe: Recipe, at: int
) -> tuple[float, float]:
    ids, labels, passkeys = text.batch(recipe.seed, at, recipe.batch, recipe.schedule)
    scale = recipe.lr_scale(at)
    for optimizer, lr in zip(optimizers, (recipe.muon_lr, recipe.adamw_lr), strict=True):
        for group in optimizer.param_groups:
            group["lr"] = lr * scale
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(torch.from_numpy(ids), use_cache=False).logits
    flat = functional.cross_entropy(
        logits[:, :-1].float().flatten(0, 1),
        torch.from_numpy(labels[:, 1:]).flatten(),
        ignore_index=IGNORED,
        reduction="none",
    )
    losses = flat.view(recipe.batch, -1)
    torch.autograd.backward(losses.mean())
    losses = losses.detach()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return float(losses[passkeys:].mean()), float(losses[:passkeys].mean())


def train(
    name: str,
    text: TrainingText,
    recipe: Recipe,
    work: Path,
    *,
    say: Say = print,
    checkpoint_every: int = 100,
) -> tuple[Any, dict[str, Any]]:
    """Train a zoo model from scratch, or from the checkpoint in `work` if there is one.

    Args:
        name: One of ``harness.zoo.ZOO``.
        text: The tokenized training text.
        recipe: Steps, batch and learning rates.
        work: Folder of the checkpoint; made if missing.
        say: Where progress lines go.
        checkpoint_every: Steps between checkpoints and accuracy checks.

    Returns:
        The model in float32 and its card (steps, tokens, seconds, losses, passkey accuracy,
        versions), ready for JSON.

    Raises:
        ModelError: If the checkpoint in `work` is of another model, recipe or text.
    """
    work.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(recipe.seed)
    model = build_model(name)
    optimizers = _optimizers(model, recipe)
    made_of = {"name": name, "recipe": asdict(recipe), "text": text.digest}
    at = _load(work / "checkpoint.pt", model, optimizers, made_of)
    model.train()
    while at.step < recipe.steps:
        began = time.monotonic()
        losses = _step(model, optimizers, text, recipe, at.step)
        at.add(*losses, time.monotonic() - began)
        if at.step % 10 == 0:
            left = at.seconds / at.step * (recipe.steps - at.step)
            say(
                f"{name}  step {at.step}/{recipe.steps}  text {at.text_loss:.3f}  passkey"
                f" {at.passkey_loss:.3f} nats/token  {left / 60:.1f} min left"
            )
        if at.step % checkpoint_every == 0 or at.step == recipe.steps:
            accuracy = _passkey_accuracy(model, text, recipe.seed)
            at.history.append(
                {"step": at.step, "text_loss": at.text_loss, "passkey_accuracy": accuracy}
            )
            say(f"{name}  step {at.step}  passkey accuracy {accuracy:.2f}")
            _save(work / "checkpoint.pt", model, optimizers, at, made_of)
    return model.eval(), _card(name, model, text, recipe, at)


def _card(
    name: str, model: Any, text: TrainingText, recipe: Recipe, at: _Progress
) -> dict[str, Any]:
    import transformers

    return {
        "name": name,
        "parameters": sum(p.numel() for p in model.parameters()),
        "trained_length": recipe.window_tokens,
        "steps": at.step,
        "tokens": at.step * recipe.batch * recipe.window_tokens,
        "corpus_tokens": text.num_tokens,
        "seconds": round(at.seconds, 1),
        "text_loss_nats": round(at.text_loss, 4),
        "passkey_accuracy": at.history[-1]["passkey_accuracy"],
        "history": at.history,
        "recipe": asdict(recipe),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    }


def save_model(model: Any, card: dict[str, Any], folder: Path) -> None:
    """Write weights (float16, read back as float32), config and card over those in the folder.

    float16 keeps three more bits than bfloat16 and no weight comes near its range.
    """
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    tied = {"lm_head.weight"}  # the embeddings again
    weights = {n: p.half().contiguous() for n, p in model.state_dict().items() if n not in tied}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = model.config.to_dict() | {"dtype": "float32", "architectures": [type(model).__name__]}
    for unknown in ("_name_or_path", "transformers_version"):
        config.pop(unknown, None)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (folder / "card.json").write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")
