//! What happens without a barrier: each is taken out of a copy of the sources in turn, and the
//! emulator has to report it.

use lazybatch_cuda::kernels::attention::Attention;
use lazybatch_cuda::kernels::conv::Conv;
use lazybatch_cuda::kernels::conv_matrix::Tiling as Tiles;
use lazybatch_cuda::kernels::gemm::{Gemm, Tiling};
use lazybatch_cuda::kernels::gemm_matrix::MatrixTiling;
use lazybatch_cuda::kernels::sample::Sample;
use lazybatch_cuda::kernels::state_attention::{Memory, workspace_bytes};
use lazybatch_cuda::kernels::states::Paged;
use lazybatch_cuda::kernels::top_k::TopK;
use lazybatch_cuda::kernels::{Epilogue, Member, SOURCES, Source, Stored, Weights};
use lazybatch_cuda::{CudaError, DevicePtr};
use lazybatch_graph::{Act, Heads, Sampling, Seen, Window};

use crate::harness::{Buffer, Gpu, numbers};
use crate::process::{Libraries, outcome, soak_cases};
use crate::rows::members;

/// Of a block, and of a warp. A `__syncthreads_count` stays: without it there is no count, and what
/// is counted is in registers, so there may be nothing to report.
const BARRIERS: [&str; 2] = ["__syncthreads();", "__syncwarp();"];
/// In the process of a mutation: the source's place, and which barrier goes.
const MUTATION: &str = "LAZYBATCH_MUTATION";
const NAME: &str = "mutations::barriers_that_are_missing_are_reported";
/// What every report begins with.
const REPORT: &str = "CUDA emulator (CPU): ";

/// Where the barriers of a text are.
fn barriers(text: &str) -> Vec<std::ops::Range<usize>> {
    let of = |barrier: &'static str| {
        let found = text.match_indices(barrier);
        found.map(move |(at, _)| at..at + barrier.len())
    };
    let mut all: Vec<_> = BARRIERS.into_iter().flat_map(of).collect();
    all.sort_by_key(|barrier| barrier.start);
    all
}

/// A text without one of its barriers.
fn without(text: &str, which: usize) -> String {
    let at = barriers(text)[which].clone();
    // The place of lines stays as it is.
    let blank = " ".repeat(at.len() - 1);
    format!("{}{blank};{}", &text[..at.start], &text[at.end..])
}

fn num_barriers(text: &str) -> usize {
    barriers(text).len()
}

/// Sources with barriers, those of the common part in one source that uses them: place, first and
/// one behind the last.
fn sites() -> Vec<(usize, usize)> {
    let mut sites = Vec::new();
    for (at, source) in SOURCES.iter().enumerate() {
        let all = num_barriers(&source.full_text());
        let common = all - num_barriers(source.text);
        let first = match source.file {
            "norms.cu" => 0,
            // One more than is needed stands at the head of its loop over heads: the loop before it
            // ends with a barrier, and nothing is read behind that.
            "state_attention.cu" => common + 1,
            _ => common,
        };
        sites.extend((first..all).map(|which| (at, which)));
    }
    sites
}

