//! Attention within members and over states, and rows of states.

use lazybatch_cuda::DevicePtr;
use lazybatch_cuda::kernels::Member;
use lazybatch_cuda::kernels::attention::{Attention, Bias};
use lazybatch_cuda::kernels::state_attention::{Memory, SPLIT, workspace_bytes};
use lazybatch_cuda::kernels::states::{PAGE, Paged, Places};
use lazybatch_graph::{Heads, Seen};

use crate::harness::{Buffer, Gpu, close, numbers, on_device, same, wide};
use crate::rows::members;

pub fn heads(query: usize, kv: usize, dim: usize) -> Heads {
    let scale = 1.0 / (dim as f32).sqrt();
    Heads {
        query,
        kv,
        dim,
        scale,
    }
}

/// What attention within members computes.
#[derive(Clone, Debug)]
pub struct Form {
    pub heads: Heads,
    pub seen: Seen,
    cap: Option<f32>,
    /// Distances of the bias.
    columns: usize,
    bias: Option<Vec<f32>>,
}

impl Form {
    /// Heads that see all keys, or those that are not behind.
    pub const fn new(heads: Heads, causal: bool) -> Self {
        let seen = Seen {
            causal,
            window: None,
        };
        Self {
            heads,
            seen,
            cap: None,
            columns: 0,
            bias: None,
        }
    }

    pub const fn within(mut self, most: usize) -> Self {
        self.seen.window = Some(most);
        self
    }

    pub const fn capped(mut self, at: f32) -> Self {
        self.cap = Some(at);
        self
    }

    /// With a bias for so many positions, which hides some keys, none from itself.
    pub fn biased(mut self, positions: usize) -> Self {
        self.columns = 2 * positions - 1;
        let mut bias = numbers(77, self.heads.query * self.columns);
        for (i, v) in bias.iter_mut().enumerate() {
            let apart = (i % self.columns).abs_diff(self.columns / 2);
            *v = if apart % 5 == 3 {
                f32::NEG_INFINITY
            } else {
                3.0 * *v
            };
        }
        self.bias = Some(bias);
        self
    }

    /// The score of key `j` for head `head` of query `i`, of a scaled product.
    fn score(&self, head: usize, i: usize, j: usize, product: f64) -> f64 {
        let cap = self.cap.map(f64::from);
        let capped = cap.map_or(product, |cap| cap * (product / cap).tanh());
        let at = |bias: &Vec<f32>| bias[head * self.columns + self.columns / 2 + j - i];
        capped + self.bias.as_ref().map_or(0.0, |bias| f64::from(at(bias)))
    }
}

/// One query row over rows of keys and values, by the definition; `to` makes scores of scaled products,
/// by head and key.
fn attend(
    q: &[f64],
    keys: &[f64],
    values: &[f64],
    h: Heads,
    to: impl Fn(usize, usize, f64) -> f64,
) -> Vec<f64> {
    let width = h.kv * h.dim;
    let num = keys.len() / width;
    let mut out = vec![0.0; h.query * h.dim];
    for head in 0..h.query {
        let (at, kv_at) = (head * h.dim, head / (h.query / h.kv) * h.dim);
        let dot = |j: usize| -> f64 {
            let key = &keys[j * width + kv_at..][..h.dim];
            key.iter().zip(&q[at..]).map(|(k, q)| k * q).sum()
        };
        let score = |j| to(head, j, dot(j) * f64::from(h.scale));
        let scores: Vec<f64> = (0..num).map(score).collect();
        let shares = softmax(&scores);
        for (j, share) in shares.iter().enumerate() {
            let value = &values[j * width + kv_at..][..h.dim];
            out[at..]
                .iter_mut()
                .zip(value)
                .for_each(|(o, v)| *o += share * v);
        }
    }
    out
}

fn softmax(scores: &[f64]) -> Vec<f64> {
    let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let each: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
    let sum: f64 = each.iter().sum();
    each.iter().map(|e| e / sum).collect()
}

/// Own rows and padding of members.
pub type Sizes = [(usize, usize)];

