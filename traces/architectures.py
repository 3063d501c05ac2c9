"""Transformers as lists of their parameter tensors, with the MACs that use each tensor.

This module owns GPT-2/GPT-3, BERT and T5, in forward order. It does not own timing, batch sizes or
optimizers (synth.py).
Source: Radford et al. 2019 (GPT-2), Brown et al. 2020 (GPT-3), Devlin et al. 2018 (BERT), Raffel et
    al. 2020 (T5); shapes and names as in the published checkpoints.
"""

from __future__ import annotations

from typing import NamedTuple


class Use(NamedTuple):
    """One use of a parameter tensor in the forward pass, or, if ``name`` is None, work without
    parameters.

    `macs` is the number of multiply-accumulates of this use per sample.
    """

    name: str | None
    shape: tuple[int, ...]
    macs: int


def _linear(name: str, inputs: int, outputs: int, tokens: int, bias: bool = True) -> list[Use]:
    """Return the uses of a dense layer: its weight and, if `bias` is True, its bias.

    The weight has the shape (inputs, outputs), as in GPT-2's Conv1D.
    """
    uses = [Use(f"{name}.weight", (inputs, outputs), inputs * outputs * tokens)]
    return [*uses, Use(f"{name}.bias", (outputs,), 0)] if bias else uses


def _norm(name: str, width: int, bias: bool = True) -> list[Use]:
    weight = Use(f"{name}.weight", (width,), 0)
    return [weight, Use(f"{name}.bias", (width,), 0)] if bias else [weight]


def _attention(queries: int, keys: int, width: int) -> Use:
    """Return the part of attention that uses no parameters: the scores and the weighted sum.

    Each of the two products takes queries x keys x width multiply-accumulates.
    """
    return Use(None, (), 2 * queries * keys * width)


def gpt(layers: int, hidden: int, context: int, tokens: int, vocabulary: int = 50257) -> list[Use]:
    """Return the tensors of GPT-2 or GPT-3; the output head is tied to the token embedding."""
    uses = [Use("wte.weight", (vocabulary, hidden), 0), Use("wpe.weight", (context, hidden), 0)]
    for i in range(layers):
        uses += _norm(f"h.{i}.ln_1", hidden)
        uses += _linear(f"h.{i}.attn.c_attn", hidden, 3 * hidden, tokens)
        uses.append(_attention(tokens, tokens, hidden))
        uses += _linear(f"h.{i}.attn.c_proj", hidden, hidden, tokens)
        uses += _norm(f"h.{i}.ln_2", hidden)
        uses += _linear(f"h.{i}.mlp.c_fc", hidden, 4 * hidden, tokens)
        uses += _linear(f"h.{i}.mlp.c_proj", 4 * hidden, hidden, tokens)
    uses += _norm("ln_f", hidden)
    return [*uses, Use(None, (), vocabulary * hidden * tokens)]


def bert(layers: int, hidden: int, tokens: int, vocabulary: int = 30522) -> list[Use]:
    """Return the tensors of the BERT encoder with pooler, without pre-training heads."""
    uses = [
        Use("embeddings.word_embeddings.weight", (vocabulary, hidden), 0),
        Use("embeddings.position_embeddings.weight", (512, hidden), 0),
        Use("embeddings.token_type_embeddings.weight", (2, hidden), 0),
        *_norm("embeddings.LayerNorm", hidden),
    ]
    for i in range(layers):
        layer = f"encoder.layer.{i}"
        for part in ("query", "key", "value"):
            uses += _linear(f"{layer}.attention.self.{part}", hidden, hidden, tokens)
        uses.append(_attention(tokens, tokens, hidden))
        uses += _linear(f"{layer}.attention.output.dense", hidden, hidden, tokens)
        uses += _norm(f"{layer}.attention.output.LayerNorm", hidden)
        uses += _linear(f"{layer}.intermediate.dense", hidden, 4 * hidden, tokens)
        uses += _linear(f"{layer}.output.dense", 4 * hidden, hidden, tokens)
        uses += _norm(f"{layer}.output.LayerNorm", hidden)
    return uses + _linear("pooler.dense", hidden, hidden, 1)


def t5(
    layers: int,
    hidden: int,
    inner: int,
    feed: int,
    heads: int,
    source: int,
    target: int,
    vocabulary: int = 32128,
) -> list[Use]:
    """Return the tensors of T5 1.0 with `layers` layers in the encoder and in the decoder.

    inner = heads x d_kv. feed: width of the feed-forward layers (d_ff). source, target: numbers of
    tokens.
    """

    def attend(name: str, queries: int, keys: int, first: bool) -> list[Use]:
        uses = [
            *_linear(f"{name}.q", hidden, inner, queries, bias=False),
            *_linear(f"{name}.k", hidden, inner, keys, bias=False),
            *_linear(f"{name}.v", hidden, inner, keys, bias=False),
            _attention(queries, keys, inner),
            *_linear(f"{name}.o", inner, hidden, queries, bias=False),
        ]
        # only the first self-attention of each stack has the 32 relative position buckets
        bias = [Use(f"{name}.relative_attention_bias.weight", (32, heads), 0)] if first else []
        return uses + bias

    def feed_forward(name: str, tokens: int) -> list[Use]:
        return [
            *_linear(f"{name}.wi", hidden, feed, tokens, bias=False),
            *_linear(f"{name}.wo", feed, hidden, tokens, bias=False),
        ]

    uses = [Use("shared.weight", (vocabulary, hidden), 0)]
    for i in range(layers):
        block = f"encoder.block.{i}"
        uses += _norm(f"{block}.layer.0.layer_norm", hidden, bias=False)
        uses += attend(f"{block}.layer.0.SelfAttention", source, source, i == 0)
        uses += _norm(f"{block}.layer.1.layer_norm", hidden, bias=False)
        uses += feed_forward(f"{block}.layer.1.DenseReluDense", source)
    uses += _norm("encoder.final_layer_norm", hidden, bias=False)
    for i in range(layers):
        block = f"decoder.block.{i}"
        uses += _norm(f"{block}.layer.0.layer_norm", hidden, bias=False)
        uses += attend(f"{block}.layer.0.SelfAttention", target, target, i == 0)
        uses += _norm(f"{block}.layer.1.layer_norm", hidden, bias=False)
        uses += attend(f"{block}.layer.1.EncDecAttention", target, source, False)
        uses += _norm(f"{block}.layer.2.layer_norm", hidden, bias=False)
        uses += feed_forward(f"{block}.layer.2.DenseReluDense", target)
    uses += _norm("decoder.final_layer_norm", hidden, bias=False)
    return [*uses, Use(None, (), vocabulary * hidden * target)]


def macs(uses: list[Use]) -> int:
    """Return the multiply-accumulates (MACs) of the forward pass of one sample."""
    return sum(use.macs for use in uses)
