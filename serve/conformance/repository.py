"""Writes the model repository that the checks are made on."""

import json
import shutil
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
IMPORT_MODELS = HERE.parent.parent / "kernels" / "tests" / "import" / "models"

ADD = """
name: "add"
platform: "onnxruntime_onnx"
max_batch_size: 8
input [
  { name: "INPUT0" data_type: TYPE_FP32 dims: [ 16 ] },
  { name: "INPUT1" data_type: TYPE_FP32 dims: [ 16 ] }
]
output [
  { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 16 ] label_filename: "labels.txt" },
  { name: "OUTPUT1" data_type: TYPE_FP32 dims: [ 16 ] }
]
instance_group [ { count: 1 kind: KIND_CPU } ]
"""

LSTM = """
max_batch_size: 16
parameters { key: "engine" value { string_value: "own" } }
parameters { key: "policy" value { string_value: "lazy" } }
parameters { key: "sla_ms" value { string_value: "500" } }
parameters { key: "classes" value { string_value: "gold:sla=200,priority=1" } }
dynamic_batching { priority_levels: 2 default_priority_level: 2 }
"""

# Of sequences that take a while.
LONG = """
max_batch_size: 16
parameters { key: "max_len" value { string_value: "4096" } }
"""

# One request runs, one waits, and others are too many.
BUSY = """
max_batch_size: 1
parameters { key: "max_len" value { string_value: "4096" } }
parameters { key: "max_queue" value { string_value: "1" } }
"""

HALF = """
max_batch_size: 8
input [
  { name: "INPUT0" data_type: TYPE_FP16 dims: [ 16 ] },
  { name: "INPUT1" data_type: TYPE_FP16 dims: [ 16 ] }
]
output [
  { name: "OUTPUT0" data_type: TYPE_FP16 dims: [ 16 ] },
  { name: "OUTPUT1" data_type: TYPE_BF16 dims: [ 16 ] }
]
"""

ACCUMULATE = """
max_batch_size: 4
sequence_batching {
  max_sequence_idle_microseconds: 5000000
  oldest { max_candidate_sequences: 64 }
  state [ { input_name: "STATE" output_name: "STATE_NEXT" data_type: TYPE_FP32 dims: [ 1 ] } ]
}
"""

def tensors(kind, **named):
    """Inputs or outputs of a configuration, all of FP32."""
    one = lambda name, dims: f'{{ name: "{name}" data_type: TYPE_FP32 dims: {dims} }}'
    return f"{kind} [ {', '.join(one(*item) for item in named.items())} ]\n"


def step(model, inputs, outputs):
    """A step of an ensemble: tensors by the model's inputs and outputs."""
    maps = lambda kind, named: " ".join(
        f'{kind} {{ key: "{key}" value: "{value}" }}' for key, value in named.items())
    return (f'{{ model_name: "{model}" model_version: -1 {maps("input_map", inputs)} '
            f'{maps("output_map", outputs)} }}')


def ensemble(*steps, inputs, outputs):
    """The configuration of an ensemble."""
    return ('platform: "ensemble"\nmax_batch_size: 8\n' + tensors("input", **inputs)
            + tensors("output", **outputs)
            + f"ensemble_scheduling {{ step [ {', '.join(steps)} ] }}\n")


# Its steps do not stand in the order in which they run.
SCORER = ensemble(
    step("add", {"INPUT0": "features", "INPUT1": "OFFSET"}, {"OUTPUT0": "SUM", "OUTPUT1": "REST"}),
    step("lstm", {"x": "FRAMES"}, {"scores": "SCORES"}),
    step("pool", {"rows": "SCORES"}, {"features": "features"}),
    inputs={"FRAMES": [-1, 16], "OFFSET": [16]},
    outputs={"SUM": [16], "REST": [16], "SCORES": [-1, 4]},
)