/// Runs the kernels of a source whose blocks have several warps, in shapes that make each go
/// through its loops more than once.
fn exercise(gpu: &Gpu, source: &Source) -> Result<(), CudaError> {
    let (k, s) = (&gpu.kernels, &gpu.stream);
    let some = |len: usize| -> Buffer { gpu.upload(&numbers(len as u64, len)) };
    match source.file {
        "norms.cu" => {
            let (x, out) = (some(2 * 3000), gpu.fresh::<f32>(2 * 3000));
            k.layer_norm(s, x.at(), x.at(), x.at(), 1e-5, out.at(), 2, 3000)?;
            s.synchronize()
        }
        "choice.cu" => {
            let (x, out) = (some(2 * 3000), gpu.fresh::<i32>(2));
            k.arg_max(s, x.at(), out.at(), 2, 3000)?;
            s.synchronize()
        }
        "sample.cu" => {
            let (x, out) = (some(2 * 3000), gpu.fresh::<i32>(2));
            // By a list of few; with more candidates than a list holds; in the row.
            for top_k in [7, 1024, 0] {
                let how = [1, 2].map(|seed| Sampling {
                    temperature: 1.0,
                    top_k,
                    seed,
                });
                let how = gpu.upload(&how.map(|h| h.words()).concat());
                let call = Sample {
                    logits: x.at(),
                    how: how.at(),
                    positions: DevicePtr::NULL,
                    first: 0,
                    out: out.at(),
                    rows: 2,
                    width: 3000,
                };
                k.sample(s, &call)?;
                s.synchronize()?;
            }
            Ok(())
        }
        "top_k.cu" => {
            let (x, num) = (some(2 * 3000), 2 * 300);
            let (values, ids) = (gpu.fresh::<f32>(num), gpu.fresh::<i32>(num));
            // By a list, and without one.
            for chosen in [4, 300] {
                let call = TopK {
                    x: x.at(),
                    values: values.at(),
                    ids: ids.at(),
                    rows: 2,
                    width: 3000,
                    k: chosen,
                    largest: true,
                };
                k.top_k(s, &call)?;
            }
            s.synchronize()
        }
        "conv.cu" => {
            let (x, w) = (some(20 * 81), some(70 * 20 * 9));
            let out = gpu.fresh::<f32>(70 * 81);
            let call = Conv {
                x: x.at(),
                weights: Weights::f32(w.at()),
                out: out.at(),
                rows: 1,
                channels: 20,
                size: [9, 9],
                filters: 70,
                window: Window::square(3, 1, 1),
                groups: 1,
                epilogue: Epilogue {
                    act: Some(Act::Relu),
                    ..Epilogue::default()
                },
            };
            k.conv2d(s, &call)?;
            s.synchronize()
        }
        "conv_matrix.cu" => {
            // Five tiles, more than a block has stages; and two slices of a chain of eight.
            let (x, w) = (some(256 * 49), some(256 * 64));
            let out = gpu.fresh::<f32>(70 * 49);
            for (channels, tiling) in [(160, Tiles::Some), (160, Tiles::Many), (256, Tiles::Few)] {
                let call = Conv {
                    x: x.at(),
                    // Any bits are numbers here.
                    weights: Weights {
                        at: w.at(),
                        stored: Stored::Bf16,
                    },
                    out: out.at(),
                    rows: 1,
                    channels,
                    size: [7, 7],
                    filters: 70,
                    window: Window::square(1, 1, 0),
                    groups: 1,
                    epilogue: Epilogue::default(),
                };
                k.conv2d_matrix_tiled(s, &call, Some(tiling))?;
            }
            s.synchronize()
        }
        "gemm.cu" => {
            let (m, inner, n) = (40, 520, 72);
            let (a, b, out) = (some(m * inner), some(inner * n), gpu.fresh::<f32>(m * n));
            let call = Gemm {
                a: a.at(),
                a_rows: DevicePtr::NULL,
                weights: Weights::f32(b.at()),
                out: out.at(),
                m,
                k: inner,
                n,
                resume: false,
                epilogue: Epilogue::default(),
            };
            k.gemm_tiled(s, &call, Tiling::Small)?;
            s.synchronize()
        }
        "gemm_matrix.cu" => {
            let (m, inner, n) = (144, 528, 80);
            let (a, b, out) = (some(m * inner), some(inner * n), gpu.fresh::<f32>(m * n));
            let packed = gpu.fresh::<u16>(m * inner);
            let call = Gemm {
                a: a.at(),
                a_rows: DevicePtr::NULL,
                // Any bits are numbers here.
                weights: Weights {
                    at: b.at(),
                    stored: Stored::Bf16Tiles,
                },
                out: out.at(),
                m,
                k: inner,
                n,
                resume: false,
                epilogue: Epilogue::default(),
            };
            for tiling in [MatrixTiling::Few64x32, MatrixTiling::Many128x64] {
                k.gemm_matrix_tiled(s, &call, packed.at(), tiling)?;
            }
            s.synchronize()
        }
        "attention.cu" | "attention_matrix.cu" => {
            let rows = 70;
            let (x, out) = (some(rows * 32), gpu.fresh::<f32>(rows * 32));
            let own = rows as u32;
            let table = members(
                gpu,
                &[Member {
                    start: 0,
                    rows: own,
                    own,
                    sample: 0,
                }],
            );
            let call = Attention {
                q: x.at(),
                k: x.at(),
                v: x.at(),
                out: out.at(),
                members: table.at(),
                num_members: 1,
                max_rows: rows,
                heads: Heads {
                    query: 1,
                    kv: 1,
                    dim: 32,
                    scale: 0.2,
                },
                seen: Seen::ALL,
                cap: None,
                bias: None,
            };
            if source.file == "attention.cu" {
                k.attention(s, &call)?;
            } else {
                k.attention_matrix(s, &call, Stored::Bf16)?;
            }
            s.synchronize()
        }
        "state_attention.cu" => {
            let (num, width, heads) = (300usize, 32, 6);
            let num_pages = num.div_ceil(16);
            let pool = some(num_pages * 16 * width);
            let pages = gpu.upload(&(0..num_pages as i32).collect::<Vec<_>>());
            let lens = gpu.upload(&[num as i32]);
            let paged = Paged {
                pool: pool.at(),
                pages: pages.at(),
                max_pages: num_pages as u32,
                width,
            };
            let memory = Memory {
                keys: paged,
                values: paged,
                sequences: DevicePtr::NULL,
                lens: lens.at(),
                max_len: num,
            };
            let heads = Heads {
                query: heads,
                kv: 1,
                dim: width,
                scale: 0.2,
            };
            let q = some(heads.query * width);
            let out = gpu.fresh::<f32>(heads.query * width);
            let space = gpu.fresh::<u8>(workspace_bytes(1, heads, num));
            k.state_attention(s, q.at(), &memory, heads, out.at(), 1, DevicePtr::NULL)?;
            k.state_attention(s, q.at(), &memory, heads, out.at(), 1, space.at())?;
            k.additive_attention(s, q.at(), q.at(), &memory, out.at(), 1)?;
            s.synchronize()
        }
        other => panic!("expected a way to run {other}, which has barriers, got none"),
    }
}

