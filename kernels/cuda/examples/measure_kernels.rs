//! Times the kernels on the GPU at hand and prints one line of JSON for each: what it did, the
//! median time of a launch, and the rate that this makes. `--dry` runs each once, on small shapes,
//! without a number: a test of this program where there is no GPU.
//!
//! Times are those of many launches between two waits, so they are of kernels back to back.
#![allow(unsafe_code, reason = "copies to the device")]

use std::process::ExitCode;
use std::time::Instant;

use lazybatch_cuda::context::{DeviceMemory, Pinned};
use lazybatch_cuda::kernels::attention::Attention;
use lazybatch_cuda::kernels::gemm::{Gemm, Tiling};
use lazybatch_cuda::kernels::sample::Sample;
use lazybatch_cuda::kernels::state_attention::{Memory, workspace_bytes};
use lazybatch_cuda::kernels::states::{PAGE, Paged};
use lazybatch_cuda::kernels::top_k::TopK;
use lazybatch_cuda::kernels::{Epilogue, Stored, Weights};
use lazybatch_cuda::{Context, CudaError, DevicePtr, Kernels, Stream, jit};
use lazybatch_graph::{Act, Heads, Sampling};

/// Launches between two waits.
const LAUNCHES: usize = 50;
/// Repetitions, of which the median is reported.
const REPEATS: usize = 9;

struct Bench {
    context: Context,
    stream: Stream,
    kernels: Kernels,
    is_dry: bool,
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

impl Bench {
    /// Memory of zeros.
    fn zeros(&self, bytes: usize) -> Result<DeviceMemory, CudaError> {
        let memory = DeviceMemory::new(&self.context, "a measurement", bytes.max(4))?;
        // SAFETY: the memory is that long.
        unsafe { self.stream.fill(memory.at(), 0, bytes.max(4)) }?;
        Ok(memory)
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

    /// Times a launch and prints its line.
    fn time(
        &self,
        what: &str,
        rate: &Rate,
        launch: impl Fn() -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        launch()?;
        self.stream.synchronize()?;
        if self.is_dry {
            println!("{{\"what\":\"{what}\",\"dry\":true}}");
            return Ok(());
        }
        let mut issued = Vec::new();
        let mut done = Vec::new();
        for _ in 0..REPEATS {
            let start = now();
            for _ in 0..LAUNCHES {
                launch()?;
            }
            issued.push(start.elapsed().as_secs_f64() / LAUNCHES as f64);
            self.stream.synchronize()?;
            done.push(start.elapsed().as_secs_f64() / LAUNCHES as f64);
        }
        for times in [&mut issued, &mut done] {
            times.sort_by(f64::total_cmp);
        }
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
            issued[REPEATS / 2] * 1e6,
        );
        Ok(())
    }

    fn launches_and_copies(&self) -> Result<(), CudaError> {
        let mib = if self.is_dry { 1 } else { 256 };
        let x = self.zeros(mib << 20)?;
        let out = self.zeros(mib << 20)?;
        let len = (mib << 20) / 4;
        let (k, s) = (&self.kernels, &self.stream);
        self.time("scale 1 element", &Rate::Launches, || {
            k.scale(s, 2.0, x.at(), out.at(), 1)
        })?;
        self.time(&format!("scale {mib} MiB"), &Rate::Bytes(mib << 21), || {
            k.scale(s, 2.0, x.at(), out.at(), len)
        })?;
        let rows = len / 4096;
        let table = self.zeros(rows * 4)?;
        let name = format!("gather {rows} rows of 4096");
        self.time(&name, &Rate::Bytes(mib << 21), || {
            k.gather_rows(s, x.at(), table.at(), out.at(), rows, 4096)
        })?;
        for width in [768, 4096] {
            let rows = len / width;
            let (gamma, beta) = (x.at(), x.at());
            let name = format!("layer norm {rows} x {width}");
            self.time(&name, &Rate::Bytes(rows * width * 8), || {
                k.layer_norm(s, x.at(), gamma, beta, 1e-5, out.at(), rows, width)
            })?;
            let name = format!("softmax {rows} x {width}");
            self.time(&name, &Rate::Bytes(rows * width * 8), || {
                k.softmax(s, x.at(), out.at(), rows, width)
            })?;
        }
        Ok(())
    }