/// Queries, keys and values of members. Padding is no number.
pub fn member_rows(sizes: &Sizes, h: Heads) -> Vec<[Vec<f32>; 3]> {
    let (q_width, kv_width) = (h.query * h.dim, h.kv * h.dim);
    let of = |(i, &(own, padding)): (usize, &(usize, usize))| {
        let seed = 10 * i as u64;
        let padded = |seed, width: usize| {
            // Some larger than others, so that the maximum moves from tile to tile.
            let mut x = numbers(seed, own * width);
            let stretch = |(i, v): (usize, &mut f32)| *v *= 1.0 + (i % 7) as f32;
            x.iter_mut().enumerate().for_each(stretch);
            x.extend(vec![f32::NAN; padding * width]);
            x
        };
        [(1, q_width), (2, kv_width), (3, kv_width)].map(|(s, w)| padded(seed + s, w))
    };
    sizes.iter().enumerate().map(of).collect()
}

/// What `launch` computes for members `which`, one behind another; each one's rows.
pub fn attend_packed(
    gpu: &Gpu,
    (sizes, data): (&Sizes, &[[Vec<f32>; 3]]),
    which: &[usize],
    form: &Form,
    launch: impl Fn(&Attention),
) -> Vec<Vec<f32>> {
    let mut packed = [vec![], vec![], vec![]];
    let mut entries = Vec::new();
    let mut start = 0;
    for (sample, &i) in which.iter().enumerate() {
        let (own, padding) = (sizes[i].0 as u32, sizes[i].1 as u32);
        let rows = own + padding;
        entries.push(Member {
            start,
            rows,
            own,
            sample: sample as u32,
        });
        start += rows;
        let parts = packed.iter_mut().zip(&data[i]);
        parts.for_each(|(p, d)| p.extend_from_slice(d));
    }
    let [q, k, v] = packed.each_ref().map(|p| gpu.upload(p));
    let table = members(gpu, &entries);
    let heads = form.heads;
    let bias = form.bias.as_ref().map(|bias| gpu.upload(bias));
    let out: Vec<f32> = gpu.output(packed[0].len(), |out| {
        launch(&Attention {
            q: q.at(),
            k: k.at(),
            v: v.at(),
            out,
            members: table.at(),
            num_members: which.len(),
            max_rows: entries.iter().map(|m| m.rows as usize).max().unwrap(),
            heads,
            seen: form.seen,
            cap: form.cap,
            bias: bias.as_ref().map(|bias| Bias {
                table: bias.at(),
                columns: form.columns,
            }),
        });
    });
    let width = heads.query * heads.dim;
    let rows = entries.iter().map(|m| {
        let from = m.start as usize * width;
        out[from..from + m.rows as usize * width].to_vec()
    });
    rows.collect()
}

/// Checks `run` over members: near the definition on operands that `round` has rounded, each with the
/// same bits alone, among others and in another order. Returns what comes of all together.
pub fn check_members(
    (sizes, data): (&Sizes, &[[Vec<f32>; 3]]),
    form: &Form,
    round: impl Fn(f32) -> f32,
    tolerance: f64,
    run: impl Fn(&[usize]) -> Vec<Vec<f32>>,
) -> Vec<Vec<f32>> {
    let h = form.heads;
    let (q_width, kv_width) = (h.query * h.dim, h.kv * h.dim);
    let order: Vec<usize> = (0..sizes.len()).collect();
    let together = run(&order);
    for (i, got) in together.iter().enumerate() {
        let (own, padding) = sizes[i];
        let name = format!(
            "{h:?}, {:?}, {} distances, member {i}",
            form.seen, form.columns
        );
        same(&format!("{name} alone"), &run(&[i])[0], got);
        let rounded = |d: &Vec<f32>| wide(&d.iter().map(|v| round(*v)).collect::<Vec<_>>());
        let [q, k, v] = data[i].each_ref().map(rounded);
        let mut want = Vec::new();
        for row in 0..own {
            let seen = form.seen.keys(row, own);
            let q = &q[row * q_width..][..q_width];
            let rows = seen.start * kv_width..seen.end * kv_width;
            let score = |head, j, v| form.score(head, row, seen.start + j, v);
            want.extend(attend(q, &k[rows.clone()], &v[rows], h, score));
        }
        want.extend(vec![0.0; padding * q_width]);
        close(&name, got, &want, tolerance);
    }
    let back = run(&order.into_iter().rev().collect::<Vec<_>>());
    for (i, got) in back.iter().rev().enumerate() {
        same("backwards", got, &together[i]);
    }
    together
}

