"""Recomputes golden.json from the exported files with NumPy alone: no torch, no shared code.
It states the layout of model.safetensors as a program and proves that the files agree.

    python check.py ../models/phonemes
"""

import json
import os
import sys

import numpy as np
from safetensors.numpy import load_file
from safetensors import safe_open

folder = sys.argv[1]
path = os.path.join(folder, "model.safetensors")
W = {k: v.astype(np.float32) for k, v in load_file(path).items()}
with safe_open(path, "np") as f:
    META = f.metadata()
LAYERS, HEADS = int(META["layers"]), int(META["heads"])
HEAD_DIM = int(META["d_model"]) // HEADS
BOS, EOS = int(META["bos_id"]), int(META["eos_id"])
PHONEMES, LETTERS = META["target_phonemes"].split(), META["source_alphabet"]


def norm(x, p):
    centred = x - x.mean(-1, keepdims=True)
    scale = np.sqrt((centred**2).mean(-1, keepdims=True) + np.float32(1e-5))
    return centred / scale * W[p + ".gamma"] + W[p + ".beta"]


def linear(x, p):
    return x @ W[p + ".weight"] + W[p + ".bias"]


def attention(x, y, p, causal=False):
    """queries from x [n, d], keys and values from y [m, d]"""
    q, k, v = (
        linear(s, f"{p}.{part}").reshape(len(s), HEADS, HEAD_DIM).transpose(1, 0, 2)
        for part, s in (("q", x), ("k", y), ("v", y))
    )
    scores = q @ k.transpose(0, 2, 1) / np.float32(np.sqrt(HEAD_DIM))
    if causal:
        scores = np.where(np.tri(len(x), dtype=bool), scores, np.float32(-np.inf))
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = (scores / scores.sum(-1, keepdims=True)) @ v
    return linear(mixed.transpose(1, 0, 2).reshape(len(x), -1), p + ".o")


def ffn(x, p):
    return linear(np.maximum(linear(x, p + ".up"), 0), p + ".down")


def embed(ids, side):
    return W[f"{side}.embed.tokens"][ids] + W[f"{side}.embed.positions"][: len(ids)]


def encode(word):
    x = embed([LETTERS.index(c) + 3 for c in word] + [EOS], "encoder")
    for i in range(LAYERS):
        p = f"encoder.{i}"
        h = norm(x, p + ".attn_norm")
        x = x + attention(h, h, p + ".attn")
        x = x + ffn(norm(x, p + ".ffn_norm"), p + ".ffn")
    return norm(x, "encoder.norm")


def logits(ids, memory):
    """of the last position"""
    x = embed(ids, "decoder")
    for i in range(LAYERS):
        p = f"decoder.{i}"
        h = norm(x, p + ".self_norm")
        x = x + attention(h, h, p + ".self", causal=True)
        x = x + attention(norm(x, p + ".cross_norm"), memory, p + ".cross")
        x = x + ffn(norm(x, p + ".ffn_norm"), p + ".ffn")
    return linear(norm(x, "decoder.norm")[-1], "decoder.out")


def main():
    with open(os.path.join(folder, "golden.json")) as f:
        rows = json.load(f)["words"]
    worst, wrong = 0.0, []
    for row in rows:
        memory = encode(row["word"])
        if "first_logits" in row:
            worst = max(
                worst,
                np.abs(memory[0, :8] - row["encoder_first8"]).max(),
                np.abs(logits([BOS], memory) - row["first_logits"]).max(),
            )
        ids = [BOS]
        for _ in range(int(META["max_steps"])):
            ids.append(int(logits(ids, memory).argmax()))
            if ids[-1] == EOS:
                break
        said = [PHONEMES[i - 3] if i >= 3 else f"<{i}>" for i in ids[1:] if i != EOS]
        if said != row["phonemes"]:
            wrong.append((row["word"], said, row["phonemes"], row["margin"]))
    print(f"{len(rows)} words, {len(wrong)} differ, largest numeric difference {worst:.2e}")
    for line in wrong:
        print(*line)
    sys.exit(1 if wrong or worst > 1e-3 else 0)


if __name__ == "__main__":
    main()
