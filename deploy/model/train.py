#!/usr/bin/python3
"""Trains the byte-level Llama model of this folder and writes it in the Hugging Face layout.

Needs the Debian packages python3-torch, bible-kjv and bible-kjv-text, and better libopenblas0-pthread, whose
matrix products are some thirty times faster than the reference BLAS. Writes config.json,
model.safetensors and heldout.txt into --out; golden.py then writes golden.json from them.

Every random choice comes from the seed, and the order of the steps is fixed, so a run repeats as
far as the BLAS library and the thread count keep the order of floating-point sums.
"""

import argparse
import dataclasses
import json
import math
import os
import sys
import time

import torch
import torch.nn.functional as F

import corpus
import safetensors_io

SEED = 1611
HELDOUT_FILE_BYTES = 4096
EVAL_WINDOW = 256


@dataclasses.dataclass(frozen=True)
class Shape:
    """The model's shape, under the names of a Hugging Face Llama config."""

    vocab_size: int = 256
    hidden_size: int = 128
    intermediate_size: int = 352
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 32
    max_position_embeddings: int = 8192
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5


@dataclasses.dataclass(frozen=True)
class Stretch:
    """A part of the training run: `share` of all steps, each of `batch` sequences of `length`.

    When `spread` is set, half of the batches move the second part of each sequence to later
    positions, anywhere below max_position_embeddings, so that the model meets every distance it
    may be asked about without paying for sequences of that length.
    """

    share: float
    length: int
    batch: int
    spread: bool = False


STRETCHES = (
    Stretch(share=0.75, length=256, batch=10),
    Stretch(share=0.15, length=512, batch=5),
    Stretch(share=0.06, length=1024, batch=2, spread=True),
    Stretch(share=0.04, length=2048, batch=1, spread=True),
)


def init_parameters(shape, generator):
    """Returns {Hugging Face tensor name: parameter}. Embeddings are tied: there is no lm_head."""
    residual_std = 0.02 / math.sqrt(2 * shape.num_hidden_layers)
    query_rows = shape.num_attention_heads * shape.head_dim
    kv_rows = shape.num_key_value_heads * shape.head_dim
    hidden, inner = shape.hidden_size, shape.intermediate_size

    def normal(rows, columns, std):
        return torch.randn(rows, columns, generator=generator) * std

    tensors = {
        "model.embed_tokens.weight": normal(shape.vocab_size, hidden, 0.05),
        "model.norm.weight": torch.ones(hidden),
    }
    for layer in range(shape.num_hidden_layers):
        prefix = f"model.layers.{layer}."
        tensors[prefix + "input_layernorm.weight"] = torch.ones(hidden)
        tensors[prefix + "self_attn.q_proj.weight"] = normal(query_rows, hidden, 0.06)
        tensors[prefix + "self_attn.k_proj.weight"] = normal(kv_rows, hidden, 0.06)
        tensors[prefix + "self_attn.v_proj.weight"] = normal(kv_rows, hidden, 0.06)
        tensors[prefix + "self_attn.o_proj.weight"] = normal(hidden, query_rows, residual_std)
        tensors[prefix + "post_attention_layernorm.weight"] = torch.ones(hidden)
        tensors[prefix + "mlp.gate_proj.weight"] = normal(inner, hidden, 0.06)
        tensors[prefix + "mlp.up_proj.weight"] = normal(inner, hidden, 0.06)
        tensors[prefix + "mlp.down_proj.weight"] = normal(hidden, inner, residual_std)
    return {name: tensor.requires_grad_() for name, tensor in tensors.items()}


