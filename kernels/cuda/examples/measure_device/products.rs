//! Single kernels, back to back: copies, and products by this crate and by cuBLASLt, which read
//! weights that no cache has.

use lazybatch_cuda::context::{DeviceMemory, Event};
use lazybatch_cuda::gemm::{Fused, Product, Products};
use lazybatch_cuda::kernels::gemm::Gemm;
use lazybatch_cuda::kernels::{Epilogue, Stored, Weights};
use lazybatch_cuda::{Context, CudaError, DevicePtr, Kernels, Stream, jit};

use crate::noise::noise;
use crate::{Failure, Report, percentile};

/// Repetitions, of which the median is reported.
const REPEATS: usize = 9;
/// Time of one repetition, about.
const REPEAT_US: f64 = 10_000.0;
/// Most launches of one repetition.
const MOST: usize = 200;
/// Products of a graph, as many as are worth their time.
const IN_GRAPH: usize = 20;
/// Copies of a layer's weights, which products take in turns: more than the caches hold, as weights
/// of a model are.
const COPIES: usize = 4;

struct Bench {
    context: Context,
    stream: Stream,
    kernels: Kernels,
    begin: Event,
    end: Event,
    is_dry: bool,
}

impl Bench {
    fn new(report: Report) -> Result<Self, CudaError> {
        let context = Context::new(0)?;
        Ok(Self {
            stream: Stream::new(&context)?,
            kernels: Kernels::new(&context, jit::default_folder())?,
            begin: Event::timed(&context)?,
            end: Event::timed(&context)?,
            is_dry: report.is_dry,
            context,
        })
    }

    fn noise(&self, bytes: usize) -> Result<DeviceMemory, CudaError> {
        noise(&self.context, &self.stream, bytes)
    }

    /// Microseconds of so many launches on the device.
    fn once(
        &self,
        launches: usize,
        launch: &mut dyn FnMut() -> Result<(), CudaError>,
    ) -> Result<f64, CudaError> {
        self.begin.record(&self.stream)?;
        for _ in 0..launches {
            launch()?;
        }
        self.end.record(&self.stream)?;
        self.end.wait()?;
        self.end.us_since(&self.begin)
    }

    /// Microseconds of a launch among many: median, least and most.
    fn time(
        &self,
        mut launch: impl FnMut() -> Result<(), CudaError>,
    ) -> Result<[f64; 3], CudaError> {
        self.once(1, &mut launch)?;
        if self.is_dry {
            return Ok([self.once(1, &mut launch)?; 3]);
        }
        let few = self.once(3, &mut launch)? / 3.0;
        let launches = ((REPEAT_US / few.max(0.1)) as usize).clamp(3, MOST);
        let mut all = Vec::new();
        for _ in 0..REPEATS {
            all.push(self.once(launches, &mut launch)? / launches as f64);
        }
        let median = percentile(&mut all, 50);
        Ok([median, all[0], all[REPEATS - 1]])
    }

    /// As [`Self::time`], of launches that are captured into one graph, so that issuing them takes no
    /// part in it. Each is told its number.
    fn time_captured(
        &self,
        mut launch: impl FnMut(usize) -> Result<(), CudaError>,
    ) -> Result<[f64; 3], CudaError> {
        // What a first launch makes cannot be made while it is captured.
        launch(0)?;
        let num = if self.is_dry {
            2
        } else {
            let few = self.once(COPIES, &mut || launch(1))? / COPIES as f64;
            ((REPEAT_US / 3.0 / few.max(0.1)) as usize).clamp(COPIES, IN_GRAPH)
        };
        let graph = self.stream.capture(|| (0..num).try_for_each(&mut launch))?;
        let took = self.time(|| self.stream.launch_graph(&graph))?;
        Ok(took.map(|us| us / num as f64))
    }
}

