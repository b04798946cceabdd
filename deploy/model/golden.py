#!/usr/bin/python3
"""Writes golden.json: what the model of this folder answers, computed in float64 with numpy.

The forward pass here shares nothing with train.py. It walks one position at a time over an explicit
key and value list, as a decoder does, and reads the shape from config.json and the weights from
model.safetensors. README.md describes the fields. `--check` compares an existing golden.json with a
fresh computation instead, and fails when they differ.
"""

import argparse
import hashlib
import json
import os
import sys

import numpy as np

import safetensors_io

# Of these, the prompt with the most varied greedy continuation is written, among those where every
# choice is wide enough (MIN_MARGIN, in logits) for single precision to reach the same tokens.
PROMPTS = (
    "And it came to pass in those days, that the king of Israel said unto",
    "And the LORD spake unto Moses, saying, Speak unto the children of Israel, and",
    "In the beginning God created the heaven and the earth. And the",
    "Then answered Jesus and said unto them, Verily, verily, I say unto you,",
    "The words of the wise are as a fountain of life, but the",
    "Now when the Philistines heard that David was come up against them, the",
    "And the king answered and said unto the prophet of the LORD, Behold, I",
    "Blessed is the man that walketh in the way of the righteous, and his",
    "And Jesus went up into the mountain with his disciples, and he",
    "Hear, O my people, the word of the LORD, for the day",
    "And there was a great famine in the land, and the men of the city",
    "Paul, an apostle of Jesus Christ, to the church of God which is at",
)
MIN_MARGIN = 0.05
GREEDY_TOKENS = 64
HELDOUT_WINDOWS = 8
HELDOUT_WINDOW_TOKENS = 256
KV_HEAD = 0
KV_POSITION = 5
CHECK_TOLERANCE = 1e-9


class Decoder:
    """The model in float64. Holds the sequence so far; `step` appends one token.

    keys[layer] and values[layer] are lists with one [kv_heads, head_dim] array per position; keys
    are stored after rotation.
    """

    def __init__(self, config, weights):
        self.config = config
        self.weights = weights
        self.layers = config["num_hidden_layers"]
        self.heads = config["num_attention_heads"]
        self.kv_heads = config["num_key_value_heads"]
        self.dim = config["head_dim"]
        self.keys = [[] for _ in range(self.layers)]
        self.values = [[] for _ in range(self.layers)]

    def normalize(self, vector, name):
        mean_square = np.mean(vector * vector)
        return vector / np.sqrt(mean_square + self.config["rms_norm_eps"]) * self.weights[name]

    def rotate(self, rows, position):
        """Turns the pairs (row[i], row[i + dim/2]) by position * theta^(-2i/dim)."""
        half = self.dim // 2
        turned = np.empty_like(rows)
        for i in range(half):
            angle = position * self.config["rope_theta"] ** (-2.0 * i / self.dim)
            cos, sin = np.cos(angle), np.sin(angle)
            turned[:, i] = rows[:, i] * cos - rows[:, i + half] * sin
            turned[:, i + half] = rows[:, i + half] * cos + rows[:, i] * sin
        return turned

    def attend(self, layer, hidden):
        prefix = f"model.layers.{layer}.self_attn."
        position = len(self.keys[layer])
        query = (self.weights[prefix + "q_proj.weight"] @ hidden).reshape(self.heads, self.dim)
        key = (self.weights[prefix + "k_proj.weight"] @ hidden).reshape(self.kv_heads, self.dim)
        value = (self.weights[prefix + "v_proj.weight"] @ hidden).reshape(self.kv_heads, self.dim)
        query = self.rotate(query, position)
        self.keys[layer].append(self.rotate(key, position))
        self.values[layer].append(value)

        keys = np.stack(self.keys[layer])
        values = np.stack(self.values[layer])
        mixed = np.empty((self.heads, self.dim))
        for head in range(self.heads):
            source = head * self.kv_heads // self.heads
            scores = keys[:, source] @ query[head] / np.sqrt(self.dim)
            weights = np.exp(scores - scores.max())
            mixed[head] = weights @ values[:, source] / weights.sum()
        return self.weights[prefix + "o_proj.weight"] @ mixed.reshape(-1)

    def feed_forward(self, layer, hidden):
        prefix = f"model.layers.{layer}.mlp."
        gate = self.weights[prefix + "gate_proj.weight"] @ hidden
        up = self.weights[prefix + "up_proj.weight"] @ hidden
        return self.weights[prefix + "down_proj.weight"] @ (gate / (1.0 + np.exp(-gate)) * up)

    def step(self, token):
        """Appends one token; returns the logits for the token after it, [vocab_size]."""
        embedding = self.weights["model.embed_tokens.weight"]
        residual = embedding[token].copy()
        for layer in range(self.layers):
            prefix = f"model.layers.{layer}."
            hidden = self.normalize(residual, prefix + "input_layernorm.weight")
            residual = residual + self.attend(layer, hidden)
            hidden = self.normalize(residual, prefix + "post_attention_layernorm.weight")
            residual = residual + self.feed_forward(layer, hidden)
        return embedding @ self.normalize(residual, "model.norm.weight")