# Ensembles that cannot be loaded, with what is told of each.
WRONG = {
    "wrong_shape": (ensemble(
        step("lstm", {"x": "FRAMES"}, {"scores": "SCORES"}),
        step("add", {"INPUT0": "SCORES", "INPUT1": "OFFSET"}, {"OUTPUT0": "SUM"}),
        inputs={"FRAMES": [-1, 16], "OFFSET": [16]}, outputs={"SUM": [16]}),
        "step add: input INPUT0: tensor SCORES: expected f32[16], got f32[len, 4] output scores of "
        "step lstm"),
    "wrong_type": (ensemble(
        step("add", {"INPUT0": "A", "INPUT1": "A"}, {"OUTPUT0": "B"}),
        step("add_int", {"INPUT0": "B", "INPUT1": "B"}, {"OUTPUT0": "SUM"}),
        inputs={"A": [16]}, outputs={"SUM": [16]}),
        "step 1, model add_int: input INPUT0: tensor B: data_type: expected FP32, as step 0, model "
        "add: output OUTPUT0: tensor B, got INT64"),
    "wrong_model": (ensemble(
        step("nobody", {"INPUT0": "A"}, {"OUTPUT0": "SUM"}),
        inputs={"A": [16]}, outputs={"SUM": [16]}),
        "step 0, model nobody: no folder of that name in the model repository"),
    "wrong_map": (ensemble(
        step("add", {"INPUT0": "A"}, {"OUTPUT0": "SUM"}),
        inputs={"A": [16]}, outputs={"SUM": [16]}),
        "step add: input INPUT1: expected a tensor for it, got none"),
    "wrong_steps": (ensemble(
        step("speller_steps", {"letters": "A"}, {"tokens": "SUM"}),
        inputs={"A": [-1]}, outputs={"SUM": [-1]}),
        "step 0, model speller_steps: expected a model that answers once"),
}

# What a language model says is what it is asked next: text goes from step to step, which no single
# program can hand on.
CHAT = """
platform: "ensemble"
max_batch_size: 8
input { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] }
output [
  { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "SAID" data_type: TYPE_STRING dims: [ 1 ] }
]
""" + f"""ensemble_scheduling {{ step [ {", ".join([
    step("story", {"text_input": "text_input"}, {"text_output": "SAID"}),
    step("story", {"text_input": "SAID"}, {"text_output": "text_output"}),
])} ] }}
"""

# A step whose requests belong to sequences.
TOTALS = ensemble(
    step("accumulate", {"INPUT": "A"}, {"TOTAL": "SUM"}),
    inputs={"A": [1]}, outputs={"SUM": [1]},
).replace("max_batch_size: 8", "max_batch_size: 4")

# One step that decodes; its tokens come as they are made.
SPOKEN = """
platform: "ensemble"
max_batch_size: 8
input { name: "LETTERS" data_type: TYPE_INT32 dims: [ -1 ] }
output { name: "TOKENS" data_type: TYPE_INT32 dims: [ -1 ] }
model_transaction_policy { decoupled: true }
ensemble_scheduling { step { model_name: "speller" model_version: 1
  input_map { key: "letters" value: "LETTERS" } output_map { key: "tokens" value: "TOKENS" } } }
"""

SPARED = ensemble(
    step("spare", {"INPUT0": "A", "INPUT1": "B"}, {"OUTPUT0": "C"}),
    step("spare", {"INPUT0": "C", "INPUT1": "B"}, {"OUTPUT0": "SUM"}),
    inputs={"A": [16], "B": [16]}, outputs={"SUM": [16]},
)

STORY = """
format = "lazybatch-model/1"
name = "story"
architecture = "llama"
weights = "model.safetensors"
tokenizer = "tokenizer.json"

[sizes]
vocab = 40
hidden = 32
layers = 2
heads = 4
ffn = 48
positions = 64

[tokens]
start = 1
stop = 2
max_steps = 24
"""


def safetensors(path, tensors):
    """Writes f32 tensors in the format of safetensors."""
    header, blobs, offset = {}, [], 0
    for name, value in tensors.items():
        blob = np.ascontiguousarray(value, np.float32).tobytes()
        header[name] = {"dtype": "F32", "shape": list(value.shape),
                        "data_offsets": [offset, offset + len(blob)]}
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(blobs))