on_device! {
    fn members_attend_to_their_own_rows(gpu) {
        let sizes = [(37, 0), (1, 4), (16, 0), (33, 3), (0, 2)];
        // Tiles before the first that a query sees, and behind the last.
        let long = [(150, 0), (1, 4), (70, 3), (0, 2)];
        for (sizes, form) in [
            (&sizes[..], Form::new(heads(2, 2, 8), false)),
            (&sizes, Form::new(heads(4, 2, 5), true)),
            (&sizes, Form::new(heads(1, 1, 33), true)),
            (&sizes, Form::new(heads(2, 1, 80), false)),
            (&sizes, Form::new(heads(1, 1, 130), true)),
            (&long, Form::new(heads(2, 1, 7), false).within(20)),
            (&long, Form::new(heads(1, 1, 34), true).within(3)),
            (&long, Form::new(heads(1, 1, 6), false).within(0)),
            (&long, Form::new(heads(2, 1, 9), false).within(1000)),
            (&sizes, Form::new(heads(4, 2, 6), false).biased(37)),
            (&sizes, Form::new(heads(2, 2, 65), true).biased(50)),
            (&long, Form::new(heads(2, 1, 40), false).within(9).biased(150)),
            (&sizes, Form::new(heads(1, 1, 129), true).within(30).biased(38)),
            (&sizes, Form::new(heads(2, 1, 20), true).capped(2.0)),
            (&sizes, Form::new(heads(1, 1, 70), false).capped(5.0).biased(37)),
        ] {
            let data = member_rows(sizes, form.heads);
            let members = (sizes, &data[..]);
            check_members(members, &form, |v| v, 2e-5, |which| {
                attend_packed(gpu, members, which, &form, |a| {
                    gpu.kernels.attention(&gpu.stream, a).unwrap();
                })
            });
        }
    }
}

/// Sequence states in pages that lie anywhere in their pools, written by the kernel itself.
struct States {
    lens: Vec<usize>,
    /// Keys and values by sequence.
    data: Vec<[Vec<f32>; 2]>,
    pools: [Buffer; 2],
    tables: [Vec<i32>; 2],
    max_pages: usize,
    widths: [usize; 2],
}

impl States {
    fn new(gpu: &Gpu, lens: &[usize], widths: [usize; 2]) -> Self {
        let max_pages = lens.iter().max().unwrap().div_ceil(PAGE).max(1);
        let num_pages = lens.len() * max_pages;
        let data: Vec<[Vec<f32>; 2]> = lens
            .iter()
            .enumerate()
            .map(|(i, len)| {
                let seed = 100 + 2 * i as u64;
                [0, 1].map(|s| {
                    let x = numbers(seed + s as u64, len * widths[s]);
                    x.iter()
                        .enumerate()
                        .map(|(i, v)| v * (1.0 + (i % 5) as f32))
                        .collect()
                })
            })
            .collect();
        // Pages go backwards in one pool and in threes through the other.
        let tables = [0, 1].map(|s| {
            let page = |i: usize| match s {
                0 => num_pages - 1 - i,
                _ => (i * 7 + 3) % num_pages,
            };
            let mut pages: Vec<i32> = (0..num_pages).map(|i| page(i) as i32).collect();
            let mut sorted = pages.clone();
            sorted.sort_unstable();
            sorted.dedup();
            if sorted.len() < num_pages {
                pages = (0..num_pages as i32).collect();
            }
            pages
        });
        let pools = widths.map(|w| gpu.fresh::<f32>(num_pages * PAGE * w));
        let states = Self {
            lens: lens.to_vec(),
            data,
            pools,
            tables,
            max_pages,
            widths,
        };
        for s in 0..2 {
            let table = gpu.upload(&states.tables[s]);
            let paged = states.paged(s, table.at());
            let mut rows: Vec<f32> = vec![];
            let (mut sequences, mut positions) = (vec![], vec![]);
            for (i, data) in states.data.iter().enumerate() {
                rows.extend_from_slice(&data[s]);
                sequences.extend(vec![i as i32; lens[i]]);
                positions.extend(0..lens[i] as i32);
            }
            let (x, st, pt) = (
                gpu.upload(&rows),
                gpu.upload(&sequences),
                gpu.upload(&positions),
            );
            let places = Places {
                sequences: st.at(),
                positions: pt.at(),
            };
            gpu.kernels
                .seq_write(&gpu.stream, x.at(), &paged, &places, positions.len())
                .unwrap();
            gpu.stream.synchronize().unwrap();
        }
        states
    }

