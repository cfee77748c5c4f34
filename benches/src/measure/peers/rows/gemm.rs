//! `m` rows times a weight `[k, n]`.

use lazybatch_benches::matmul::Product;
use lazybatch_kernels::cpu::level::Level;
use serde_json::json;

use super::{Named, Own, Row, Side, noise};

/// Inner dimension and columns.
const WEIGHTS: [(usize, usize); 2] = [(1024, 1024), (768, 3072)];

/// 1 to 256 rows by each weight.
pub fn rows() -> Vec<Row> {
    let sizes = WEIGHTS
        .iter()
        .flat_map(|&(k, n)| (0..9).map(move |i| (1 << i, k, n)));
    sizes.map(|(m, k, n)| row(m, k, n)).collect()
}

/// One product.
pub fn row(m: usize, k: usize, n: usize) -> Row {
    let sizes = json!({ "m": m, "k": k, "n": n });
    let build = move |threads| {
        let (x, w) = (noise(2, m * k), noise(1, k * n));
        let product = Product::of(Level::detect(), threads, &w, [k, n], x.clone());
        let named = |name: &str, dims: [usize; 2], data| Named {
            name: name.into(),
            dims: dims.into(),
            data,
        };
        Own {
            side: Side::Product { product, m },
            tensors: vec![named("input.x", [m, k], x), named("weight", [k, n], w)],
            told: json!({}),
            facts: json!({}),
        }
    };
    Row {
        flops: Some((2 * m * k * n) as f64),
        ..Row::new("gemm", sizes, move |setup| Ok(build(setup.threads)))
    }
}
