//! Times the kernels on the GPU at hand and prints one line of JSON for each: what it did, the
//! median time of a launch, the rate that this makes, and what issuing it alone took the host. `--dry`
//! runs each twice, on small shapes, without a number: a test of this program where there is no
//! GPU.
//!
//! Times are those of launches of one graph, so they are of kernels back to back. What reads much more
//! than it writes reads other memory at each launch, so that no cache has it.
#![allow(unsafe_code, reason = "copies to the device")]

#[path = "measure_device/noise.rs"]
mod noise;

use std::process::ExitCode;
use std::time::Instant;

use lazybatch_cuda::context::{DeviceMemory, Event, Pinned};
use lazybatch_cuda::kernels::attention::Attention;
use lazybatch_cuda::kernels::conv::Conv;
use lazybatch_cuda::kernels::conv_matrix::{Filters, Tiling as ConvTiling};
use lazybatch_cuda::kernels::gemm::{Gemm, Tiling};
use lazybatch_cuda::kernels::gemm_matrix::MatrixTiling;
use lazybatch_cuda::kernels::sample::Sample;
use lazybatch_cuda::kernels::state_attention::{Memory, workspace_bytes};
use lazybatch_cuda::kernels::states::{PAGE, Paged};
use lazybatch_cuda::kernels::top_k::TopK;
use lazybatch_cuda::kernels::{Epilogue, Stored, Weights};
use lazybatch_cuda::{Context, CudaError, DevicePtr, Kernels, Stream, jit};
use lazybatch_graph::{Act, Heads, Sampling, Seen, Window};

/// Most launches of one repetition, and least.
const LAUNCHES: (usize, usize) = (50, 4);
/// Time of one repetition, about.
const REPEAT_US: f64 = 4_000.0;
/// Repetitions, of which the median is reported.
const REPEATS: usize = 5;
/// Bytes of weights that launches take in turns: more than the caches hold.
const IN_TURNS: usize = 128 << 20;
/// How many times as long as the fastest a tiling may take, to be measured at the next number of rows.
const TOO_SLOW: f64 = 2.0;

struct Bench {
    context: Context,
    stream: Stream,
    kernels: Kernels,
    begin: Event,
    end: Event,
    is_dry: bool,
}

/// What is multiplied: activations, as many weights of so many bytes as take turns, and results.
struct Sides<'a> {
    a: &'a DeviceMemory,
    weights: &'a DeviceMemory,
    stored: Stored,
    bytes: usize,
    out: &'a DeviceMemory,
}

/// The rate that is of interest.
enum Rate {
    /// Bytes that must be moved.
    Bytes(usize),
    /// Floating-point operations.
    Flops(usize),
    /// Launches alone.
    Launches,
}

#[allow(clippy::disallowed_methods, reason = "a measurement reads the clock")]
fn now() -> Instant {
    Instant::now()
}

/// The numbers below `num`, each once, far from those beside it.
fn scattered(num: usize) -> Vec<u32> {
    // A prime takes all of them in turn, unless it divides their number.
    let stride = if num.is_multiple_of(7919) { 7907 } else { 7919 };
    (0..num).map(|i| (i * stride % num) as u32).collect()
}

impl Bench {
    /// Memory of zeros.
    fn zeros(&self, bytes: usize) -> Result<DeviceMemory, CudaError> {
        let memory = DeviceMemory::new(&self.context, "a measurement", bytes.max(4))?;
        // SAFETY: the memory is that long.
        unsafe { self.stream.fill(memory.at(), 0, bytes.max(4)) }?;
        Ok(memory)
    }

    /// Memory of noise.
    fn noise(&self, bytes: usize) -> Result<DeviceMemory, CudaError> {
        noise::noise(&self.context, &self.stream, bytes)
    }

