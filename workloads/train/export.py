"""Writes what the Rust side reads: model.safetensors (f16), test_words.csv and golden.json.

    python export.py --checkpoint run/best.pt --out ../models/phonemes [--evaluate]

The golden values and the accuracy that --evaluate prints are of the f16-rounded weights, read
back from the written file and computed with in f32.
"""

import argparse
import hashlib
import json
import os

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from model import (
    BOS,
    EOS,
    LETTERS,
    MAX_LETTERS,
    MAX_STEPS,
    PAD,
    PHONEMES,
    Phonemes,
    encode_word,
    greedy,
    load_splits,
    score,
)

GOLDEN_WORDS, GOLDEN_VALUES = 200, 8


def tensor_map(config):
    """(file name, state-dict name, slice of the output rows or None, transpose?) per tensor.
    A slice (part, parts) picks one of the fused q, k, v."""
    rows = []

    def norm(name, state):
        rows.append((f"{name}.gamma", f"{state}.weight", None, False))
        rows.append((f"{name}.beta", f"{state}.bias", None, False))

    def linear(name, state, part=None):
        rows.append((f"{name}.weight", f"{state}.weight", part, True))
        rows.append((f"{name}.bias", f"{state}.bias", part, False))

    def attention(name, state, cross):
        if cross:
            linear(f"{name}.q", f"{state}.q")
            linear(f"{name}.k", f"{state}.kv", (0, 2))
            linear(f"{name}.v", f"{state}.kv", (1, 2))
        else:
            for i, part in enumerate("qkv"):
                linear(f"{name}.{part}", f"{state}.qkv", (i, 3))
        linear(f"{name}.o", f"{state}.o")

    def feed_forward(name, state):
        linear(f"{name}.up", f"{state}.up")
        linear(f"{name}.down", f"{state}.down")

    for side, state in (("encoder", "source"), ("decoder", "target")):
        for table in ("tokens", "positions"):
            rows.append((f"{side}.embed.{table}", f"{state}.{table}.weight", None, False))
    for i in range(config["layers"]):
        p = f"encoder.{i}"
        norm(f"{p}.attn_norm", f"{p}.attn_norm")
        attention(f"{p}.attn", f"{p}.attn", cross=False)
        norm(f"{p}.ffn_norm", f"{p}.ffn_norm")
        feed_forward(f"{p}.ffn", f"{p}.ffn")
        p = f"decoder.{i}"
        norm(f"{p}.self_norm", f"{p}.self_norm")
        attention(f"{p}.self", f"{p}.self_attn", cross=False)
        norm(f"{p}.cross_norm", f"{p}.cross_norm")
        attention(f"{p}.cross", f"{p}.cross_attn", cross=True)
        norm(f"{p}.ffn_norm", f"{p}.ffn_norm")
        feed_forward(f"{p}.ffn", f"{p}.ffn")
    norm("encoder.norm", "encoder_norm")
    norm("decoder.norm", "decoder_norm")
    linear("decoder.out", "out")
    return rows


def write_weights(path, config, state):
    tensors = {}
    for name, source, part, transpose in tensor_map(config):
        value = state[source]
        if part is not None:
            value = value.chunk(part[1], 0)[part[0]]
        if transpose:
            value = value.T
        tensors[name] = value.contiguous().half().clone()
    metadata = {
        "format": "lazybatch-phonemes",
        "format_version": "1",
        "d_model": str(config["d_model"]),
        "heads": str(config["heads"]),
        "ffn": str(config["ffn"]),
        "layers": str(config["layers"]),
        "max_positions": str(config["positions"]),
        "max_steps": str(MAX_STEPS),
        "layer_norm_eps": "1e-5",
        "pad_id": str(PAD),
        "bos_id": str(BOS),
        "eos_id": str(EOS),
        "source_alphabet": LETTERS,
        "source_first_id": "3",
        "target_phonemes": " ".join(PHONEMES),
        "target_first_id": "3",
    }
    save_file(tensors, path, metadata)
    os.chmod(path, 0o644)
    return sum(t.numel() for t in tensors.values())


def read_weights(path):
    """The network, in f32, from a written file alone."""
    with safe_open(path, "pt") as f:
        meta = f.metadata()
        config = {k: int(meta[k]) for k in ("d_model", "heads", "ffn", "layers")}
        config["positions"] = int(meta["max_positions"])
        state, fused = {}, {}
        names = set(f.keys())
        for name, target, part, transpose in tensor_map(config):
            names.remove(name)
            value = f.get_tensor(name).float()
            value = value.T.contiguous() if transpose else value
            if part is None:
                state[target] = value
            else:
                fused.setdefault(target, []).append(value)
        assert not names, f"unknown tensors {names}"
    state |= {target: torch.cat(values, 0) for target, values in fused.items()}
    model = Phonemes(**config, dropout=0.0)
    model.load_state_dict(state)
    return model.eval()


@torch.no_grad()
def golden(model, words):
    """Predictions for a fixed choice of the words, one word at a time (no padding), and for the
    first few also numbers to compare with."""
    order = sorted(words, key=lambda w: hashlib.sha256(f"golden:{w}".encode()).digest())
    rows = []
    for i, word in enumerate(order[:GOLDEN_WORDS]):
        phonemes, gap = greedy(model, [word])[word]
        row = {"word": word, "phonemes": phonemes, "margin": gap}
        if i < GOLDEN_VALUES:
            memory, mask = model.encode(torch.tensor([encode_word(word)]))
            row["encoder_first8"] = memory[0, 0, :8].tolist()
            row["first_logits"] = model.decode(torch.tensor([[BOS]]), memory, mask)[0, 0].tolist()
        rows.append(row)
    return rows


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--checkpoint", required=True)
    ap.add_argument("--out", required=True)
    ap.add_argument("--evaluate", action="store_true", help="score the written file on the test words")
    ap.add_argument("--threads", type=int, default=2)
    args = ap.parse_args()
    torch.set_num_threads(args.threads)
    os.makedirs(args.out, exist_ok=True)

    checkpoint = torch.load(args.checkpoint, weights_only=True)
    weights = os.path.join(args.out, "model.safetensors")
    count = write_weights(weights, checkpoint["config"], checkpoint["state"])
    model = read_weights(weights)
    test = load_splits()["test"]
    assert max(map(len, test)) <= MAX_LETTERS

    with open(os.path.join(args.out, "test_words.csv"), "w", newline="\n") as f:
        f.write("word,phonemes\n")
        for word, prons in test.items():
            f.write(f"{word},{'|'.join(' '.join(p) for p in prons)}\n")

    rows = golden(model, test)
    with open(weights, "rb") as f:
        digest = hashlib.sha256(f.read()).hexdigest()
    with open(os.path.join(args.out, "golden.json"), "w", newline="\n") as f:
        f.write(f'{{\n"model_sha256": "{digest}",\n"words": [\n')
        f.write(",\n".join(json.dumps(r) for r in rows))
        f.write("\n]\n}\n")

    report = {k: v for k, v in checkpoint.items() if k not in ("config", "state")}
    print(f"{count} parameters, {os.path.getsize(weights)} bytes; checkpoint {report}")
    if args.evaluate:
        exact, per = score(model, test)
        print(f"test words {len(test)}: exact {exact:.4f}, phoneme error rate {per:.4f}")


if __name__ == "__main__":
    main()