fn times([us, us_min, us_max]: [f64; 3]) -> [(&'static str, f64); 3] {
    [("us", us), ("us_min", us_min), ("us_max", us_max)]
}

/// What any H200 can do: whether the measuring itself is right.
pub fn sanity(report: Report) -> Result<(), Failure> {
    let bench = Bench::new(report)?;
    let mib: usize = if report.is_dry { 1 } else { 1024 };
    let (from, to) = (bench.noise(mib << 20)?, bench.noise(mib << 20)?);
    // SAFETY: both are that long.
    let took = bench.time(|| unsafe { bench.stream.copy(to.at(), from.at(), mib << 20) })?;
    // Each byte is read and written.
    let rate = (mib << 21) as f64 / took[0] / 1e6;
    let figures = [&times(took)[..], &[("tb_per_s", rate)]].concat();
    report.line("copy", &[("mib", mib.into())], &figures)?;
    drop((from, to));

    let size: usize = if report.is_dry { 32 } else { 8192 };
    let (a, b) = (bench.noise(size * size * 2)?, bench.noise(size * size * 2)?);
    let out = bench.noise(size * size * 4)?;
    let product = Product {
        a: a.at(),
        weights: Weights {
            at: b.at(),
            stored: Stored::Bf16,
        },
        out: out.at(),
        m: size,
        k: size,
        n: size,
        added: DevicePtr::NULL,
        fused: Fused::Nothing,
        bias: DevicePtr::NULL,
    };
    let mut library = Products::new(&bench.context, false)?;
    let took = bench.time(|| library.issue(&bench.stream, &product))?;
    let rate = 2.0 * (size as f64).powi(3) / took[0] / 1e6;
    let figures = [&times(took)[..], &[("tflop_per_s", rate)]].concat();
    report.line(
        "large product, bf16, cuBLASLt",
        &[("size", size.into())],
        &figures,
    )
}

/// A linear layer of bf16 weights at each number of rows, from f32 activations to f32 results: its
/// time over that of one row, and own products over cuBLASLt, which rounds the activations first.
pub fn linear(report: Report) -> Result<(), Failure> {
    let bench = Bench::new(report)?;
    let (size, all): (usize, &[usize]) = if report.is_dry {
        (64, &[1, 9, 128])
    } else {
        (
            4096,
            &[1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512],
        )
    };
    let most = all[all.len() - 1];
    let held = bench.noise(COPIES * size * size * 2)?;
    let weights = |i: usize, stored: Stored| Weights {
        at: held.at().add(i % COPIES * size * size * 2),
        stored,
    };
    let (a, out) = (bench.noise(most * size * 4)?, bench.noise(most * size * 4)?);
    let rounded = bench.noise(most * size * 2)?;
    let kinds = [
        ("own", true, Stored::Bf16),
        ("own, matrix instructions", true, Stored::Bf16Tiles),
        ("cuBLASLt", false, Stored::Bf16),
    ];
    let mut of_all = Vec::new();
    for (name, deterministic, stored) in kinds {
        let mut products = Products::new(&bench.context, deterministic)?;
        let mut of_kind = Vec::new();
        for &m in all {
            let product = |i: usize| Gemm {
                a: a.at(),
                a_rows: DevicePtr::NULL,
                weights: weights(i, stored),
                out: out.at(),
                m,
                k: size,
                n: size,
                resume: false,
                epilogue: Epilogue::default(),
            };
            let (kernels, stream) = (&bench.kernels, &bench.stream);
            let took = bench
                .time_captured(|i| products.run(kernels, stream, &product(i), rounded.at()))?;
            of_kind.push(took[0]);
            let figures = [
                &times(took)[..],
                &[
                    ("over_one_row", took[0] / of_kind[0]),
                    ("weights_gb_per_s", (size * size * 2) as f64 / took[0] / 1e3),
                    ("tflop_per_s", (2 * m * size * size) as f64 / took[0] / 1e6),
                ],
            ]
            .concat();
            let sizes = [
                ("by", name.into()),
                ("rows", m.into()),
                ("size", size.into()),
            ];
            report.line("linear layer, bf16", &sizes, &figures)?;
        }
        of_all.push(of_kind);
    }
    for (i, &m) in all.iter().enumerate() {
        let sizes = [("rows", m.into()), ("size", size.into())];
        let figures = [
            ("own_over_cublaslt", of_all[0][i] / of_all[2][i]),
            ("matrix_over_cublaslt", of_all[1][i] / of_all[2][i]),
        ];
        report.line("cost of determinism, linear layer", &sizes, &figures)?;
    }
    // What a product takes whose activations are of its type already, as PyTorch's are.
    let mut library = Products::new(&bench.context, false)?;
    for &m in all {
        let product = |i: usize| Product {
            a: rounded.at(),
            weights: weights(i, Stored::Bf16),
            out: out.at(),
            m,
            k: size,
            n: size,
            added: DevicePtr::NULL,
            fused: Fused::Nothing,
            bias: DevicePtr::NULL,
        };
        let took = bench.time_captured(|i| library.issue(&bench.stream, &product(i)))?;
        let sizes = [("rows", m.into()), ("size", size.into())];
        report.line("bare product, bf16 to f32, cuBLASLt", &sizes, &times(took))?;
    }
    Ok(())
}