    /// Each tiling at each number of rows: where one overtakes the other.
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
        for &(k, n) in sizes {
            let weights = self.zeros(k * n * 4)?;
            let scales = self.zeros(n * 4)?;
            let int8 = Stored::Int8 {
                scales: scales.at(),
            };
            for &m in rows {
                let (a, out) = (self.zeros(m * k * 4)?, self.zeros(m * n * 4)?);
                for (name, stored) in [
                    ("f32", Stored::F32),
                    ("f16", Stored::F16),
                    ("bf16", Stored::Bf16),
                    ("int8", int8),
                ] {
                    for tiling in Tiling::ALL {
                        let g = Gemm {
                            a: a.at(),
                            a_rows: DevicePtr::NULL,
                            weights: Weights {
                                at: weights.at(),
                                stored,
                            },
                            out: out.at(),
                            m,
                            k,
                            n,
                            resume: false,
                            epilogue: Epilogue {
                                act: Some(Act::Gelu),
                                ..Epilogue::default()
                            },
                        };
                        let mark = if tiling == Tiling::of(m, n) { " *" } else { "" };
                        let what = format!("gemm {m} x {k} x {n} {name} {tiling:?}{mark}");
                        self.time(&what, &Rate::Flops(2 * m * k * n), || {
                            self.kernels.gemm_tiled(&self.stream, &g, tiling)
                        })?;
                    }
                }
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
            let [q, k, v, out] = [0; 4].map(|_| self.zeros(rows * width * 4));
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
                causal: false,
            };
            let rate = Rate::Flops(4 * num * len * len * width);
            let what = format!("attention {num} members of {len} rows");
            self.time(&format!("{what}, multiply-adds"), &rate, || {
                self.kernels.attention(&self.stream, &call)
            })?;
            for (name, stored) in [("f16", Stored::F16), ("bf16", Stored::Bf16)] {
                self.time(
                    &format!("{what}, matrix instructions, {name}"),
                    &rate,
                    || self.kernels.attention_matrix(&self.stream, &call, stored),
                )?;
            }
        }
        Ok(())
    }

    /// The first of the scores of all tokens.
    fn choosing(&self) -> Result<(), CudaError> {
        let width = if self.is_dry { 600 } else { 32_000 };
        for (rows, k) in [(1, 1), (1, 50), (64, 50)] {
            let (x, values) = (self.zeros(rows * width * 4)?, self.zeros(rows * k * 4)?);
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
            self.time(&what, &Rate::Bytes(rows * width * 4), || {
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
            self.time(&what, &Rate::Bytes(rows * width * 4), || {
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
                // All sequences share the pages of one: what is read is as much.
                let max_pages = len.div_ceil(PAGE);
                let pool = self.zeros(PAGE * width * 4)?;
                let pages = self.zeros(num * max_pages * 4)?;
                let lens_at = self.numbers(&vec![len as u32; num])?;
                let paged = Paged {
                    pool: pool.at(),
                    pages: pages.at(),
                    max_pages: max_pages as u32,
                    width,
                };
                let memory = Memory {
                    keys: paged,
                    values: paged,
                    sequences: DevicePtr::NULL,
                    lens: lens_at.at(),
                    max_len: len,
                };
                let q = self.zeros(num * heads.query * heads.dim * 4)?;
                let out = self.zeros(num * heads.query * heads.dim * 4)?;
                let space = self.zeros(workspace_bytes(num, heads, len))?;
                for (name, space) in [("whole", DevicePtr::NULL), ("in splits", space.at())] {
                    let what = format!("state attention {num} rows, {len} positions, {name}");
                    self.time(&what, &Rate::Bytes(num * len * width * 8), || {
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
    bench.products()?;
    bench.encoding()?;
    bench.decoding()?;
    bench.choosing()?;
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
