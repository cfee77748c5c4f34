"""Fits the letters-to-phonemes network and keeps the best checkpoint by validation accuracy.

    python train.py --out run                 # --epochs 24
    python train.py --out run --minutes 55    # schedule sized by wall-clock instead
"""

import argparse
import math
import os
import random
import time

import torch
import torch.nn.functional as F

from model import BOS, EOS, PAD, Phonemes, encode_phonemes, encode_word, load_splits, pad_batch, score


def batches(examples, size, rng):
    """Shuffled batches of similar lengths: the examples are shuffled, sorted by length within
    pools of 64 batches, cut into batches, and the batches shuffled."""
    examples = examples[:]
    rng.shuffle(examples)
    out = []
    for at in range(0, len(examples), size * 64):
        pool = sorted(examples[at : at + size * 64], key=lambda e: (len(e[0]), len(e[1])))
        out += [pool[i : i + size] for i in range(0, len(pool), size)]
    rng.shuffle(out)
    return out


def save(path, model, **extra):
    torch.save({"config": model.config, "state": model.state_dict(), **extra}, path + ".tmp")
    os.replace(path + ".tmp", path)


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--out", required=True, help="folder for best.pt, last.pt and training.log")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--epochs", type=float, default=24)
    ap.add_argument("--minutes", type=float, help="size the schedule by wall-clock, not epochs")
    ap.add_argument("--batch", type=int, default=128)
    ap.add_argument("--lr", type=float, default=1e-3, help="peak learning rate")
    ap.add_argument("--warmup", type=int, default=600, help="steps")
    ap.add_argument("--width", type=int, default=192, help="d_model; the FFN is 4 times as wide")
    ap.add_argument("--heads", type=int, default=4)
    ap.add_argument("--layers", type=int, default=3)
    ap.add_argument("--dropout", type=float, default=0.1)
    ap.add_argument("--smoothing", type=float, default=0.1)
    ap.add_argument("--pronunciations", choices=["all", "first"], default="all")
    ap.add_argument("--threads", type=int, default=2)
    args = ap.parse_args()

    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    rng = random.Random(args.seed)
    os.makedirs(args.out, exist_ok=True)

    splits = load_splits()
    examples = [
        (encode_word(word), encode_phonemes(pron))
        for word, prons in splits["train"].items()
        for pron in (prons if args.pronunciations == "all" else prons[:1])
    ]
    model = Phonemes(args.width, args.heads, 4 * args.width, args.layers, 32, args.dropout)
    optimiser = torch.optim.Adam(model.parameters(), lr=args.lr, betas=(0.9, 0.98), fused=True)
    per_epoch = len(batches(examples, args.batch, random.Random(0)))

    log = open(os.path.join(args.out, "training.log"), "w", buffering=1)

    def say(line):
        print(line, flush=True)
        log.write(line + "\n")

    say(
        f"# {len(splits['train'])} train words ({len(examples)} pronunciations), "
        f"{len(splits['valid'])} validation, {len(splits['test'])} test; "
        f"{sum(p.numel() for p in model.parameters())} parameters; {vars(args) | {'out': '-'}}"
    )
    say("# epoch step lr train_loss valid_exact valid_per seconds")

    started = time.time()
    step, best, finished, epoch = 0, 0.0, False, 0
    while not finished:
        epoch += 1
        total_loss = total_tokens = 0
        for done_here, batch in enumerate(batches(examples, args.batch, rng), 1):
            if args.minutes:
                progress = (time.time() - started) / (60 * args.minutes)
            else:
                progress = step / (args.epochs * per_epoch)
            if progress >= 1:
                finished = True
                break
            # warm-up, then half a cosine down to zero at the end of the budget
            lr = args.lr * min(1, (step + 1) / args.warmup) * (1 + math.cos(math.pi * progress)) / 2
            for group in optimiser.param_groups:
                group["lr"] = lr

            model.train()
            source = pad_batch([s for s, _ in batch])
            target_in = pad_batch([[BOS] + t for _, t in batch])
            target_out = pad_batch([t + [EOS] for _, t in batch])
            logits = model(source, target_in)
            loss = F.cross_entropy(
                logits.flatten(0, 1),
                target_out.flatten(),
                ignore_index=PAD,
                label_smoothing=args.smoothing,
            )
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            tokens = int((target_out != PAD).sum())
            total_loss += loss.item() * tokens
            total_tokens += tokens
            step += 1
            if step % 100 == 0:
                print(f"step {step} loss {loss.item():.3f} {time.time() - started:.0f}s", flush=True)
            if epoch == 1 and step % 200 == 0:
                save(os.path.join(args.out, "last.pt"), model)
        if finished and total_tokens == 0:
            break
        exact, per = score(model, splits["valid"])
        at = epoch - 1 + done_here / per_epoch if finished else epoch
        say(
            f"{at:.2f} {step} {lr:.6f} {total_loss / total_tokens:.4f} "
            f"{exact:.4f} {per:.4f} {time.time() - started:.0f}"
        )
        extra = dict(exact=exact, per=per, epoch=at, step=step, seconds=time.time() - started)
        save(os.path.join(args.out, "last.pt"), model, **extra)
        if exact > best:
            best = exact
            save(os.path.join(args.out, "best.pt"), model, **extra)
    say(f"# best validation exact {best:.4f}; {time.time() - started:.0f} seconds in all")


if __name__ == "__main__":
    main()