    /// Memory with these numbers.
    fn numbers(&self, numbers: &[u32]) -> Result<DeviceMemory, CudaError> {
        let bytes = numbers.len() * 4;
        let mut staging = Pinned::new(&self.context, bytes)?;
        for (to, number) in staging.bytes_mut().chunks_exact_mut(4).zip(numbers) {
            to.copy_from_slice(&number.to_le_bytes());
        }
        let memory = self.zeros(bytes)?;
        // SAFETY: both ends live until the copy is over.
        unsafe { self.stream.copy_in(memory.at(), &staging, 0, bytes) }?;
        self.stream.synchronize()?;
        Ok(memory)
    }

    /// Microseconds of what `issue` puts into the stream, on the device.
    fn once(&self, issue: impl FnOnce() -> Result<(), CudaError>) -> Result<f64, CudaError> {
        self.begin.record(&self.stream)?;
        issue()?;
        self.end.record(&self.stream)?;
        self.end.wait()?;
        self.end.us_since(&self.begin)
    }

    /// Times launches, each of which is told its number, prints their line, and returns the
    /// microseconds of one unless the run is dry.
    fn time(
        &self,
        what: &str,
        rate: &Rate,
        mut launch: impl FnMut(usize) -> Result<(), CudaError>,
    ) -> Result<Option<f64>, CudaError> {
        let (most, least) = LAUNCHES;
        launch(0)?;
        let num = if self.is_dry {
            1
        } else {
            let few = self.once(|| (0..least).try_for_each(&mut launch))? / least as f64;
            ((REPEAT_US / few.max(0.1)) as usize).clamp(least, most)
        };
        let graph = self.stream.capture(|| (0..num).try_for_each(&mut launch))?;
        self.once(|| self.stream.launch_graph(&graph))?;
        if self.is_dry {
            println!("{{\"what\":\"{what}\",\"dry\":true}}");
            return Ok(None);
        }
        let start = now();
        (0..num).try_for_each(&mut launch)?;
        let issued = start.elapsed().as_secs_f64() / num as f64;
        let mut done = Vec::new();
        for _ in 0..REPEATS {
            let took = self.once(|| self.stream.launch_graph(&graph))?;
            done.push(took / 1e6 / num as f64);
        }
        done.sort_by(f64::total_cmp);
        let [low, seconds, high] = [0, REPEATS / 2, REPEATS - 1].map(|i| done[i]);
        let (unit, amount) = match rate {
            Rate::Bytes(bytes) => ("gb_per_s", *bytes as f64 / seconds / 1e9),
            Rate::Flops(flops) => ("gflop_per_s", *flops as f64 / seconds / 1e9),
            Rate::Launches => ("launches_per_s", 1.0 / seconds),
        };
        println!(
            "{{\"what\":\"{what}\",\"us\":{:.3},\"us_min\":{:.3},\"us_max\":{:.3},\
             \"issue_us\":{:.3},\"{unit}\":{amount:.1}}}",
            seconds * 1e6,
            low * 1e6,
            high * 1e6,
            issued * 1e6,
        );
        Ok(Some(seconds * 1e6))
    }

    fn launches_and_copies(&self) -> Result<(), CudaError> {
        let mib = if self.is_dry { 1 } else { 256 };
        let x = self.noise(mib << 20)?;
        let out = self.noise(mib << 20)?;
        let len = (mib << 20) / 4;
        let (k, s) = (&self.kernels, &self.stream);
        self.time("scale 1 element", &Rate::Launches, |_| {
            k.scale(s, 2.0, x.at(), out.at(), 1)
        })?;
        self.time(&format!("scale {mib} MiB"), &Rate::Bytes(mib << 21), |_| {
            k.scale(s, 2.0, x.at(), out.at(), len)
        })?;
        let rows = len / 4096;
        let table = self.numbers(&scattered(rows))?;
        let name = format!("gather {rows} rows of 4096");
        self.time(&name, &Rate::Bytes(mib << 21), |_| {
            k.gather_rows(s, x.at(), table.at(), out.at(), rows, 4096)
        })?;
        for width in [768, 4096] {
            let rows = len / width;
            let (gamma, beta) = (x.at(), x.at());
            let name = format!("layer norm {rows} x {width}");
            self.time(&name, &Rate::Bytes(rows * width * 8), |_| {
                k.layer_norm(s, x.at(), gamma, beta, 1e-5, out.at(), rows, width)
            })?;
            let name = format!("softmax {rows} x {width}");
            self.time(&name, &Rate::Bytes(rows * width * 8), |_| {
                k.softmax(s, x.at(), out.at(), rows, width)
            })?;
        }
        Ok(())
    }

