"""Exports small PyTorch modules: the graphs that a user's exporter writes.

    python3 export_torch.py    # needs torch and onnx; writes models/torch/*.onnx beside this file

The committed files were written by PyTorch 2.4.1 with opset 17.
"""

import os

import torch
from torch import nn

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "models", "torch")


def export(name, module, args, inputs, outputs, axes):
    module.eval()
    path = os.path.join(HERE, f"{name}.onnx")
    torch.onnx.export(module, args, path, input_names=inputs, output_names=outputs,
                      dynamic_axes=axes, opset_version=17)


class BiLstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(50, 16)
        self.l = nn.LSTM(16, 12, 2, bidirectional=True, batch_first=True)
        self.o = nn.Linear(24, 9)

    def forward(self, x):
        y, (h, _) = self.l(self.e(x))
        return self.o(y), torch.cat([h[-2], h[-1]], 1)


class Gru(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.GRU(8, 12, 2)
        self.o = nn.Linear(12, 3)

    def forward(self, x):
        y, _ = self.l(x)
        return self.o(y[-1])


class Res(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
        self.a = nn.Sequential(nn.Conv2d(8, 8, 3, 1, 1, groups=8), nn.BatchNorm2d(8), nn.ReLU6(),
                               nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8))
        self.p, self.o, self.h = nn.AdaptiveAvgPool2d(1), nn.Linear(8, 10), nn.Hardswish()

    def forward(self, x):
        x = self.c(x)
        x = self.h(x + self.a(x))
        return torch.softmax(self.o(torch.flatten(self.p(x), 1)), 1)


class Gpt(nn.Module):
    def __init__(self, fused):
        super().__init__()
        self.e, self.p = nn.Embedding(50, 16), nn.Embedding(64, 16)
        self.qkv, self.o, self.n = nn.Linear(16, 48), nn.Linear(16, 16), nn.LayerNorm(16)
        self.fused = fused

    def forward(self, x):
        b, t = x.shape
        h = self.e(x) + self.p(torch.arange(t))[None]
        qkv = self.qkv(self.n(h)).split(16, 2)
        q, k, v = [part.view(b, t, 2, 8).transpose(1, 2) for part in qkv]
        if self.fused:
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            a = (q @ k.transpose(-2, -1)) * (8**-0.5)
            seen = torch.tril(torch.ones(t, t, dtype=torch.bool)).view(1, 1, t, t)
            y = a.masked_fill(~seen, float("-inf")).softmax(-1) @ v
        h = h + self.o(y.transpose(1, 2).reshape(b, t, 16))
        return nn.functional.gelu(h, approximate="tanh") if self.fused else h


class Vit(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Conv2d(3, 16, 8, 8)
        self.p, self.k = nn.Parameter(torch.randn(1, 17, 16)), nn.Parameter(torch.randn(1, 1, 16))
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True)
        self.t = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.o = nn.Linear(16, 4)

    def forward(self, x):
        x = self.c(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.k.expand(x.shape[0], -1, -1), x], 1) + self.p
        return self.o(self.t(x)[:, 0])


class Tcn(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Conv1d(8, 16, 3, padding=2, dilation=2)
        self.d = nn.Conv1d(16, 16, 3, padding=1)
        self.n, self.o = nn.GroupNorm(4, 16), nn.Linear(16, 3)

    def forward(self, x):
        return self.o(torch.relu(self.n(self.d(torch.relu(self.c(x))))).mean(2))


if __name__ == "__main__":
    os.makedirs(HERE, exist_ok=True)
    torch.manual_seed(0)
    ids, image = torch.randint(0, 50, (2, 7)), torch.randn(2, 3, 32, 32)
    tokens, batch = {0: "batch", 1: "seq"}, {0: "batch"}
    export("bilstm", BiLstm(), (ids,), ["ids"], ["tags", "last"],
           {"ids": tokens, "tags": tokens, "last": batch})
    export("gru", Gru(), (torch.randn(7, 2, 8),), ["x"], ["y"],
           {"x": {0: "time", 1: "batch"}, "y": batch})
    export("res", Res(), (image,), ["x"], ["y"], {"x": batch, "y": batch})
    for name, fused in (("gpt", True), ("gpt-masked", False)):
        export(name, Gpt(fused), (ids,), ["ids"], ["y"], {"ids": tokens, "y": tokens})
    export("vit", Vit(), (image,), ["x"], ["y"], {"x": batch, "y": batch})
    export("tcn", Tcn(), (torch.randn(2, 8, 20),), ["x"], ["y"],
           {"x": {0: "batch", 2: "time"}, "y": batch})