    fn paged(&self, s: usize, pages: DevicePtr) -> Paged {
        Paged {
            pool: self.pools[s].at(),
            pages,
            max_pages: self.max_pages as u32,
            width: self.widths[s],
        }
    }

    /// Runs `f` on what query rows of the sequences `which` look at.
    fn with<R>(&self, gpu: &Gpu, which: &[usize], f: impl FnOnce(&Memory) -> R) -> R {
        let lens: Vec<i32> = self.lens.iter().map(|l| *l as i32).collect();
        let sequences: Vec<i32> = which.iter().map(|i| *i as i32).collect();
        let [kt, vt] = self.tables.each_ref().map(|t| gpu.upload(t));
        let (lens, sequences) = (gpu.upload(&lens), gpu.upload(&sequences));
        let is_identity = which.iter().enumerate().all(|(i, w)| i == *w);
        f(&Memory {
            keys: self.paged(0, kt.at()),
            values: self.paged(1, vt.at()),
            sequences: if is_identity {
                DevicePtr::NULL
            } else {
                sequences.at()
            },
            lens: lens.at(),
            max_len: which.iter().map(|i| self.lens[*i]).max().unwrap(),
        })
    }
}

const LENS: [usize; 9] = [
    0,
    1,
    15,
    16,
    17,
    SPLIT - 1,
    SPLIT,
    SPLIT + 1,
    2 * SPLIT + 45,
];

on_device! {
    fn states_are_attended_to(gpu) {
        for h in [heads(2, 2, 16), heads(6, 2, 5), heads(1, 1, 33), heads(5, 1, 72), heads(1, 1, 200), heads(1, 1, 512)] {
            let (q_width, kv_width) = (h.query * h.dim, h.kv * h.dim);
            let lens = if h.dim > 64 { &LENS[4..] } else { &LENS[..] };
            let states = States::new(gpu, lens, [kv_width; 2]);
            let q = numbers(1, lens.len() * q_width);
            let run = |which: &[usize], splits: bool| -> Vec<f32> {
                let rows: Vec<f32> = which.iter().flat_map(|r| q[r * q_width..][..q_width].to_vec()).collect();
                let rows = gpu.upload(&rows);
                states.with(gpu, which, |memory| {
                    let bytes = workspace_bytes(which.len(), h, memory.max_len);
                    let workspace = gpu.fresh::<u8>(if splits { bytes } else { 0 });
                    gpu.output(which.len() * q_width, |out| {
                        let (q, space) = (rows.at(), workspace.at());
                        gpu.kernels
                            .state_attention(&gpu.stream, q, memory, h, out, which.len(), space)
                            .unwrap();
                    })
                })
            };
            let all: Vec<usize> = (0..lens.len()).collect();
            let together = run(&all, false);
            same(&format!("{h:?}: in splits"), &run(&all, true), &together);
            for r in &all {
                let want = &together[r * q_width..][..q_width];
                same(&format!("{h:?}: row {r} alone"), &run(&[*r], false), want);
                same(&format!("{h:?}: row {r} alone, in splits"), &run(&[*r], true), want);
            }
            // Two rows of one sequence, and another order.
            let mixed = run(&[3, 1, 3], true);
            let want = [3, 1].map(|r| &together[r * q_width..][..q_width]).concat();
            same("mixed", &mixed[..2 * q_width], &want);
            same("mixed", &mixed[2 * q_width..], &want[..q_width]);
            let want: Vec<f64> = all
                .iter()
                .flat_map(|r| {
                    let [k, v] = states.data[*r].each_ref().map(|d| wide(d));
                    attend(&wide(&q[r * q_width..][..q_width]), &k, &v, h, |_, _, v| v)
                })
                .collect();
            close(&format!("{h:?}"), &together, &want, 2e-5);
        }
    }
}