    /// Each tiling at each number of rows: where one overtakes the other. A tiling that is far from
    /// the fastest is left out at the next number of rows, unless it is what is taken there.
    fn products(&self) -> Result<(), CudaError> {
        let sizes: &[(usize, usize)] = if self.is_dry {
            &[(64, 64)]
        } else {
            &[(1024, 1024), (768, 3072), (4096, 4096)]
        };
        let rows: &[usize] = if self.is_dry {
            &[1, 9]
        } else {
            &[1, 4, 8, 16, 32, 64, 128, 256, 1024]
        };
        let in_turns = if self.is_dry { 0 } else { IN_TURNS };
        for &(k, n) in sizes {
            let most = rows[rows.len() - 1];
            let weights = self.noise(in_turns.max(k * n * 4))?;
            let scales = self.noise(n * 4)?;
            let (a, out) = (self.noise(most * k * 4)?, self.noise(most * n * 4)?);
            let int8 = Stored::Int8 {
                scales: scales.at(),
            };
            for (name, stored, bytes) in [
                ("f32", Stored::F32, 4),
                ("f16", Stored::F16, 2),
                ("bf16", Stored::Bf16, 2),
                ("int8", int8, 1),
            ] {
                let sides = Sides {
                    a: &a,
                    weights: &weights,
                    stored,
                    bytes: k * n * bytes,
                    out: &out,
                };
                let mut is_slow = [false; Tiling::ALL.len()];
                for &m in rows {
                    let (all, taken) = (&Tiling::ALL, Tiling::of(m, n));
                    self.tilings(
                        name,
                        &sides,
                        [m, k, n],
                        all,
                        taken,
                        &mut is_slow,
                        |g, tiling| self.kernels.gemm_tiled(&self.stream, g, tiling),
                    )?;
                }
            }
        }
        Ok(())
    }

    /// A product in all tilings but those that were slow, unless they are what is taken; notes which
    /// are slow now.
    fn tilings<T: Copy + PartialEq + std::fmt::Debug>(
        &self,
        name: &str,
        sides: &Sides<'_>,
        [m, k, n]: [usize; 3],
        all: &[T],
        taken: T,
        is_slow: &mut [bool],
        run: impl Fn(&Gemm, T) -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        let copies = sides.weights.bytes() / sides.bytes;
        let product = |turn: usize| Gemm {
            a: sides.a.at(),
            a_rows: DevicePtr::NULL,
            weights: Weights {
                at: sides.weights.at().add(turn % copies * sides.bytes),
                stored: sides.stored,
            },
            out: sides.out.at(),
            m,
            k,
            n,
            resume: false,
            epilogue: Epilogue {
                act: Some(Act::Gelu),
                ..Epilogue::default()
            },
        };
        let mut took = vec![None; all.len()];
        for (i, &tiling) in all.iter().enumerate() {
            if is_slow[i] && tiling != taken {
                continue;
            }
            let mark = if tiling == taken { " *" } else { "" };
            let what = format!("gemm {m} x {k} x {n} {name} {tiling:?}{mark}");
            took[i] = self.time(&what, &Rate::Flops(2 * m * k * n), |turn| {
                run(&product(turn), tiling)
            })?;
        }
        let best = took.iter().flatten().copied().min_by(f64::total_cmp);
        for (is_slow, us) in is_slow.iter_mut().zip(took) {
            *is_slow = us.zip(best).is_some_and(|(us, best)| us > TOO_SLOW * best);
        }
        Ok(())
    }

