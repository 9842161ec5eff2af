"""Columns of the tables, named once."""

from __future__ import annotations

IDENTITY = (
    "model",
    "method",
    "kind",
    "layers",
    "factor",
    "base",
    "trained_length",
    "context_length",
    "seed",
    "data_hash",
    "python_version",
    "pass_id",
)
PERPLEXITY = (
    "document",
    "position_start",
    "position_stop",
    "tokens",
    "bytes",
    "nll_nats",
    "protocol",
)
STATISTICS = (
    "entropy_nats",
    "normalized_entropy",
    "effective_tokens",
    "sink_mass",
    "self_mass",
    "previous_mass",
    "local_mass",
    "learnt_sink_mass",
    "mean_distance_tokens",
    "max_logit",
)
ATTENTION = (
    "layer",
    "layer_type",
    "head",
    "position_start",
    "position_stop",
    "queries",
    *STATISTICS,
    *(f"{name}_std" for name in STATISTICS),
)
PASSKEY = (
    "depth",
    "trial",
    "distractors",
    "answer",
    "predicted",
    "correct",
    "answer_nll_nats",
    "prompt_tokens",
)
PROBE_TABLES = {"perplexity": "perplexity", "entropy": "attention", "passkey": "passkey"}
PROBE_COLUMNS = {"perplexity": PERPLEXITY, "attention": ATTENTION, "passkey": PASSKEY}
PASSES = (
    "pass_id",
    "model",
    "method",
    "kind",
    "layers",
    "layers_changed",
    "factor",
    "base",
    "trained_length",
    "probe",
    "context_lengths",
    "status",
    "seconds",
    "tokens",
    "tokens_per_second",
    "peak_memory_bytes",
    "device",
    "dtype",
    "attention_backend",
    "seed",
    "data_hash",
    "model_fingerprint",
    "python_version",
    "error",
)