on_device! {
    fn states_are_attended_to_additively(gpu) {
        for (d, width) in [(21, 10), (64, 150)] {
            let states = States::new(gpu, &LENS, [d, width]);
            let (q, w) = (numbers(1, LENS.len() * d), numbers(2, d));
            let wt = gpu.upload(&w);
            let run = |which: &[usize]| -> Vec<f32> {
                let rows: Vec<f32> = which.iter().flat_map(|r| q[r * d..][..d].to_vec()).collect();
                let rows = gpu.upload(&rows);
                states.with(gpu, which, |memory| {
                    gpu.output(which.len() * width, |out| {
                        let (q, w) = (rows.at(), wt.at());
                        gpu.kernels
                            .additive_attention(&gpu.stream, q, w, memory, out, which.len())
                            .unwrap();
                    })
                })
            };
            let all: Vec<usize> = (0..LENS.len()).collect();
            let together = run(&all);
            let mut want = Vec::new();
            for r in all {
                same("alone", &run(&[r]), &together[r * width..][..width]);
                let [keys, values] = states.data[r].each_ref().map(|x| wide(x));
                let score = |key: &[f64]| -> f64 {
                    (0..d).map(|i| f64::from(w[i]) * (f64::from(q[r * d + i]) + key[i]).tanh()).sum()
                };
                let shares = softmax(&keys.chunks_exact(d).map(score).collect::<Vec<_>>());
                let mut out = vec![0.0; width];
                for (share, value) in shares.iter().zip(values.chunks_exact(width)) {
                    out.iter_mut().zip(value).for_each(|(o, v)| *o += share * v);
                }
                want.extend(out);
            }
            close("additive", &together, &want, 5e-6);
        }
    }
}

on_device! {
    fn state_rows_are_read_back_and_skipped(gpu) {
        for width in [1, 18, 64, 1030] {
            let lens = [20, 3, 33];
            let states = States::new(gpu, &lens, [width; 2]);
            let table = gpu.upload(&states.tables[1]);
            let paged = states.paged(1, table.at());
            let wanted = [(2, 32), (0, 15), (0, 16), (1, -1), (1, 0)];
            let read = |wanted: &[(i32, i32)]| -> Vec<f32> {
                let (s, p): (Vec<i32>, Vec<i32>) = wanted.iter().copied().unzip();
                let (s, p) = (gpu.upload(&s), gpu.upload(&p));
                let places = Places { sequences: s.at(), positions: p.at() };
                gpu.output(wanted.len() * width, |out| {
                    gpu.kernels
                        .seq_read(&gpu.stream, &paged, &places, out, wanted.len())
                        .unwrap();
                })
            };
            let row = |&(s, p): &(i32, i32)| match usize::try_from(p) {
                Ok(p) => states.data[s as usize][1][p * width..][..width].to_vec(),
                Err(_) => vec![0.0; width],
            };
            let want: Vec<f32> = wanted.iter().flat_map(row).collect();
            same("read", &read(&wanted), &want);
            // Row r of sequence r: one is written, one skipped, one zeroed.
            let x = gpu.upload(&vec![7.0f32; 3 * width]);
            for (x, positions) in [(x.at(), [4, -1, -1]), (DevicePtr::NULL, [-1, -1, 1])] {
                let p = gpu.upload(&positions);
                let places = Places { sequences: DevicePtr::NULL, positions: p.at() };
                gpu.kernels.seq_write(&gpu.stream, x, &paged, &places, 3).unwrap();
                gpu.stream.synchronize().unwrap();
            }
            let got = read(&[(0, 4), (2, 1), (1, 0), (0, 5)]);
            same("written", &got[..width], &vec![7.0; width]);
            same("zeroed", &got[width..2 * width], &vec![0.0; width]);
            same("kept", &got[2 * width..], &[row(&(1, 0)), row(&(0, 5))].concat());
        }
    }
}
