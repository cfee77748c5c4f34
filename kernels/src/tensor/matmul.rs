//! Products of matrices.

use std::collections::BTreeMap;

use lazybatch_graph::onnx::{Array, Error};

use super::index::{broadcast, each_coord, spread, strides, walk};
use super::wide::{Num, Wide};
use super::{Call, OpEntry, Outputs, Types, op};

const NUMBERS: Types = Types::NUMBERS;

/// The ops.
pub const OPS: &[OpEntry] = &[
    op("Det", &[11, 22], Types::FLOATS, det),
    op("Einsum", &[12], NUMBERS, einsum),
    op("Gemm", &[7, 9, 11, 13], NUMBERS, gemm),
    op("MatMul", &[1, 9, 13], NUMBERS, matmul),
];

/// Sizes of a product of stacks of matrices, with numpy's rules for vectors.
pub struct MatDims {
    /// Dimensions of the result.
    pub dims: Vec<usize>,
    /// Which matrix of each operand makes each matrix of the result.
    pairs: Vec<(usize, usize)>,
    m: usize,
    k: usize,
    n: usize,
}

impl MatDims {
    /// The sizes of `a` times `b`.
    pub fn new(call: &Call, a: &[usize], b: &[usize]) -> Result<Self, Error> {
        let bad = || {
            call.bad(
                "inputs",
                "dimensions of a matrix product",
                format!("{a:?}, {b:?}"),
            )
        };
        let (a_lead, m, k) = match a {
            [] => return Err(bad()),
            [k] => (&a[..0], 1, *k),
            [lead @ .., m, k] => (lead, *m, *k),
        };
        let (b_lead, k2, n) = match b {
            [] => return Err(bad()),
            [k] => (&b[..0], *k, 1),
            [lead @ .., k, n] => (lead, *k, *n),
        };
        let lead = broadcast(&[a_lead, b_lead])
            .filter(|_| k == k2)
            .ok_or_else(bad)?;
        let mut full = lead.clone();
        full.extend([m, n]);
        call.num(&full)?;
        call.work(&[call.num(&lead)?, m, k.max(1), n])?;
        let pairs = spread(a_lead, &lead).into_iter().zip(spread(b_lead, &lead));
        let mut dims = lead.clone();
        if a.len() > 1 {
            dims.push(m);
        }
        if b.len() > 1 {
            dims.push(n);
        }
        Ok(Self {
            pairs: pairs.collect(),
            dims,
            m,
            k,
            n,
        })
    }

    /// The product of row-major `a` and `b`.
    pub fn product<T: Num>(&self, a: &[T], b: &[T]) -> Vec<T> {
        let (m, k, n) = (self.m, self.k, self.n);
        let mut y = vec![T::ZERO; self.pairs.len() * m * n];
        for (i, &(at_a, at_b)) in self.pairs.iter().enumerate() {
            let (a, b) = (&a[at_a * m * k..], &b[at_b * k * n..]);
            for row in 0..m {
                let out = &mut y[(i * m + row) * n..(i * m + row + 1) * n];
                for step in 0..k {
                    let left = a[row * k + step];
                    for (acc, &right) in out.iter_mut().zip(&b[step * n..(step + 1) * n]) {
                        *acc = acc.add_mul(left, right);
                    }
                }
            }
        }
        y
    }
}

fn matmul(call: &Call) -> Outputs {
    let (a, b) = (call.x(0)?, call.x(1)?);
    call.expect_elem(1, b, a.elem())?;
    let sizes = MatDims::new(call, a.dims(), b.dims())?;
    let y = match (Wide::of(a), Wide::of(b)) {
        (Wide::F(a), Wide::F(b)) => Wide::F(sizes.product(&a, &b)),
        (Wide::I(a), Wide::I(b)) => Wide::I(sizes.product(&a, &b)),
        _ => return Err(call.bad("inputs", "one element type", format!("{a} and {b}"))),
    };
    Ok(vec![Array::new(sizes.dims.clone(), y.into_data(a.elem()))])
}

