//! Gates of recurrent cells.

use lazybatch_cuda::DevicePtr;
use lazybatch_cuda::kernels::recurrent::{GruGates, LstmGates, StateRows};
use lazybatch_kernels::reference::math::sigmoid;

use crate::harness::{alone_as_together, close, numbers, on_device, pick, same};

const ROWS: usize = 5;
/// Rows of the pool that rows come from and go to; the third has no effect.
const FROM: [i32; ROWS] = [3, 0, 6, 1, 5];
const TO: [i32; ROWS] = [3, 0, -1, 1, 5];
const POOL: usize = 7;

on_device! {
    fn lstm_gates_update_their_cells(gpu) {
        for hidden in [1, 18, 300] {
            let gates = numbers(1, ROWS * 4 * hidden);
            let recurrent = numbers(2, ROWS * 4 * hidden);
            let (bias, cells) = (numbers(3, 4 * hidden), numbers(4, POOL * hidden));
            let bt = gpu.upload(&bias);
            for (apart, keeps_hidden) in [(true, true), (false, false)] {
                let name = format!("lstm of {hidden}, {apart}");
                // Output, cell and hidden state of each row.
                let got = alone_as_together(&name, ROWS, 3 * hidden, |which| {
                    let num = which.len();
                    let g = gpu.upload(&pick(&gates, 4 * hidden, which));
                    let r = gpu.upload(&pick(&recurrent, 4 * hidden, which));
                    let (from, to) = (pick(&FROM, 1, which), pick(&TO, 1, which));
                    let (ft, tt) = (gpu.upload(&from), gpu.upload(&to));
                    let pool = gpu.upload(&cells);
                    let hidden_pool = gpu.upload(&vec![9.0f32; POOL * hidden]);
                    let out: Vec<f32> = gpu.output(num * hidden, |out| {
                        let args = LstmGates {
                            gates: g.at(),
                            recurrent: if apart { r.at() } else { DevicePtr::NULL },
                            bias: bt.at(),
                            cells: StateRows { pool: pool.at(), from: ft.at(), to: tt.at() },
                            hidden_pool: if keeps_hidden { hidden_pool.at() } else { DevicePtr::NULL },
                            out,
                            rows: num,
                            hidden,
                        };
                        gpu.kernels.lstm_gates(&gpu.stream, &args).unwrap();
                    });
                    let pool: Vec<f32> = gpu.download(&pool, POOL * hidden);
                    let kept: Vec<f32> = gpu.download(&hidden_pool, POOL * hidden);
                    // What has no row of the launch stays.
                    for row in (0..POOL).filter(|r| !to.contains(&(*r as i32))) {
                        same("stays", &pick(&pool, hidden, &[row]), &pick(&cells, hidden, &[row]));
                        assert!(pick(&kept, hidden, &[row]).iter().all(|v| *v == 9.0));
                    }
                    let row = |(i, from): (usize, &i32)| {
                        let at = [*from as usize];
                        [&out[i * hidden..][..hidden], &pick(&pool, hidden, &at), &pick(&kept, hidden, &at)].concat()
                    };
                    from.iter().enumerate().flat_map(row).collect()
                });
                let mut want = Vec::new();
                for r in 0..ROWS {
                    let old = pick(&cells, hidden, &[FROM[r] as usize]);
                    let gate = |g: usize, j: usize| {
                        let at = (r * 4 + g) * hidden + j;
                        let more = if apart { f64::from(recurrent[at]) } else { 0.0 };
                        f64::from(gates[at]) + more + f64::from(bias[g * hidden + j])
                    };
                    let cell = |j: usize| {
                        sigmoid(gate(1, j)) * f64::from(old[j]) + sigmoid(gate(0, j)) * gate(2, j).tanh()
                    };
                    let h: Vec<f64> = (0..hidden).map(|j| sigmoid(gate(3, j)) * cell(j).tanh()).collect();
                    let has_effect = TO[r] >= 0;
                    want.extend_from_slice(&h);
                    want.extend((0..hidden).map(|j| if has_effect { cell(j) } else { f64::from(old[j]) }));
                    want.extend(h.iter().map(|h| if has_effect && keeps_hidden { *h } else { 9.0 }));
                }
                close(&name, &got, &want, 2e-6);
            }
        }
    }
}