def rms_norm(x, weight, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def rope_tables(positions, shape):
    """Returns (cos, sin), each [*positions.shape, head_dim], in the rotate-half convention."""
    exponent = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
    angles = positions.float().unsqueeze(-1) * shape.rope_theta ** -exponent
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(x, cos, sin):
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin


def attention(parameters, prefix, x, cos, sin, mask, shape):
    """Causal grouped-query attention; query head h reads KV head h / (heads / kv_heads)."""
    batch, length, _ = x.shape
    kv_heads, dim = shape.num_key_value_heads, shape.head_dim
    group = shape.num_attention_heads // kv_heads

    def heads(name, count):
        projected = F.linear(x, parameters[f"{prefix}{name}_proj.weight"])
        return projected.view(batch, length, count, dim).transpose(1, 2)

    query = rotate(heads("q", shape.num_attention_heads), cos, sin) * dim ** -0.5
    key = rotate(heads("k", kv_heads), cos, sin)
    value = heads("v", kv_heads)
    query = query.reshape(batch, kv_heads, group * length, dim)
    scores = query @ key.transpose(-1, -2)
    scores = scores.view(batch, kv_heads, group, length, length) + mask
    weights = torch.softmax(scores, dim=-1).view(batch, kv_heads, group * length, length)
    mixed = (weights @ value).view(batch, kv_heads * group, length, dim)
    mixed = mixed.transpose(1, 2).reshape(batch, length, -1)
    return F.linear(mixed, parameters[prefix + "o_proj.weight"])


def forward(parameters, tokens, shape, positions=None):
    """Returns logits [batch, length, vocab] for tokens [batch, length]."""
    batch, length = tokens.shape
    if positions is None:
        positions = torch.arange(length).expand(batch, length)
    cos, sin = (table.unsqueeze(1) for table in rope_tables(positions, shape))
    mask = torch.full((length, length), -math.inf).triu(1)
    embedding = parameters["model.embed_tokens.weight"]
    x = F.embedding(tokens, embedding)
    for layer in range(shape.num_hidden_layers):
        prefix = f"model.layers.{layer}."
        h = rms_norm(x, parameters[prefix + "input_layernorm.weight"], shape.rms_norm_eps)
        x = x + attention(parameters, prefix + "self_attn.", h, cos, sin, mask, shape)
        h = rms_norm(x, parameters[prefix + "post_attention_layernorm.weight"], shape.rms_norm_eps)
        gate = F.silu(F.linear(h, parameters[prefix + "mlp.gate_proj.weight"]))
        up = F.linear(h, parameters[prefix + "mlp.up_proj.weight"])
        x = x + F.linear(gate * up, parameters[prefix + "mlp.down_proj.weight"])
    x = rms_norm(x, parameters["model.norm.weight"], shape.rms_norm_eps)
    return F.linear(x, embedding)


def mean_nll(parameters, tokens, shape, positions=None):
    """Mean negative log-likelihood, in nats, of every token but the first of each row."""
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    if positions is not None:
        positions = positions[:, :-1]
    logits = forward(parameters, inputs, shape, positions)
    return F.cross_entropy(logits.reshape(-1, shape.vocab_size), targets.reshape(-1))


def stretch_at(step, steps):
    done = 0.0
    for stretch in STRETCHES:
        done += stretch.share
        if step < round(done * steps):
            return stretch
    return STRETCHES[-1]


def sample_batch(data, stretch, shape, generator):
    """Returns (tokens [batch, length + 1], positions or None)."""
    width = stretch.length + 1
    starts = torch.randint(len(data) - width, (stretch.batch,), generator=generator)
    tokens = torch.stack([data[start:start + width] for start in starts.tolist()])
    if not stretch.spread or torch.rand((), generator=generator) < 0.5:
        return tokens.long(), None
    positions = torch.arange(width).repeat(stretch.batch, 1)
    for row in range(stretch.batch):
        split = int(torch.randint(1, width, (), generator=generator))
        room = shape.max_position_embeddings - width
        positions[row, split:] += int(torch.randint(room + 1, (), generator=generator))
    return tokens.long(), positions


def learning_rate(step, steps, peak, warmup=100, floor=0.03):
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - warmup)
    return peak * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress)))


def heldout_loss(parameters, heldout, shape, window=EVAL_WINDOW, limit=HELDOUT_FILE_BYTES):
    """Mean NLL over disjoint windows from the start of the held-out text."""
    count = limit // window
    with torch.no_grad():
        return mean_nll(parameters, heldout[:count * window].view(count, window).long(), shape).item()


def long_context_report(parameters, heldout, shape):
    """Yields (first position, mean NLL, largest |logit|) per stretch of one longest sequence."""
    length = shape.max_position_embeddings
    tokens = heldout[:length].view(1, -1).long()
    with torch.no_grad():
        logits = forward(parameters, tokens, shape)[0]
        nll = F.cross_entropy(logits[:-1], tokens[0, 1:], reduction="none")
    for begin in range(0, length, 1024):
        yield begin, nll[begin:begin + 1024].mean().item(), logits[begin:begin + 1024].abs().max().item()


def sample_text(parameters, prompt, count, shape, generator, temperature=0.7):
    tokens = torch.tensor([list(prompt)])
    with torch.no_grad():
        for _ in range(count):
            logits = forward(parameters, tokens, shape)[0, -1]
            chosen = torch.multinomial(torch.softmax(logits / temperature, -1), 1, generator=generator)
            tokens = torch.cat((tokens, chosen.view(1, 1)), dim=1)
    return bytes(tokens[0].tolist()).decode("utf-8", errors="replace")