/// The body: a source without a barrier, or all as they are.
fn run() {
    let Ok(mutation) = std::env::var(MUTATION) else {
        let gpu = Gpu::new();
        for source in SOURCES.iter().filter(|s| num_barriers(s.text) > 0) {
            exercise(&gpu, source).unwrap();
        }
        return;
    };
    let (place, which) = mutation.split_once(' ').unwrap();
    let source = SOURCES[place.parse::<usize>().unwrap()];
    let which: usize = which.parse().unwrap();
    let gpu = Gpu::with_texts(move |s| {
        let text = s.full_text();
        if s.file == source.file {
            without(&text, which)
        } else {
            text
        }
    });
    // What the emulator finds it prints, and the answer is an error.
    let error = exercise(&gpu, source).unwrap_err();
    println!("{error}");
}

/// One in so many barriers is left out, but in a soak every one.
const STRIDE: usize = 3;

#[test]
fn barriers_that_are_missing_are_reported() {
    let clean = outcome(NAME, 1, Libraries::All, &[], run);
    let is_clean = clean.passed && !clean.stderr.contains("CUDA emulator");
    assert!(is_clean, "as they are:\n{}", clean.stderr);
    let sites = sites();
    assert!(sites.len() >= 15, "{} barriers", sites.len());
    let mut unseen = Vec::new();
    let stride = soak_cases().map_or(STRIDE, |_| 1);
    for (place, which) in sites.into_iter().step_by(stride) {
        let mutation = format!("{place} {which}");
        let ran = outcome(NAME, 1, Libraries::All, &[(MUTATION, &mutation)], run);
        if !ran.stderr.contains(REPORT) {
            let file = SOURCES[place].file;
            unseen.push(format!("{file}, barrier {which}: {}", ran.stderr));
        }
    }
    assert!(unseen.is_empty(), "not reported:\n{}", unseen.join("\n"));
}
