//! The GRU encoder-decoder against PyTorch's formulas.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::naive::{Rows, Weights, arg_max, sigmoid, sum};
use crate::{CASES, answers, ids, program};

/// One step of a cell on `h`.
fn step(w: &Weights, side: &str, x: &[f64], h: &[f64]) -> Vec<f64> {
    let part = |matrix: &str, bias: &str, x: &[f64]| -> Vec<f64> {
        let rows: Rows = vec![x.to_vec()];
        let y = w.times(&format!("{side}_{matrix}"), &rows).remove(0);
        sum(&y, &w.flat(&format!("{side}_{bias}")))
    };
    let (a, b) = (part("w_ih", "b_ih", x), part("w_hh", "b_hh", h));
    let n = h.len();
    let one = |i: usize| {
        let r = sigmoid(a[i] + b[i]);
        let z = sigmoid(a[n + i] + b[n + i]);
        let new = (a[2 * n + i] + r * b[2 * n + i]).tanh();
        (1.0 - z) * new + z * h[i]
    };
    (0..n).map(one).collect()
}

#[test]
fn tokens_are_those_of_the_formulas() {
    for seed in 0..CASES {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let (hidden, embed) = (rng.random_range(3..20), rng.random_range(2..12));
        let (from, to) = (rng.random_range(4..20), rng.random_range(4..20));
        let (start, stop) = (rng.random_range(0..to), rng.random_range(0..to));
        let (max_len, steps) = (rng.random_range(2..12), rng.random_range(2..15));
        let mut w = Weights::new(seed);
        for (side, vocab) in [("enc", from), ("dec", to)] {
            w.within(format!("{side}_emb"), &[vocab, embed], -1.0, 1.0);
            w.matrix(format!("{side}_w_ih"), 3 * hidden, embed);
            w.matrix(format!("{side}_w_hh"), 3 * hidden, hidden);
            w.within(format!("{side}_b_ih"), &[3 * hidden], -0.5, 0.5);
            w.within(format!("{side}_b_hh"), &[3 * hidden], -0.5, 0.5);
        }
        w.within("fc_w", &[to, hidden], -2.0, 2.0);
        w.within("fc_b", &[to], -0.5, 0.5);
        let text = format!(
            "format = 'lazybatch-model/1'\nname = 'm'\narchitecture = 'gru-encoder-decoder'\n\
             weights = 'w'\n[sizes]\nhidden = {hidden}\nembed = {embed}\nsource_vocab = {from}\n\
             target_vocab = {to}\nmax_len = {max_len}\n[tokens]\nstart = {start}\nstop = {stop}\n\
             max_steps = {steps}\n"
        );
        let program = program(&text, &w);
        let sources: Vec<Vec<usize>> = (0..5)
            .map(|_| {
                let len = rng.random_range(1..=max_len);
                (0..len).map(|_| rng.random_range(0..from)).collect()
            })
            .collect();
        let requests: Vec<_> = sources.iter().map(|s| vec![ids(s)]).collect();
        for (got, source) in answers(&program, &requests).iter().zip(&sources) {
            let mut h = vec![0.0; hidden];
            for &id in source {
                h = step(&w, "enc", &w.row("enc_emb", id), &h);
            }
            let mut want = vec![start];
            while want.len() <= steps {
                let last = *want.last().unwrap();
                h = step(&w, "dec", &w.row("dec_emb", last), &h);
                let logits = sum(&w.times("fc_w", &vec![h.clone()])[0], &w.flat("fc_b"));
                want.push(arg_max(&logits));
                if want.last() == Some(&stop) {
                    break;
                }
            }
            let got: Vec<usize> = got[0].to_i32().iter().map(|&id| id as usize).collect();
            assert_eq!(got, want[1..], "seed {seed}");
        }
    }
}