    /// Products of bf16 by matrix instructions, in each tiling at each number of rows, as
    /// [`Self::products`].
    fn matrix_products(&self) -> Result<(), CudaError> {
        let sizes: &[(usize, usize)] = if self.is_dry {
            &[(64, 64)]
        } else {
            &[
                (768, 768),
                (768, 3072),
                (3072, 768),
                (1024, 1024),
                (4096, 4096),
                (2048, 32_000),
            ]
        };
        let rows: &[usize] = if self.is_dry {
            &[1, 9]
        } else {
            &[1, 4, 8, 16, 32, 64, 96, 128, 256, 512, 2048]
        };
        let in_turns = if self.is_dry { 0 } else { IN_TURNS };
        for &(k, n) in sizes {
            let most = rows[rows.len() - 1].next_multiple_of(16);
            let bytes = k * n * 2;
            let weights = self.noise(in_turns.max(bytes))?;
            let (a, out) = (self.noise(most * k * 4)?, self.noise(most * n * 4)?);
            let packed = self.zeros(most * k * 2)?;
            let sides = Sides {
                a: &a,
                weights: &weights,
                stored: Stored::Bf16Tiles,
                bytes,
                out: &out,
            };
            let mut is_slow = [false; MatrixTiling::ALL.len()];
            for &m in rows {
                let (all, taken) = (&MatrixTiling::ALL, MatrixTiling::of(m, n));
                let (name, packed) = ("bf16 matrix", packed.at());
                self.tilings(
                    name,
                    &sides,
                    [m, k, n],
                    all,
                    taken,
                    &mut is_slow,
                    |g, tiling| {
                        self.kernels
                            .gemm_matrix_tiled(&self.stream, g, packed, tiling)
                    },
                )?;
            }
        }
        Ok(())
    }

    /// Encoders and prompts: attention within members, by multiply-adds and by matrix instructions.
    fn encoding(&self) -> Result<(), CudaError> {
        let heads = Heads {
            query: 12,
            kv: 12,
            dim: 64,
            scale: 0.125,
        };
        let sizes: &[(usize, usize)] = if self.is_dry {
            &[(2, 20)]
        } else {
            &[(1, 128), (16, 128), (8, 512)]
        };
        let width = heads.query * heads.dim;
        for &(num, len) in sizes {
            let rows = num * len;
            let [q, k, v, out] = [0; 4].map(|_| self.noise(rows * width * 4));
            let (q, k, v, out) = (q?, k?, v?, out?);
            let member = |i: usize| [i * len, len, len, i].map(|n| n as u32);
            let members = self.numbers(&(0..num).flat_map(member).collect::<Vec<_>>())?;
            let call = Attention {
                q: q.at(),
                k: k.at(),
                v: v.at(),
                out: out.at(),
                members: members.at(),
                num_members: num,
                max_rows: len,
                heads,
                seen: Seen::ALL,
                cap: None,
                bias: None,
            };
            let rate = Rate::Flops(4 * num * len * len * width);
            let what = format!("attention {num} members of {len} rows");
            self.time(&format!("{what}, multiply-adds"), &rate, |_| {
                self.kernels.attention(&self.stream, &call)
            })?;
            for (name, stored) in [("f16", Stored::F16), ("bf16", Stored::Bf16)] {
                self.time(
                    &format!("{what}, matrix instructions, {name}"),
                    &rate,
                    |_| self.kernels.attention_matrix(&self.stream, &call, stored),
                )?;
            }
        }
        Ok(())
    }

