"""The way of GPUs, on tensors that say that they lie on one.

`OnGpu` holds numbers on the CPU and claims a GPU. What a GPU would refuse (tensors of two devices,
an index from another GPU) is refused, and attention goes to the operator that PyTorch 2.13 would
choose (sdp_utils.cpp), computed by its definition in float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import bias
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map

from harness import fused, head, layer_call, prefill
from harness.engine import AttentionSettings, measure
from harness.fused import fused_output
from harness.masks import TileMask
from harness.models import devices_of
from harness.prefix import answer_logits
from harness.rows import STATISTICS
from harness.tiles import attend
from harness.workers import TileWorkers
from tests.models import MODELS, make_model, random_ids
from tests.test_fused import reference

aten = torch.ops.aten
CPU, GPU, SECOND = map(torch.device, ("cpu", "cuda:0", "cuda:1"))
HALF = (torch.float16, torch.bfloat16)
CAPABILITY = [(8, 0)]  # of the GPU that is played
CHOSEN: list[str] = []  # operators that attention went to
WAITS: list[str] = []  # operations for which a CPU waits for a GPU


class OnGpu(Tensor):
    """A tensor on the CPU that claims to lie on a GPU."""

    held: Tensor
    claimed: torch.device

    @staticmethod
    def __new__(cls, held: Tensor, claimed: torch.device) -> OnGpu:
        # To C++ it is of device meta: a build without CUDA has no guard for its devices.
        size, at, kind = (held.shape, held.stride()), held.storage_offset(), held.dtype
        with torch.inference_mode(False):
            new: OnGpu = Tensor._make_wrapper_subclass(cls, *size, at, dtype=kind, device="meta")
        new.held, new.claimed = held, claimed
        return new

    @property
    def device(self) -> torch.device:
        return self.claimed

    def tolist(self) -> Any:
        WAITS.append("tolist")
        return self.held.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = tree_flatten((args, kwargs or {}))[0]
        tensors = [x for x in given if isinstance(x, Tensor)]
        gpus = [x for x in tensors if isinstance(x, OnGpu)]
        check_devices(func.overloadpacket, tensors, gpus[0].device)
        if CPU in given or func.overloadpacket in (aten._local_scalar_dense, aten.item):
            WAITS.append(str(func))

        def claim(x: Any) -> Any:
            same = [own for own in gpus if own.held is x]  # of an operation in place
            keep = not isinstance(x, Tensor) or CPU in given
            return x if keep else same[0] if same else OnGpu(x, gpus[0].device)

        def held(x: Any) -> Any:
            return x.held if isinstance(x, OnGpu) else CPU if isinstance(x, torch.device) else x

        real = tree_map(held, (args, kwargs or {}))
        return tree_map(claim, LOWER_RIGHT.get(func, func)(*real[0], **real[1]))


def check_devices(packet: Any, tensors: list[Tensor], gpu: torch.device) -> None:
    """Refuse what PyTorch refuses."""
    for other in [] if packet in (aten.to, aten._to_copy, aten.copy_) else tensors:
        free = packet in (aten.index, aten.index_put_) or other.ndim == 0
        if other.device != gpu and not (other.device == CPU and free):
            raise RuntimeError(f"{packet}: tensors on {gpu} and {other.device}")


def attention(q: Any, k: Any, v: Any, scale: float, mask: Any, diagonal: int | None) -> Tensor:
    """The output, as the definition says."""
    k, v = (part.double().repeat_interleave(q.shape[1] // k.shape[1], 1) for part in (k, v))
    scores = q.double() @ k.mT * scale
    seen = torch.ones(scores.shape[2:], dtype=torch.bool) if mask is None else mask
    seen = seen if diagonal is None else seen.tril(diagonal)
    return (scores.masked_fill(~seen, -torch.inf).softmax(-1) @ v).to(q.dtype)


def flash(q: Any, k: Any, v: Any, dropout: float, causal: bool, *, scale: Any) -> Any:
    assert causal
    CHOSEN.append("lower right flash")
    out = attention(q, k, v, scale, None, k.shape[2] - q.shape[2])
    return out, None, None, None, 0, 0, None, None, None


def efficient(q: Any, k: Any, v: Any, *more: Any, scale: Any) -> Any:
    # As many heads; no bias; causal from the bottom right.
    assert (q.shape[2], more[0], more[6]) == (k.shape[2], None, 2)
    CHOSEN.append("lower right efficient")
    out = attention(*(x.transpose(1, 2) for x in (q, k, v)), scale, None, k.shape[1] - q.shape[1])
    return out.transpose(1, 2), None, None, None, 0, 0


LOWER_RIGHT: dict[Any, Any] = {
    aten._scaled_dot_product_flash_attention.default: flash,
    aten._efficient_attention_forward.default: efficient,
}


def can_use_flash(p: Any, debug: bool = False) -> bool:
    """Half precision; keys may have fewer heads, but no mask."""
    fits = p.query.shape[-1] == p.value.shape[-1] <= 256 and p.attn_mask is None
    heads = p.query.shape[1] == p.key.shape[1] or p.enable_gqa
    square = not p.is_causal or p.query.shape[2] == p.key.shape[2]
    return p.query.dtype in HALF and fits and heads and square and CAPABILITY[0] >= (8, 0)


def can_use_efficient(p: Any, debug: bool = False) -> bool:
    """Any mask, but as many key heads as query heads."""
    known = (torch.float32, *(HALF if CAPABILITY[0] >= (8, 0) else HALF[:1]))
    aligned = p.query.shape[-1] % (8 if p.query.dtype in HALF else 4) == 0
    return p.query.dtype in known and aligned and p.query.shape[1] == p.key.shape[1]


class Gpus(TorchFunctionMode):
    """Makes tensors on GPUs where they are asked for, and chooses their attention's operator."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is scaled_dot_product_attention and isinstance(args[0], OnGpu):
            return self.attend(*args, **kwargs)
        named = [x for x in (*args, *kwargs.values()) if isinstance(x, str | torch.device)]
        wanted = [x for x in named if str(x).startswith("cuda")]
        if func is torch.device or not wanted:
            return func(*args, **kwargs)
        waits = len(WAITS)
        on_cpu = tree_map(lambda x: CPU if any(x is gpu for gpu in wanted) else x, (args, kwargs))
        real = func(*on_cpu[0], **on_cpu[1])
        del WAITS[waits:]
        return OnGpu(real.clone(), torch.device("cuda", torch.device(wanted[0]).index or 0))

    def attend(self, q: Any, k: Any, v: Any, attn_mask: Any, is_causal: bool, **more: Any) -> Any:
        if isinstance(attn_mask, bias.CausalBias):
            with self:
                return bias.CausalBias._dispatch(q, k, v, attn_mask, is_causal=is_causal, **more)
        params = bias.SDPAParams(q, k, v, attn_mask, 0.0, is_causal, more["enable_gqa"])
        usable = (can_use_flash(params), can_use_efficient(params), True)
        CHOSEN.append(("flash", "efficient", "math")[usable.index(True)])
        mask, diagonal = getattr(attn_mask, "held", None), 0 if is_causal else None
        return OnGpu(attention(q.held, k.held, v.held, more["scale"], mask, diagonal), q.device)