on_device! {
    fn gru_gates_update_their_states(gpu) {
        for hidden in [1, 18, 300] {
            let (x, h) = (numbers(1, ROWS * 3 * hidden), numbers(2, ROWS * 3 * hidden));
            let (bx, bh) = (numbers(3, 3 * hidden), numbers(4, 3 * hidden));
            let old = numbers(5, POOL * hidden);
            let (bxt, bht) = (gpu.upload(&bx), gpu.upload(&bh));
            for has_bias in [true, false] {
                let name = format!("gru of {hidden}, {has_bias}");
                let got = alone_as_together(&name, ROWS, 2 * hidden, |which| {
                    let num = which.len();
                    let xt = gpu.upload(&pick(&x, 3 * hidden, which));
                    let ht = gpu.upload(&pick(&h, 3 * hidden, which));
                    let from = pick(&FROM, 1, which);
                    let (ft, tt) = (gpu.upload(&from), gpu.upload(&pick(&TO, 1, which)));
                    let pool = gpu.upload(&old);
                    let or_null = |at| if has_bias { at } else { DevicePtr::NULL };
                    let out: Vec<f32> = gpu.output(num * hidden, |out| {
                        let args = GruGates {
                            gates: xt.at(),
                            bias: or_null(bxt.at()),
                            recurrent: ht.at(),
                            recurrent_bias: or_null(bht.at()),
                            states: StateRows { pool: pool.at(), from: ft.at(), to: tt.at() },
                            out,
                            rows: num,
                            hidden,
                        };
                        gpu.kernels.gru_gates(&gpu.stream, &args).unwrap();
                    });
                    let pool: Vec<f32> = gpu.download(&pool, POOL * hidden);
                    let row = |(i, from): (usize, &i32)| {
                        let state = pick(&pool, hidden, &[*from as usize]);
                        [&out[i * hidden..][..hidden], &state].concat()
                    };
                    from.iter().enumerate().flat_map(row).collect()
                });
                let mut want = Vec::new();
                for r in 0..ROWS {
                    let before = pick(&old, hidden, &[FROM[r] as usize]);
                    let bias = |b: &[f32], at: usize| if has_bias { f64::from(b[at]) } else { 0.0 };
                    let at = |g: usize, j: usize| (r * 3 + g) * hidden + j;
                    let xs = |g: usize, j: usize| f64::from(x[at(g, j)]) + bias(&bx, g * hidden + j);
                    let hs = |g: usize, j: usize| f64::from(h[at(g, j)]) + bias(&bh, g * hidden + j);
                    let next = |j: usize| {
                        let reset = sigmoid(xs(0, j) + hs(0, j));
                        let update = sigmoid(xs(1, j) + hs(1, j));
                        let fresh = (xs(2, j) + reset * hs(2, j)).tanh();
                        (1.0 - update) * fresh + update * f64::from(before[j])
                    };
                    let next: Vec<f64> = (0..hidden).map(next).collect();
                    want.extend_from_slice(&next);
                    let kept = |j: usize| if TO[r] >= 0 { next[j] } else { f64::from(before[j]) };
                    want.extend((0..hidden).map(kept));
                }
                close(&name, &got, &want, 2e-6);
            }
        }
    }
}

on_device! {
    fn packed_states_need_no_tables(gpu) {
        let hidden = 18;
        let x = numbers(1, ROWS * 3 * hidden);
        let old = numbers(5, ROWS * hidden);
        let (xt, pool) = (gpu.upload(&x), gpu.upload(&old));
        let null = DevicePtr::NULL;
        let out: Vec<f32> = gpu.output(ROWS * hidden, |out| {
            let args = GruGates {
                gates: xt.at(),
                bias: null,
                recurrent: xt.at(),
                recurrent_bias: null,
                states: StateRows { pool: pool.at(), from: null, to: null },
                out,
                rows: ROWS,
                hidden,
            };
            gpu.kernels.gru_gates(&gpu.stream, &args).unwrap();
        });
        let states: Vec<f32> = gpu.download(&pool, ROWS * hidden);
        same("states", &states, &out);
        assert!(states.iter().zip(&old).any(|(s, o)| s != o));
    }
}