def story(folder):
    """A language model with seeded weights and a tokenizer of whole words."""
    rng = np.random.default_rng(11)
    vocab, hidden, ffn = 40, 32, 48
    weight = lambda *dims: rng.normal(0, 0.3, dims)
    tensors = {"model.embed_tokens.weight": weight(vocab, hidden),
               "model.norm.weight": np.ones(hidden), "lm_head.weight": weight(vocab, hidden)}
    # The stop token is unlikely, so that answers have some length.
    tensors["lm_head.weight"][2] = 0
    for layer in range(2):
        at = f"model.layers.{layer}."
        for part in ("q", "k", "v", "o"):
            tensors[f"{at}self_attn.{part}_proj.weight"] = weight(hidden, hidden)
        tensors[at + "mlp.gate_proj.weight"] = weight(ffn, hidden)
        tensors[at + "mlp.up_proj.weight"] = weight(ffn, hidden)
        tensors[at + "mlp.down_proj.weight"] = weight(hidden, ffn)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{at}{norm}.weight"] = np.ones(hidden)
    safetensors(folder / "model.safetensors", tensors)
    words = ["[UNK]", "<s>", "</s>"] + [f"word{i}" for i in range(vocab - 3)]
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
        "normalizer": None, "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": {w: i for i, w in enumerate(words)},
                  "unk_token": "[UNK]"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "model.toml").write_text(STORY)


def version(root, model, number, *files, config=None):
    folder = root / model / str(number)
    folder.mkdir(parents=True)
    for source, name in files:
        shutil.copy(source, folder / name)
    if config is not None:
        (root / model / "config.pbtxt").write_text(config)
    return folder


def write(root):
    """Writes the repository; returns the names of the models to load at the start."""
    onnx = lambda name: (HERE / "models" / f"{name}.onnx", "model.onnx")
    speller = [(IMPORT_MODELS / f"speller{end}", name) for end, name in (
        (".toml", "model.toml"), ("-encoder.onnx", "speller-encoder.onnx"),
        ("-step.onnx", "speller-step.onnx"))]
    version(root, "add", 1, onnx("add"), config=ADD)
    (root / "add" / "labels.txt").write_text("".join(f"label{i}\n" for i in range(16)))
    version(root, "add_int", 1, onnx("add_int"))
    version(root, "half", 1, onnx("add"), config=HALF)
    version(root, "lstm", 1, onnx("lstm"), config=LSTM)
    version(root, "accumulate", 1, onnx("accumulate"), config=ACCUMULATE)
    version(root, "cached", 1, onnx("add"),
            config="max_batch_size: 8\nresponse_cache { enable: true }\n")
    version(root, "ordered", 1, onnx("add"), config="max_batch_size: 8\nsequence_batching { direct {} }\n")
    version(root, "twice", 1, onnx("add"), config="version_policy { all {} }")
    version(root, "twice", 3, onnx("add"))
    version(root, "speller", 1, *speller)
    version(root, "speller_steps", 1, *speller,
            config="model_transaction_policy { decoupled: true }")
    story(version(root, "story", 1))
    version(root, "pool", 1, onnx("pool"))
    version(root, "scorer", 1, config=SCORER)
    version(root, "spoken", 1, config=SPOKEN)
    version(root, "chat", 1, config=CHAT)
    version(root, "totals", 1, config=TOTALS)
    served = sorted(p.name for p in root.iterdir())
    version(root, "spare", 1, onnx("add"))
    version(root, "long", 1, onnx("lstm"), config=LONG)
    version(root, "busy", 1, onnx("lstm"), config=BUSY)
    version(root, "spared", 1, config=SPARED)
    for name, (config, _) in WRONG.items():
        version(root, name, 1, config=config)
    version(root, "broken", 1, onnx("add"), config='input [\n  { name: "INPUT0" colour: 3 }\n]\n')
    return served
