"""What PyTorch takes on the same GPU for the same shapes, eager and as CUDA graphs: linear layers
of bf16, an encoder of BERT-base, one step of the decoder of a billion parameters, ResNet-50 where
torchvision is there. One line of JSON each, flushed, so that a run that is ended leaves what it
has. `--dry` takes small shapes on the CPU and prints no figures. Without PyTorch it says so, and
that is no failure."""

import itertools
import json
import sys
import time

DRY = "--dry" in sys.argv[1:]
BUDGET_S = 38
START = time.monotonic()
# Weights of a layer, which products take in turns: more than the caches hold, as a model's are.
COPIES = 4


def line(what, **entries):
    print(json.dumps({"what": what, **entries}), flush=True)


try:
    import torch
except ImportError:
    line("PyTorch", skipped="PyTorch is not installed")
    sys.exit(0)
if not DRY and not torch.cuda.is_available():
    line("PyTorch", skipped="PyTorch finds no GPU")
    sys.exit(0)

DEVICE = "cpu" if DRY else "cuda"
TYPE = torch.bfloat16


def median_us(run, each=1):
    """Median, least and most of nine repetitions, each of many runs between two events, where a run
    is `each` of what is measured."""
    times = []
    for repeat in range(10):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(20):
            run()
        end.record()
        end.synchronize()
        if repeat:
            times.append(begin.elapsed_time(end) * 1e3 / 20 / each)
    times.sort()
    return {"us": round(times[4], 2), "us_min": round(times[0], 2), "us_max": round(times[-1], 2)}


def captured(run, each):
    """So many runs as a CUDA graph, as PyTorch's documentation captures one."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(each):
            run()
    return graph.replay


def measure(what, run, each=1, **sizes):
    """A line for the run, eager and captured, `each` of them in one graph."""
    if time.monotonic() - START > BUDGET_S:
        line(what, **sizes, skipped="the time is up")
        return
    with torch.inference_mode():
        out = run()
        if not torch.isfinite(out.float()).all():
            raise ValueError(f"{what}: expected finite numbers")
        if DRY:
            line(what, **sizes, dry=True)
            return
        line(what, by="eager", **sizes, **median_us(run))
        try:
            graph = captured(run, each)
        except RuntimeError as error:
            line(what, by="graph", **sizes, skipped=str(error).splitlines()[0])
            return
        line(what, by="graph", **sizes, **median_us(graph, each))


def linear():
    size = 64 if DRY else 4096
    weights = torch.randn(COPIES, size, size, device=DEVICE, dtype=TYPE) / size**0.5
    turns = itertools.cycle(weights)
    # Those of the bundle's own measurement.
    for rows in [1, 9] if DRY else [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512]:
        x = torch.randn(rows, size, device=DEVICE, dtype=TYPE)
        measure("linear layer, bf16", lambda: x @ next(turns), 20, rows=rows, size=size, out="bf16")
        try:
            # The results that ours writes; older versions of PyTorch have no such product.
            product = lambda: torch.mm(x, next(turns), out_dtype=torch.float32)
            measure("linear layer, bf16", product, 20, rows=rows, size=size, out="f32")
        except (TypeError, RuntimeError, NotImplementedError) as error:
            reason = str(error).splitlines()[0]
            line("linear layer, bf16", rows=rows, size=size, out="f32", skipped=reason)


def bert():
    width, heads, inner, layers = (32, 4, 64, 2) if DRY else (768, 12, 3072, 12)
    layer = torch.nn.TransformerEncoderLayer(
        width, heads, inner, dropout=0, activation="gelu", batch_first=True
    )
    model = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    model = model.to(DEVICE, TYPE).eval()
    for batch, length in [(1, 8)] if DRY else [(1, 16), (1, 128), (8, 32), (32, 32), (16, 128)]:
        x = torch.randn(batch, length, width, device=DEVICE, dtype=TYPE)
        measure("encoder of BERT-base, bf16", lambda: model(x), batch=batch, length=length)


class Decoder(torch.nn.Module):
    """A step of the layers of `decoder-1b` on a full cache of keys and values."""

    def __init__(self, batch, past):
        super().__init__()
        self.d, self.heads, self.kv, inner, layers, vocab = (
            (32, 4, 2, 48, 2, 50) if DRY else (2048, 32, 4, 5632, 22, 32000)
        )
        dim = self.d // self.heads

        def dense(k, n):
            return torch.nn.Linear(k, n, bias=False)

        part = lambda: torch.nn.ModuleDict({
            "q": dense(self.d, self.d), "k": dense(self.d, self.kv * dim),
            "v": dense(self.d, self.kv * dim), "o": dense(self.d, self.d),
            "gate": dense(self.d, inner), "up": dense(self.d, inner), "down": dense(inner, self.d),
        })
        self.layers = torch.nn.ModuleList(part() for _ in range(layers))
        self.head = dense(self.d, vocab)
        self.cache = torch.zeros(layers, 2, batch, self.kv, past, dim)
        self.dim = dim

    def forward(self, x):
        f = torch.nn.functional
        norm = lambda x: f.rms_norm(x, (self.d,))
        for part, (keys, values) in zip(self.layers, self.cache):
            h = norm(x)
            split = lambda y, num: y.view(len(x), num, 1, self.dim)
            q = split(part["q"](h), self.heads)
            group = self.heads // self.kv
            k = torch.cat([keys, split(part["k"](h), self.kv)], 2).repeat_interleave(group, 1)
            v = torch.cat([values, split(part["v"](h), self.kv)], 2).repeat_interleave(group, 1)
            y = f.scaled_dot_product_attention(q, k, v).reshape(len(x), self.d)
            x = x + part["o"](y)
            h = norm(x)
            x = x + part["down"](f.silu(part["gate"](h)) * part["up"](h))
        return self.head(norm(x))


def decoder():
    for batch in [2] if DRY else [1, 8, 64]:
        past = 6 if DRY else 64
        model = Decoder(batch, past).eval()
        model.cache = model.cache.to(DEVICE, TYPE)
        model = model.to(DEVICE, TYPE)
        x = torch.randn(batch, model.d, device=DEVICE, dtype=TYPE)
        measure("step of the decoder, bf16", lambda: model(x), batch=batch, past=past)


def resnet():
    try:
        from torchvision.models import resnet50
    except ImportError:
        line("ResNet-50, bf16", skipped="torchvision is not installed")
        return
    model = resnet50().to(DEVICE, TYPE).eval()
    for batch in [1] if DRY else [1, 8, 32]:
        x = torch.randn(batch, 3, 224, 224, device=DEVICE, dtype=TYPE)
        measure("ResNet-50, bf16", lambda: model(x), batch=batch)


name = "cpu" if DRY else torch.cuda.get_device_name(0)
line("PyTorch", version=torch.__version__, device=name, cuda=torch.version.cuda)
for part in (linear, bert, decoder, resnet):
    part()
