"""Models and their tokenizers: from a hub, a local folder, a GGUF file or the zoo.

What planning needs (`ModelFacts`) is read from the config and the files' hashes, without weights.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
from contextlib import nullcontext, redirect_stderr
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from harness.errors import ModelError, UnreachableModelError
from harness.gguf_scaling import put_back
from harness.spec import ModelSpec
from harness.zoo import zoo_folder
from harness.zoo.tokenizer import ZooTokenizer
from patches import PatchError, RopeGeometry, layer_types_of
from patches.geometry import FULL_ATTENTION, LENGTH_DEPENDENT

_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".gguf", ".pt")


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """What is known of a model before its weights are loaded.

    Attributes:
        geometry: Rotary size, base and trained length, one a layer type.
        trained_length: Tokens; the YAML's if it says one.
        fingerprint: Commit of the hub's snapshot, or a hash of the folder's files.
        config: The text model's config as a dict.
        layer_types: The attention type of each layer, where the config says it.
    """

    geometry: dict[str | None, RopeGeometry]
    layer_types: tuple[str, ...] | None
    trained_length: int
    fingerprint: str
    config: dict[str, Any]

    @property
    def native_follows_length(self) -> bool:
        """Whether the model's own scaling chooses its tables by the length of the input."""
        rope = self.config.get("rope_parameters") or self.config.get("rope_scaling") or {}
        parts = [rope, *(part for part in rope.values() if isinstance(part, dict))]
        types = {part.get("rope_type") or part.get("type") for part in parts}
        return bool(types & LENGTH_DEPENDENT)


def _zoo_name(spec: ModelSpec) -> str | None:
    return spec.path.removeprefix("zoo:") if spec.path.startswith("zoo:") else None


def local_folder(spec: ModelSpec) -> Path | None:
    """The folder of a zoo or local model; None for one on a hub.

    Raises:
        ModelError: If the path looks like a folder and is none.
    """
    name = _zoo_name(spec)
    if name is not None:
        return zoo_folder(name)
    folder = Path(spec.path).expanduser()
    if folder.is_dir():
        return folder
    looks_local = spec.path.startswith((".", "/", "~")) or spec.path.count("/") > 1
    if looks_local or folder.exists():
        raise ModelError(f"model '{spec.path}': no such folder")
    return None


def _source(spec: ModelSpec) -> str:
    folder = local_folder(spec)
    return spec.path if folder is None else str(folder)


def _unreachable(spec: ModelSpec, what: str, error: Exception) -> ModelError:
    first_line = str(error).strip().splitlines()[0] if str(error).strip() else ""
    kind = UnreachableModelError if local_folder(spec) is None else ModelError
    return kind(
        f"model '{spec.path}': {what} cannot be loaded ({type(error).__name__}: "
        f"{first_line[:300]}); give a folder with config.json, weights and tokenizer, zoo:NAME, or "
        "a hub id that this machine can reach"
    )


@lru_cache(maxsize=64)
def _file_hash(path: Path, size: int, modified_ns: int) -> str:
    del size, modified_ns  # only so that a changed file is hashed again
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _folder_fingerprint(folder: Path, gguf_file: str | None) -> str:
    names = [p for p in folder.iterdir() if p.suffix in _WEIGHT_SUFFIXES or p.name == "config.json"]
    if gguf_file is not None:
        names = [folder / gguf_file]
    if not any(path.suffix in _WEIGHT_SUFFIXES for path in names):
        raise ModelError(
            f"{folder} has no weights ({', '.join(_WEIGHT_SUFFIXES)}); is it a model's folder?"
        )
    digest = hashlib.sha256()
    for path in sorted(names):
        status = path.stat()
        digest.update(path.name.encode())
        digest.update(_file_hash(path, status.st_size, status.st_mtime_ns).encode())
    return "sha256:" + digest.hexdigest()


def _read_config(spec: ModelSpec) -> tuple[dict[str, Any], str]:
    """The config as a dict and the fingerprint of what it belongs to."""
    folder = local_folder(spec)
    if folder is None:
        config = _transformers_config(spec)
        commit = config.get("_commit_hash") or spec.revision or "main"
        return config, f"{spec.path}@{commit}" + (f":{spec.gguf_file}" if spec.gguf_file else "")
    if spec.gguf_file is not None and not (folder / spec.gguf_file).is_file():
        raise ModelError(f"model '{spec.path}': no file {spec.gguf_file} in {folder}")
    if spec.gguf_file is None and not (folder / "config.json").is_file():
        raise ModelError(f"model '{spec.path}': no config.json in {folder}")
    fingerprint = _folder_fingerprint(folder, spec.gguf_file)
    if _zoo_name(spec) is None:
        # Not the file itself: what it leaves out, its class fills in.
        return _transformers_config(spec), fingerprint
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return config, fingerprint


def _gguf_path(spec: ModelSpec) -> Path:
    assert spec.gguf_file is not None
    folder = local_folder(spec)
    if folder is not None:
        return folder / spec.gguf_file
    from transformers.utils import cached_file

    return Path(cached_file(spec.path, spec.gguf_file, revision=spec.revision))