def config_json(shape):
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": shape.intermediate_size,
        "max_position_embeddings": shape.max_position_embeddings,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": shape.num_attention_heads,
        "num_hidden_layers": shape.num_hidden_layers,
        "num_key_value_heads": shape.num_key_value_heads,
        "pretraining_tp": 1,
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_scaling": None,
        "rope_theta": shape.rope_theta,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "use_cache": True,
        "vocab_size": shape.vocab_size,
    }


def export(parameters, shape, heldout, folder):
    os.makedirs(folder, exist_ok=True)
    tensors = {name: parameter.detach().numpy() for name, parameter in parameters.items()}
    safetensors_io.save(os.path.join(folder, "model.safetensors"), tensors)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as out:
        json.dump(config_json(shape), out, indent=2)
        out.write("\n")
    with open(os.path.join(folder, "heldout.txt"), "wb") as out:
        out.write(bytes(heldout[:HELDOUT_FILE_BYTES].tolist()))


def make_optimizer(parameters):
    matrices = [p for name, p in parameters.items() if p.dim() > 1 and "embed" not in name]
    others = [p for name, p in parameters.items() if p.dim() <= 1 or "embed" in name]
    groups = [
        {"params": matrices, "weight_decay": 0.1},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, betas=(0.9, 0.98), eps=1e-9)


def save_checkpoint(path, step, parameters, optimizer, generator):
    state = {
        "step": step,
        "parameters": {name: p.detach() for name, p in parameters.items()},
        "optimizer": optimizer.state_dict(),
        "generator": generator.get_state(),
    }
    torch.save(state, path + ".partial")
    os.replace(path + ".partial", path)


def load_checkpoint(path, parameters, optimizer, generator):
    """Restores everything a run depends on. Returns the step to go on with."""
    state = torch.load(path)
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(state["parameters"][name])
    optimizer.load_state_dict(state["optimizer"])
    generator.set_state(state["generator"])
    return state["step"]


def train(options, shape, data, heldout):
    generator = torch.Generator().manual_seed(SEED)
    parameters = init_parameters(shape, generator)
    optimizer = make_optimizer(parameters)
    first = 0
    if options.checkpoint and os.path.exists(options.checkpoint):
        first = load_checkpoint(options.checkpoint, parameters, optimizer, generator)
        print(f"continuing at step {first}", flush=True)

    started = time.monotonic()
    running = None
    for step in range(first, options.steps):
        tokens, positions = sample_batch(data, stretch_at(step, options.steps), shape, generator)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, options.steps, options.peak_rate)
        optimizer.zero_grad(set_to_none=True)
        loss = mean_nll(parameters, tokens, shape, positions)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters.values(), 1.0)
        optimizer.step()
        running = loss.item() if running is None else 0.98 * running + 0.02 * loss.item()
        if (step + 1) % options.report_every == 0 or step + 1 == options.steps:
            evaluated = heldout_loss(parameters, heldout, shape)
            print(f"step {step + 1} train {running:.4f} heldout {evaluated:.4f} "
                  f"seconds {time.monotonic() - started:.0f}", flush=True)
            export(parameters, shape, heldout, options.out)
            if options.checkpoint:
                save_checkpoint(options.checkpoint, step + 1, parameters, optimizer, generator)
    return parameters


def parse_options():
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", default=here, help="folder for the model files")
    parser.add_argument("--checkpoint", help="file to save state to, and to go on from if it exists")
    parser.add_argument("--steps", type=int, default=2400)
    parser.add_argument("--peak-rate", type=float, default=4e-3, help="peak learning rate")
    parser.add_argument("--report-every", type=int, default=200, help="steps between exports")
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


def main():
    options = parse_options()
    torch.set_num_threads(options.threads)
    torch.manual_seed(SEED)
    torch.use_deterministic_algorithms(True)
    try:
        training, held = corpus.split_text(corpus.read_text())
    except corpus.CorpusError as error:
        sys.exit(f"train.py: {error}")
    data = torch.tensor(list(training), dtype=torch.uint8)
    heldout = torch.tensor(list(held), dtype=torch.uint8)
    shape = Shape()
    parameters = train(options, shape, data, heldout)
    for begin, nll, largest in long_context_report(parameters, heldout, shape):
        print(f"positions {begin}.. nll {nll:.4f} largest logit {largest:.1f}")
    generator = torch.Generator().manual_seed(SEED)
    print(sample_text(parameters, b"And the king said unto", 400, shape, generator))


if __name__ == "__main__":
    main()