    /// Convolutions of ResNet-50, by multiply-adds and by matrix instructions, each tiling of these.
    fn convolutions(&self) -> Result<(), CudaError> {
        // Window and stride, channels, filters, and height and width of an image.
        let shapes: &[([usize; 2], usize, usize, usize)] = if self.is_dry {
            &[([3, 1], 3, 20, 9), ([1, 1], 64, 20, 5)]
        } else {
            &[
                ([7, 2], 3, 64, 224),
                ([3, 1], 64, 64, 56),
                ([1, 1], 256, 64, 56),
                ([1, 1], 64, 256, 56),
                ([3, 1], 256, 256, 14),
                ([3, 1], 512, 512, 7),
                ([1, 1], 2048, 512, 7),
                ([1, 1], 512, 2048, 7),
            ]
        };
        let images: &[usize] = if self.is_dry { &[2] } else { &[1, 8, 32] };
        for &([kernel, stride], channels, filters, size) in shapes {
            let window = Window::square(kernel, stride, kernel / 2);
            let pixels = (size / stride) * (size / stride);
            let dims = [filters, channels, kernel, kernel];
            let of = Filters::new(dims, 1);
            let num = dims.iter().product::<usize>();
            // Room for both forms of the filters.
            let weights = self.noise((num * 4).max(of.len() * 2))?;
            for &rows in images {
                let x = self.noise(rows * channels * size * size * 4)?;
                let out = self.zeros(rows * filters * pixels.max(size * size) * 4)?;
                let call = |stored| Conv {
                    x: x.at(),
                    weights: Weights {
                        at: weights.at(),
                        stored,
                    },
                    out: out.at(),
                    rows,
                    channels,
                    size: [size; 2],
                    filters,
                    window,
                    groups: 1,
                    epilogue: Epilogue {
                        act: Some(Act::Relu),
                        ..Epilogue::default()
                    },
                };
                let rate = Rate::Flops(2 * rows * pixels * num);
                let what = format!(
                    "conv {kernel}x{kernel}/{stride} {channels} -> {filters} on {size}, {rows} images"
                );
                self.time(&format!("{what}, multiply-adds"), &rate, |_| {
                    self.kernels.conv2d(&self.stream, &call(Stored::F32))
                })?;
                for tiling in ConvTiling::ALL {
                    let mark = if tiling == ConvTiling::of(&of, rows * pixels) {
                        " *"
                    } else {
                        ""
                    };
                    let what = format!("{what}, matrix instructions, bf16 {tiling:?}{mark}");
                    self.time(&what, &rate, |_| {
                        let call = call(Stored::Bf16);
                        self.kernels
                            .conv2d_matrix_tiled(&self.stream, &call, Some(tiling))
                    })?;
                }
            }
        }
        Ok(())
    }

    /// The first of the scores of all tokens.
    fn choosing(&self) -> Result<(), CudaError> {
        let width = if self.is_dry { 600 } else { 32_000 };
        for (rows, k) in [(1, 1), (1, 50), (64, 50)] {
            let (x, values) = (self.noise(rows * width * 4)?, self.zeros(rows * k * 4)?);
            let ids = self.zeros(rows * k * 4)?;
            let call = TopK {
                x: x.at(),
                values: values.at(),
                ids: ids.at(),
                rows,
                width,
                k,
                largest: true,
            };
            let what = format!("top {k} of {rows} x {width}");
            self.time(&what, &Rate::Bytes(rows * width * 4), |_| {
                self.kernels.top_k(&self.stream, &call)
            })?;
        }
        for (rows, top_k) in [(1, 0), (1, 50), (64, 50)] {
            // All scores are equal, which takes longest to find the last one that may be drawn.
            let (x, out) = (self.zeros(rows * width * 4)?, self.zeros(rows * 4)?);
            let how = Sampling {
                temperature: 1.0,
                top_k,
                seed: 1,
            };
            let words = how.words().map(i32::cast_unsigned).repeat(rows);
            let how = self.numbers(&words)?;
            let call = Sample {
                logits: x.at(),
                how: how.at(),
                positions: DevicePtr::NULL,
                first: 0,
                out: out.at(),
                rows,
                width,
            };
            let what = format!("draw of {rows} x {width}, top_k {top_k}");
            self.time(&what, &Rate::Bytes(rows * width * 4), |_| {
                self.kernels.sample(&self.stream, &call)
            })?;
        }
        Ok(())
    }

