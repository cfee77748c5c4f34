"""Writes audio.safetensors and golden.json of silero-vad: speech probabilities of five recordings.

usage: silero_golden.py PACKAGES FOLDER

PACKAGES is a folder with the unpacked packages silero_vad and amfm_decompy (for its second of
speech). The probabilities come from the network in double precision, written here after the layers
that the package lists in `tinygrad_model.py`. Of the package's ONNX files only the weights are used,
and those of another one than ours is imported from (its safetensors file is of another training).
As in the package's `OnnxWrapper`, a chunk is 512 samples behind the last 64 of the chunk before.
The probabilities that ONNX Runtime, which that wrapper calls, computes from the file that ours is
imported from go to runtime.json. Needs numpy, onnx and onnxruntime.
"""

import json
import struct
import sys
import wave
from pathlib import Path

import numpy as np

import runtime

RATE, CHUNK, CONTEXT = 16000, 512, 64
# The spectrum: windows of 256 samples every 128, the end reflected by 64.
STRIDE, PAD, BINS = 128, 64, 129
# Strides of the four convolutions.
STRIDES = [1, 2, 2, 1]


def fields(data):
    """Numbers and values of a protobuf message: integers, or the bytes of all else."""
    at = 0

    def varint():
        nonlocal at
        value, shift = 0, 0
        while True:
            byte, at = data[at], at + 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
        else:
            size = {1: 8, 2: None, 5: 4}[key & 7]
            size = varint() if size is None else size
            at += size
            yield key >> 3, data[at - size : at]


def read_weights(path):
    """Initializers of an ONNX model that are f32, in double precision. Source: onnx.proto:
    ModelProto.graph is 7, GraphProto.initializer 5; of a TensorProto, dims are 1, data_type 2 (1 is
    f32), name 8, raw_data 9."""
    (graph,) = (value for number, value in fields(path.read_bytes()) if number == 7)
    weights = {}
    for tensor in (value for number, value in fields(graph) if number == 5):
        parts = list(fields(tensor))
        one = {number: value for number, value in parts}
        if one[2] == 1:
            dims = [value for number, value in parts if number == 1]
            flat = np.frombuffer(one[9], dtype="<f4").astype(np.float64)
            weights[one[8].decode().removeprefix("model.")] = flat.reshape(dims)
    return weights


def write_tensors(path, tensors):
    header, at = {}, 0
    for name, tensor in tensors.items():
        end = at + tensor.nbytes
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    data = b"".join(tensor.tobytes() for tensor in tensors.values())
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def conv(x, w, stride):
    """`x [channels, len]` by `w [out, channels, width]`."""
    width = w.shape[2]
    num = (x.shape[1] - width) // stride + 1
    windows = np.stack([x[:, i * stride : i * stride + width] for i in range(num)])
    return np.einsum("ncw,ocw->on", windows, w)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def step(chunk, h, c, w):
    """The probability that the last 512 of 576 samples hold speech, and the next state."""
    x = np.pad(chunk, (0, PAD), mode="reflect")[None]
    x = conv(x, w["stft.forward_basis_buffer"], STRIDE)
    x = np.sqrt(x[:BINS] ** 2 + x[BINS:] ** 2)
    for i, stride in enumerate(STRIDES):
        x = conv(np.pad(x, ((0, 0), (1, 1))), w[f"encoder.{i}.reparam_conv.weight"], stride)
        x = np.maximum(x + w[f"encoder.{i}.reparam_conv.bias"][:, None], 0)
    (x,) = x.T
    gates = w["decoder.rnn.weight_ih"] @ x + w["decoder.rnn.bias_ih"]
    gates += w["decoder.rnn.weight_hh"] @ h + w["decoder.rnn.bias_hh"]
    i, f, g, o = np.split(gates, 4)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    h = sigmoid(o) * np.tanh(c)
    (y,) = w["decoder.decoder.2.weight"][:, :, 0] @ np.maximum(h, 0) + w["decoder.decoder.2.bias"]
    return sigmoid(y), h, c


def listen(audio, w):
    """Probabilities of all chunks, and the state at the end."""
    h, c = np.zeros((2, 128))
    audio = np.concatenate([np.zeros(CONTEXT), audio.astype(np.float64)])
    found = []
    for at in range(0, len(audio) - CONTEXT, CHUNK):
        p, h, c = step(audio[at : at + CONTEXT + CHUNK], h, c, w)
        found.append(p)
    return found, np.stack([h, c])


def listen_by_runtime(audio, session):
    """Probabilities of all chunks, and the state at the end, as `OnnxWrapper` calls the runtime."""
    state, found = np.zeros((2, 1, 128), np.float32), []
    audio = np.concatenate([np.zeros(CONTEXT, np.float32), audio])
    for at in range(0, len(audio) - CONTEXT, CHUNK):
        chunk = audio[None, at : at + CONTEXT + CHUNK]
        fed = {"input": chunk, "state": state, "sr": np.array(RATE)}
        p, state = session.run(["output", "stateN"], fed)
        found.append(p.item())
    return np.concatenate([found, np.ravel(state)])


def recordings(packages):
    """f32 in -1 to 1, whole chunks."""
    with wave.open(str(packages / "amfm_decompy/sample.wav")) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (RATE, 1, 2)
        speech = np.frombuffer(file.readframes(file.getnframes()), dtype="<i2") / 32768
    rng = np.random.Generator(np.random.PCG64(7))
    noise = lambda num: rng.normal(0, 0.02, num)
    pause = np.zeros(8 * CHUNK)
    time = np.arange(24 * CHUNK) / RATE
    made = {
        "speech": speech,
        "speech between pauses": np.concatenate([pause, speech, pause, speech, pause]),
        "speech in noise": np.concatenate([noise(4 * CHUNK), speech + noise(len(speech))]),
        "tone": 0.3 * np.sin(2 * np.pi * 440 * time),
        "noise": noise(17 * CHUNK),
    }
    for name, audio in made.items():
        made[name] = np.pad(audio, (0, -len(audio) % CHUNK)).astype("<f4")
    return made


def main():
    packages, folder = Path(sys.argv[1]), Path(sys.argv[2])
    weights = read_weights(packages / "silero_vad/data/silero_vad_16k_op15.onnx")
    audio = recordings(packages)
    write_tensors(folder / "audio.safetensors", audio)
    cases = []
    for name, samples in audio.items():
        found, state = listen(samples, weights)
        rounded = lambda values: [float(f"{x:.12g}") for x in np.ravel(values)]
        cases.append({"audio": name, "probabilities": rounded(found), "state": rounded(state)})
        print(f"{name}: {len(found)} chunks, {min(found):.4f} to {max(found):.4f}")
    golden = {
        "format": "lazybatch-silero-golden/1",
        "source": "the network in double precision on silero-vad 6.2.3",
        "cases": [],
    }
    # One case a line, so that a difference between two files can be read.
    text = json.dumps(golden, indent=1)
    lines = ",\n  ".join(json.dumps(case) for case in cases)
    (folder / "golden.json").write_text(text.replace('"cases": []', f'"cases": [\n  {lines}\n ]'))
    session = runtime.session(str(packages / "silero_vad/data/silero_vad.onnx"))
    answers = [listen_by_runtime(samples, session) for samples in audio.values()]
    runtime.write(folder, "silero_vad.onnx", answers)


if __name__ == "__main__":
    main()