fn gemm(call: &Call) -> Outputs {
    let (a, b) = (call.ranked(0, 2)?, call.ranked(1, 2)?);
    call.expect_elem(1, b, a.elem())?;
    let (alpha, beta) = (call.float("alpha", 1.0)?, call.float("beta", 1.0)?);
    let oriented = |x: &Array, name: &str| {
        Ok(if call.flag(name, false)? {
            super::index::transpose(x, &[1, 0])
        } else {
            x.clone()
        })
    };
    let (a, b) = (oriented(a, "transA")?, oriented(b, "transB")?);
    let sizes = MatDims::new(call, a.dims(), b.dims())?;
    let mut y = sizes.product(&a.data().to_f64(), &b.data().to_f64());
    for v in &mut y {
        *v *= alpha;
    }
    if let Some(c) = call.opt(2) {
        call.expect_elem(2, c, a.elem())?;
        if broadcast(&[c.dims(), &sizes.dims]).as_ref() != Some(&sizes.dims) {
            let expected = format!("dimensions that broadcast to {:?}", sizes.dims);
            return Err(call.bad("input 2", expected, c));
        }
        let values = c.data().to_f64();
        for (v, i) in y.iter_mut().zip(spread(c.dims(), &sizes.dims)) {
            *v += beta * values[i];
        }
    }
    Ok(vec![Array::from_f64(a.elem(), sizes.dims, y)])
}

fn det(call: &Call) -> Outputs {
    let x = call.at_least(0, 2)?;
    let [lead @ .., rows, n] = x.dims() else {
        return Err(call.bad("input 0", "matrices", x));
    };
    if rows != n {
        return Err(call.bad("input 0", "square matrices", x));
    }
    call.work(&[x.len(), *n])?;
    let num = call.num(lead)?;
    let mut v = x.data().to_f64();
    let mut y = Vec::with_capacity(num);
    for i in 0..num {
        y.push(det_of(&mut v[i * n * n..(i + 1) * n * n], *n));
    }
    Ok(vec![Array::from_f64(x.elem(), lead.to_vec(), y)])
}

/// Determinant by elimination with the largest pivot.
fn det_of(a: &mut [f64], n: usize) -> f64 {
    let mut det = 1.0;
    for col in 0..n {
        let mut pivot = col;
        for row in col..n {
            if a[row * n + col].abs() > a[pivot * n + col].abs() {
                pivot = row;
            }
        }
        if a[pivot * n + col] == 0.0 {
            return 0.0;
        }
        if pivot != col {
            det = -det;
            for j in 0..n {
                a.swap(pivot * n + j, col * n + j);
            }
        }
        det *= a[col * n + col];
        for row in col + 1..n {
            let factor = a[row * n + col] / a[col * n + col];
            for j in col..n {
                a[row * n + j] -= factor * a[col * n + j];
            }
        }
    }
    det
}

/// Labels of one operand: letters, and digits counted from the right for axes under an ellipsis.
fn labels(call: &Call, term: &str, rank: Option<usize>) -> Result<Vec<String>, Error> {
    let bad = || {
        call.bad(
            "attribute \"equation\"",
            "letters that fit the inputs",
            term,
        )
    };
    let letter = |c: char| {
        c.is_ascii_alphabetic()
            .then(|| c.to_string())
            .ok_or_else(bad)
    };
    let Some((left, right)) = term.split_once("...") else {
        let all = term.chars().map(letter).collect::<Result<Vec<_>, _>>()?;
        return if rank.is_some_and(|r| r != all.len()) {
            Err(bad())
        } else {
            Ok(all)
        };
    };
    let mut all = left.chars().map(letter).collect::<Result<Vec<_>, _>>()?;
    let right = right.chars().map(letter).collect::<Result<Vec<_>, _>>()?;
    let num = match rank {
        Some(rank) => rank.checked_sub(all.len() + right.len()).ok_or_else(bad)?,
        None => 0,
    };
    all.extend((0..num).rev().map(|i| i.to_string()));
    all.extend(right);
    Ok(all)
}