def _own_config(spec: ModelSpec, *, quiet: bool) -> Any:
    """The config by its class, with what a GGUF file says and the loader leaves out."""
    from transformers import AutoConfig

    extra = {"gguf_file": spec.gguf_file} if spec.gguf_file else {}
    try:
        config = AutoConfig.from_pretrained(_source(spec), revision=spec.revision, **extra)
        path = _gguf_path(spec) if spec.gguf_file else None
    except Exception as error:  # transformers and the hub raise OSError, ValueError, HTTP errors...
        raise _unreachable(spec, "its config", error) from None
    if path is not None:
        put_back(config, path, quiet=quiet)
    return config


def _transformers_config(spec: ModelSpec) -> dict[str, Any]:
    config = _own_config(spec, quiet=False)
    result: dict[str, Any] = config.to_dict()
    result["_commit_hash"] = getattr(config, "_commit_hash", None)
    return result


def model_facts(spec: ModelSpec) -> ModelFacts:
    """Read what planning needs, without the weights.

    Raises:
        ModelError: If the model is missing, unreachable or has no rotary embedding.
    """
    config, fingerprint = _read_config(spec)
    text = config.get("text_config") or config
    try:
        geometry = RopeGeometry.from_config(text)
    except PatchError as error:
        raise ModelError(f"model '{spec.path}': {error}") from None
    if spec.trained_length is not None:
        geometry = {
            layer_type: RopeGeometry(
                rotary_dim=g.rotary_dim, base=g.base, trained_length=spec.trained_length
            )
            for layer_type, g in geometry.items()
        }
    # Where layer types differ, lengths are told by the layers that see everything.
    lengths = {t: g.trained_length for t, g in geometry.items()}
    trained = lengths.get(FULL_ATTENTION, max(lengths.values()))
    return ModelFacts(
        geometry=geometry,
        layer_types=layer_types_of(text),
        trained_length=trained,
        fingerprint=fingerprint,
        config=text,
    )


def load_tokenizer(spec: ModelSpec) -> Any:
    """The model's tokenizer; the zoo's models share one.

    Raises:
        ModelError: If there is none.
    """
    if _zoo_name(spec) is not None:
        return ZooTokenizer()
    from transformers import AutoTokenizer

    extra = {"gguf_file": spec.gguf_file} if spec.gguf_file else {}
    try:
        return AutoTokenizer.from_pretrained(_source(spec), revision=spec.revision, **extra)
    except Exception as error:
        raise _unreachable(spec, "its tokenizer", error) from None


def pick_device(wanted: str) -> str:
    """`auto`: the first CUDA device, else Apple's, else the CPU."""
    if wanted != "auto":
        return wanted
    import torch

    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def devices_of(model: Any) -> list[Any]:
    """The devices that a model's parameters are on, in the order in which they come.

    Those that accelerate keeps elsewhere and brings when they are needed are on none.
    """
    devices = dict.fromkeys(parameter.device for parameter in model.parameters())
    return [device for device in devices if device.type != "meta"]


def check_device(spec: ModelSpec) -> None:
    """Refuse a device that is not there before anything is measured.

    Raises:
        ModelError: If torch does not know the device or this machine has none of it.
    """
    import torch

    if spec.device_map is not None:
        if importlib.util.find_spec("accelerate") is None:
            raise ModelError(
                f"model '{spec.path}': device_map needs the package accelerate: pip install "
                "'ropewalk[multi-gpu]'"
            )
        return
    try:
        torch.empty(0, device=pick_device(spec.device))
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().splitlines()[0][:200]
        raise ModelError(
            f"model '{spec.path}': device '{spec.device}' cannot be used here ({reason}); use "
            "auto, cpu, cuda, cuda:N or mps"
        ) from None


def load_model(spec: ModelSpec) -> Any:
    """Load a causal language model, in evaluation mode, on its device.

    Weights are loaded once per model; methods are patched onto it.

    Raises:
        ModelError: If it cannot be loaded.
    """
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # its bar would break ours
    local_folder(spec)
    extra: dict[str, Any] = {}
    if spec.gguf_file:
        from transformers import GgufConfig

        extra = {
            "gguf_file": spec.gguf_file,
            "quantization_config": GgufConfig(dequantize=True),
            "config": _own_config(spec, quiet=True),
        }
    if spec.device_map:
        extra["device_map"] = spec.device_map
    dtype = spec.dtype if spec.dtype == "auto" else getattr(torch, spec.dtype)
    try:
        # The GGUF loader has a progress bar of its own, which cannot be switched off.
        with redirect_stderr(io.StringIO()) if spec.gguf_file else nullcontext():
            model = AutoModelForCausalLM.from_pretrained(
                _source(spec), revision=spec.revision, dtype=dtype, **extra
            )
        return (model if spec.device_map else model.to(pick_device(spec.device))).eval()
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise _unreachable(spec, "the model", error) from None