    /// Decoding: one query row of each sequence, by one block and in splits.
    fn decoding(&self) -> Result<(), CudaError> {
        let heads = Heads {
            query: 32,
            kv: 8,
            dim: 128,
            scale: 0.1,
        };
        let lens: &[usize] = if self.is_dry {
            &[130]
        } else {
            &[128, 1024, 8192]
        };
        let rows: &[usize] = if self.is_dry { &[2] } else { &[1, 8, 64] };
        let width = heads.kv * heads.dim;
        for &len in lens {
            for &num in rows {
                // Each sequence has pages of its own, which lie anywhere in the pool.
                let max_pages = len.div_ceil(PAGE);
                let of_each = num * max_pages;
                let pool = self.noise(2 * of_each * PAGE * width * 4)?;
                let pages = self.numbers(&scattered(2 * of_each))?;
                let lens_at = self.numbers(&vec![len as u32; num])?;
                let paged = |pages: DevicePtr| Paged {
                    pool: pool.at(),
                    pages,
                    max_pages: max_pages as u32,
                    width,
                };
                let memory = Memory {
                    keys: paged(pages.at()),
                    values: paged(pages.at().add(of_each * 4)),
                    sequences: DevicePtr::NULL,
                    lens: lens_at.at(),
                    max_len: len,
                };
                let q = self.noise(num * heads.query * heads.dim * 4)?;
                let out = self.zeros(num * heads.query * heads.dim * 4)?;
                let space = self.zeros(workspace_bytes(num, heads, len))?;
                for (name, space) in [("whole", DevicePtr::NULL), ("in splits", space.at())] {
                    let what = format!("state attention {num} rows, {len} positions, {name}");
                    self.time(&what, &Rate::Bytes(num * len * width * 8), |_| {
                        self.kernels.state_attention(
                            &self.stream,
                            q.at(),
                            &memory,
                            heads,
                            out.at(),
                            num,
                            space,
                        )
                    })?;
                }
            }
        }
        Ok(())
    }
}

fn run(is_dry: bool) -> Result<ExitCode, CudaError> {
    let context = Context::new(0)?;
    let name = context.name()?;
    if context.is_emulator()? && !is_dry {
        eprintln!("expected a GPU to measure, or --dry, got {name}");
        return Ok(ExitCode::from(2));
    }
    let bench = Bench {
        stream: Stream::new(&context)?,
        begin: Event::timed(&context)?,
        end: Event::timed(&context)?,
        kernels: Kernels::new(&context, jit::default_folder())?,
        context,
        is_dry,
    };
    let (major, minor) = bench.context.capability()?;
    let (compiler_major, compiler_minor) = jit::version()?;
    println!(
        "{{\"device\":\"{name}\",\"capability\":\"{major}.{minor}\",\
         \"nvrtc\":\"{compiler_major}.{compiler_minor}\",\"emulator\":{}}}",
        bench.context.is_emulator()?
    );
    bench.launches_and_copies()?;
    // What has most lines comes last: they are what a run without time for all can do without.
    bench.encoding()?;
    bench.convolutions()?;
    bench.decoding()?;
    bench.choosing()?;
    bench.matrix_products()?;
    bench.products()?;
    Ok(ExitCode::SUCCESS)
}

fn main() -> ExitCode {
    let is_dry = match std::env::args().nth(1).as_deref() {
        None => false,
        Some("--dry") => true,
        Some(other) => {
            eprintln!("expected nothing or --dry, got {other}");
            return ExitCode::from(2);
        }
    };
    run(is_dry).unwrap_or_else(|error| {
        eprintln!("{error}");
        ExitCode::FAILURE
    })
}