fn einsum(call: &Call) -> Outputs {
    let equation: String = call.text("equation", "")?.split_whitespace().collect();
    let (left, right) = match equation.split_once("->") {
        Some((left, right)) => (left, Some(right)),
        None => (&equation[..], None),
    };
    let terms: Vec<&str> = left.split(',').collect();
    if terms.len() != call.inputs.len() {
        return Err(call.bad("attribute \"equation\"", "one term per input", &equation));
    }
    let elem = call.x(0)?.elem();
    let mut sizes: BTreeMap<String, usize> = BTreeMap::new();
    let mut operands = Vec::new();
    for (i, term) in terms.iter().enumerate() {
        let x = call.x(i)?;
        call.expect_elem(i, x, elem)?;
        let labels = labels(call, term, Some(x.rank()))?;
        for (label, &n) in labels.iter().zip(x.dims()) {
            let size = sizes.entry(label.clone()).or_insert(n);
            if *size == 1 {
                *size = n;
            }
            if n != *size && n != 1 {
                return Err(call.bad(format!("size of {label:?}"), *size, n));
            }
        }
        operands.push((x, labels));
    }
    let is_hidden = |l: &String| l.starts_with(|c: char| c.is_ascii_digit());
    let mut hidden: Vec<String> = sizes.keys().filter(|l| is_hidden(l)).cloned().collect();
    hidden.sort_by_key(|l| std::cmp::Reverse(l.parse::<usize>().unwrap_or(0)));
    let out: Vec<String> = match right {
        Some(right) => {
            let mut out = Vec::new();
            let (a, b) = right.split_once("...").unwrap_or((right, ""));
            out.extend(labels(call, a, None)?);
            if right.contains("...") {
                out.extend(hidden);
            }
            out.extend(labels(call, b, None)?);
            out
        }
        None => {
            let letters = left.replace(['.', ','], "");
            let once = |l: &&String| letters.matches(l.as_str()).count() == 1 && !is_hidden(l);
            hidden
                .iter()
                .chain(sizes.keys().filter(once))
                .cloned()
                .collect()
        }
    };
    if (1..out.len()).any(|i| out[..i].contains(&out[i])) {
        let expected = "each label of the output once";
        return Err(call.bad("attribute \"equation\"", expected, &equation));
    }
    let mut order = out.clone();
    order.extend(sizes.keys().filter(|l| !out.contains(l)).cloned());
    let Some(all) = order
        .iter()
        .map(|l| sizes.get(l).copied())
        .collect::<Option<Vec<_>>>()
    else {
        return Err(call.bad(
            "attribute \"equation\"",
            "outputs from the inputs",
            &equation,
        ));
    };
    let (dims, rest) = (&all[..out.len()], &all[out.len()..]);
    let num = call.num(dims)?;
    let inner = call.num(rest)?;
    call.work(&[num, inner, operands.len()])?;
    // Per operand: where each element of the result and each summed one is found.
    let places: Vec<(Vec<f64>, Vec<usize>, Vec<usize>)> = operands
        .iter()
        .map(|(x, labels)| {
            let own = strides(x.dims());
            let steps: Vec<usize> = order
                .iter()
                .map(|label| {
                    let uses = labels.iter().enumerate().filter(|(_, l)| *l == label);
                    uses.map(|(i, _)| if x.dims()[i] == 1 { 0 } else { own[i] })
                        .sum()
                })
                .collect();
            (
                x.data().to_f64(),
                walk(dims, &steps[..out.len()]),
                walk(rest, &steps[out.len()..]),
            )
        })
        .collect();
    let mut y = Vec::with_capacity(num);
    each_coord(&[num], |at| {
        let product = |k: usize| {
            places
                .iter()
                .map(|(v, o, r)| v[o[at[0]] + r[k]])
                .product::<f64>()
        };
        y.push((0..inner).map(product).sum());
    });
    Ok(vec![Array::from_f64(elem, dims.to_vec(), y)])
}