@pytest.fixture(autouse=True)
def a100(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Play an A100, wherever tensors are asked for on a GPU."""
    for module in (bias, fused):
        monkeypatch.setattr(module, "can_use_flash_attention", can_use_flash)
    monkeypatch.setattr(bias, "can_use_efficient_attention", can_use_efficient)
    CAPABILITY[:] = [(8, 0)]
    CHOSEN.clear()
    with Gpus():
        yield


def on_gpu(past: int, tokens: int, window: int = 1 << 20, dropped: int = 0) -> TileMask:
    rule, keys = lambda b, h, q, k: (k <= q) & (k > q - window), past + tokens - dropped
    return TileMask(rule, tokens, keys, GPU, query_offset=past, key_offset=dropped)


CASES = {
    "whole": ((0, 40), "flash", "efficient"),
    "behind a cache": ((23, 40), "lower right flash", "lower right efficient"),
    "one token": ((23, 1), "flash", "efficient"),
    "window": ((23, 150, 9, 12), "efficient", "efficient"),
}


@pytest.mark.parametrize("size", [64, 96, 128, 256])
@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
@pytest.mark.parametrize("key_heads", [4, 2])
@pytest.mark.parametrize("name", list(CASES))
def test_outputs_and_operators(name, key_heads, dtype, size):
    shape, half, full = CASES[name]
    mask, at = on_gpu(*shape), torch.arange(shape[0], sum(shape[:2]))[:, None]
    key, value = torch.randn(2, 2, key_heads, mask.num_keys, size).to(dtype)
    query = torch.randn(2, 4, len(at), size).to(dtype)
    found = fused_output(*(part.to(GPU) for part in (query, key, value)), mask, size**-0.5)
    keys = torch.arange(mask.key_offset, mask.key_offset + mask.num_keys)[None]
    visible = (keys <= at) & (keys > at - (mask.window or 1 << 20))
    expected = reference(query, key, value, visible, size**-0.5)
    assert (found.device, found.dtype, found.shape) == (GPU, dtype, expected.shape)
    tolerance = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 0.03}[dtype]
    assert (found.cpu().double() - expected).abs().max() < tolerance
    assert set(CHOSEN) == {half if dtype in HALF else full}


@pytest.mark.parametrize("past", [0, 200])
@pytest.mark.parametrize(
    ("size", "capability", "window"), [(64, (8, 0), 9), (512, (8, 0), 300), (64, (7, 5), 300)]
)
def test_no_operator_makes_all_scores_of_grouped_heads(past, size, capability, window):
    CAPABILITY[:] = [capability]
    query, key = (torch.zeros(1, *of, size).to(GPU, HALF[0]) for of in ((4, 300 - past), (2, 300)))
    assert fused_output(query, key, key, on_gpu(past, 300 - past, window), 1.0) is not None
    assert "math" not in CHOSEN


def to_gpus(model: Any, *gpus: torch.device) -> Any:
    """Put a model on GPUs, the later half on the last; states move as accelerate moves them."""
    for name, module in model.named_modules():
        late = any(part in f".{name}" for part in (".layers.1", ".norm", "_norm", "head", "_out"))
        gpu = gpus[-1] if late and "layers.0" not in name else gpus[0]

        def move(x: Any, gpu: torch.device = gpu) -> Any:
            return x.to(gpu) if isinstance(x, Tensor) else x

        for key, own in module._parameters.items():
            module._parameters[key] = None if own is None else nn.Parameter(move(own.data), False)
        module._buffers.update({key: move(own) for key, own in module._buffers.items()})
        if len(gpus) > 1 and name not in ("", model.base_model_prefix):
            hook = lambda _, *given, move=move: tree_map(move, given)  # noqa: E731
            module.register_forward_pre_hook(hook, with_kwargs=True)
    return model


@pytest.mark.parametrize("places", [(GPU,), (GPU, SECOND)], ids=["one", "two"])
@pytest.mark.parametrize("name", list(MODELS))
def test_a_model_gives_what_it_gives_on_a_cpu(name, places):
    model, ids = make_model(name, 0), random_ids(0, 48, batch=3)
    ids[:, :20] = ids[:1, :20]
    settings = AttentionSettings(queries=(3, 7, 8, 9, 30, 46), local_window=5)

    def results() -> list[Any]:
        found = measure(model, ids[:1], attention=settings, chunk_tokens=20)
        # Positions index hidden states on one GPU and tokens on another.
        answers = answer_logits(model, ids, torch.tensor([25, 46]), shared_tokens=20)
        assert answers.device == next(reversed(devices_of(model)))
        return [found.nll, answers.cpu(), *map(found.attention.values.get, STATISTICS)]

    expected = results()
    assert devices_of(to_gpus(model, *places)) == list(places)
    for before, now in zip(expected, results(), strict=True):
        np.testing.assert_allclose(now, before, atol=1e-4, rtol=1e-4)


def test_no_gpu_is_waited_for_within_a_layer(monkeypatch):
    query, key = torch.zeros(4, 3000, 8).to(GPU), torch.zeros(2, 3000, 8).to(GPU)
    given = {"scaling": 1.0, "softcap": None, "sinks": None}
    for size in (1, 1 << 30):
        monkeypatch.setattr(layer_call, "DEVICE_BLOCK_BYTES", size)
        call = layer_call.layer_call(query, key, None, on_gpu(0, 3000), **given)
        found = {name: call.columns.new_empty(2, 2, 1) for name in STATISTICS}
        at = torch.tensor([2900])
        WAITS.clear()
        with TileWorkers(GPU) as workers, torch.inference_mode():
            attend(call, at, workers, output=None, statistics=found, local_window=5)
        assert not WAITS
        assert float(found["entropy_nats"].sum()) > 0
        assert WAITS


def test_budgets_are_those_of_the_device(monkeypatch):
    monkeypatch.setattr(head, "_MOST_TOKENS", 1 << 30)
    for budgets in (prefill.ACTIVATION_BYTES, prefill.CACHE_BYTES, head._LOGIT_BYTES):
        for device, size in zip(budgets, (1 << 20, 1 << 22, 1 << 21), strict=True):
            monkeypatch.setitem(budgets, device, size)
    model, sizes = make_model("llama", 0), []
    for _ in ("cpu", "cuda"):
        chunk = prefill.chunk_size(model, 1 << 20)
        sizes.append((chunk, prefill.most_rows(model, 1), head.slice_tokens(model)))
        to_gpus(model, GPU)
    for before, now in zip(*sizes, strict=True):
        assert 3.9 < now / before < 4.6  # chunks are rounded down


def test_operators_take_what_they_are_given():
    on_cpu = aten._scaled_dot_product_flash_attention_for_cpu.default._schema
    chosen = aten.scaled_dot_product_attention.default._schema
    both = "query key value dropout_p is_causal attn_mask scale"
    for schema, given in ((on_cpu, both), (chosen, f"{both} enable_gqa")):
        known = {argument.name: argument.default_value for argument in schema.arguments}
        assert set(known) == set(given.split())
        assert not any(known.values())  # what is left out does nothing
    assert [argument.name for argument in on_cpu.arguments[:5]] == both.split()[:5]
    assert [value.name for value in on_cpu.returns] == ["output", "logsumexp"]