def log_softmax(logits):
    shifted = logits - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


def answer(config, weights, text):
    """Returns what golden.json says about one prompt."""
    prompt = list(text.encode("utf-8"))
    decoder = Decoder(config, weights)
    for token in prompt:
        logits = decoder.step(token)
    last_logits = logits

    greedy = []
    margins = []
    while True:
        second, first = np.sort(logits)[-2:]
        margins.append(first - second)
        greedy.append(int(np.argmax(logits)))
        if len(greedy) == GREEDY_TOKENS:
            break
        logits = decoder.step(greedy[-1])

    return {
        "prompt_text": text,
        "prompt": prompt,
        "greedy_ids": greedy,
        "greedy_text": bytes(greedy).decode("utf-8", errors="replace"),
        "greedy_margin": float(min(margins)),
        "last_logits": last_logits.tolist(),
        "kv": [
            {
                "layer": layer,
                "kv_head": KV_HEAD,
                "position": KV_POSITION,
                "key": decoder.keys[layer][KV_POSITION][KV_HEAD].tolist(),
                "value": decoder.values[layer][KV_POSITION][KV_HEAD].tolist(),
            }
            for layer in (0, config["num_hidden_layers"] - 1)
        ],
    }


def preference(candidate):
    """Orders answers: wide margins first, then the number of different words, then the margin."""
    words = len(set(candidate["greedy_text"].split()))
    margin = candidate["greedy_margin"]
    return margin >= MIN_MARGIN, words, margin


def window_nll(config, weights, window):
    """Mean negative log-likelihood, in nats, of every byte of the window but the first."""
    decoder = Decoder(config, weights)
    total = 0.0
    for token, following in zip(window, window[1:]):
        total -= log_softmax(decoder.step(token))[following]
    return total / (len(window) - 1)


def compute(folder):
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as source:
        config = json.load(source)
    weights_path = os.path.join(folder, "model.safetensors")
    weights = {name: array.astype(np.float64)
               for name, array in safetensors_io.load(weights_path).items()}
    with open(weights_path, "rb") as source:
        digest = hashlib.sha256(source.read()).hexdigest()
    with open(os.path.join(folder, "heldout.txt"), "rb") as source:
        heldout = source.read()

    size = HELDOUT_WINDOW_TOKENS
    losses = [window_nll(config, weights, heldout[i * size:(i + 1) * size])
              for i in range(HELDOUT_WINDOWS)]
    best = max((answer(config, weights, text) for text in PROMPTS), key=preference)
    return {
        "model_sha256": digest,
        **best,
        "heldout_windows": HELDOUT_WINDOWS,
        "heldout_window_tokens": size,
        "window_nll": losses,
        "mean_nll": float(np.mean(losses)),
    }


def differences(expected, actual, path=""):
    """Yields a line for each place where two JSON values differ by more than the tolerance."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        for key in sorted(expected.keys() | actual.keys()):
            yield from differences(expected.get(key), actual.get(key), f"{path}.{key}")
    elif isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        for i, pair in enumerate(zip(expected, actual)):
            yield from differences(*pair, f"{path}[{i}]")
    elif isinstance(expected, float) and isinstance(actual, float):
        if not abs(expected - actual) <= CHECK_TOLERANCE * max(1.0, abs(expected)):
            yield f"{path}: {expected} against {actual}"
    elif expected != actual:
        yield f"{path}: {expected!r} against {actual!r}"


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default=here, help="folder of the model files")
    parser.add_argument("--check", action="store_true", help="compare, do not write")
    options = parser.parse_args()

    golden_path = os.path.join(options.model, "golden.json")
    golden = compute(options.model)
    if options.check:
        with open(golden_path, encoding="utf-8") as source:
            found = list(differences(json.load(source), golden))
        if found:
            sys.exit("golden.json differs:\n" + "\n".join(found[:20]))
        print("golden.json agrees")
        return
    with open(golden_path, "w", encoding="utf-8") as out:
        json.dump(golden, out, indent=1)
        out.write("\n")
    print(f"mean_nll {golden['mean_nll']:.6f} greedy margin {golden['greedy_margin']:.4f}")
    print(golden["prompt_text"] + "|" + golden["greedy_text"])


if __name__ == "__main__":
    main()
