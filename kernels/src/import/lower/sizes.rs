//! Whether results have the sizes that were observed at other batch sizes and lengths too.
//!
//! Sizes are observed at a few small batches and lengths, where a cut at 100 cuts nothing and a
//! window of 100 is there once. So ops whose sizes do not just grow with those of their operands are
//! computed on sizes alone, at all that are checked.

use lazybatch_graph::onnx::Node;

use super::{Lower, axis_of, int, ints};
use crate::import::trace::{LENGTHS, Size};

/// A batch beyond all that anybody runs: what a stated number cuts off, it cuts off here. Larger ones
/// stand for no end at all.
const LARGEST_BATCH: usize = 1 << 15;

impl Lower<'_> {
    /// Refuses a node whose results have other sizes at a larger batch or length than those that
    /// were observed say, and one whose known operands depend on the batch in steps.
    pub(super) fn check_sizes(&self, node: &Node) -> Result<(), String> {
        for name in node.inputs.iter().filter(|n| !n.is_empty()) {
            self.check_batch(name)?;
        }
        match node.op.as_str() {
            "Slice" | "Split" | "Reshape" | "Expand" | "Tile" => self.check_moved(node),
            "Conv" | "MaxPool" | "AveragePool" | "LpPool" | "Upsample" => self.check_strides(node),
            "Resize" if self.absent(node, 3) => self.check_strides(node),
            "TfIdfVectorizer" => self.check_words(node),
            _ => Ok(()),
        }
    }

    /// Numbers of a known operand must grow evenly with the batch, or not at all.
    fn check_batch(&self, name: &str) -> Result<(), String> {
        let trace = self.trace;
        if trace.is_data(name) || trace.graph.initializers.contains_key(name) {
            return Ok(());
        }
        let len = if trace.has_len() { LENGTHS[0] } else { 1 };
        let at = |batch| {
            let value = trace.known(name, batch, len).map_err(|e| e.to_string())?;
            value.ok_or_else(|| format!("operand {name} is not known"))
        };
        let batches = trace.batches();
        let Some(&second) = batches.first() else {
            return Ok(());
        };
        let (one, two) = (at(1)?, at(second)?);
        if one.dims() != two.dims() {
            // A value for each sample; what depends on its size is checked where that is read.
            return Ok(());
        }
        let (a, b) = (one.data().to_f64(), two.data().to_f64());
        for &batch in &batches[1..] {
            let value = at(batch)?;
            let even = value.dims() == one.dims()
                && value.data().to_f64().iter().enumerate().all(|(i, v)| {
                    if a[i] == b[i] || a[i].is_nan() {
                        return *v == a[i] || v.is_nan() && a[i].is_nan();
                    }
                    let step = (b[i] - a[i]) / (second - 1) as f64;
                    let wanted = a[i] + step * (batch - 1) as f64;
                    (v - wanted).abs() <= 1e-6 * wanted.abs()
                });
            if !even {
                return Err(format!("operand {name} is another at batch {batch}"));
            }
        }
        Ok(())
    }

    /// Sizes of results of ops that move elements.
    fn check_moved(&self, node: &Node) -> Result<(), String> {
        let Some(x) = node.inputs.first().and_then(|n| self.trace.fact(n)) else {
            return Ok(());
        };
        let Some(sizes) = x.sizes.iter().copied().collect::<Option<Vec<Size>>>() else {
            return Ok(());
        };
        let numbers = node.inputs.iter().skip(1).filter(|n| !n.is_empty());
        let constant = |name: &String| self.trace.graph.initializers.contains_key(name);
        let is_constant = numbers.clone().all(constant);
        let grows = sizes.iter().any(|s| s.b > 0);
        let far = (is_constant && grows).then_some((LARGEST_BATCH, LENGTHS[0]));
        for (batch, len) in self.trace.sizes().chain(far) {
            // Shorter sequences than those that are observed may be too short for a cut; a run says
            // so.
            if self.trace.has_len() && len < LENGTHS[0] {
                continue;
            }
            let x: Vec<usize> = sizes.iter().map(|s| s.at(batch, len)).collect();
            let Some(all) = self.moved(node, &x, (batch, len))? else {
                return Ok(());
            };
            for (name, dims) in node.outputs.iter().zip(all) {
                let Some(fact) = self.trace.fact(name) else {
                    continue;
                };
                let seen = fact.sizes.iter().map(|s| s.map(|s| s.at(batch, len)));
                let same = fact.sizes.len() == dims.len()
                    && seen
                        .clone()
                        .zip(&dims)
                        .all(|(s, &n)| s.is_none_or(|s| s == n));
                if !same {
                    let shown: Vec<String> = seen
                        .map(|s| s.map_or("?".into(), |s| s.to_string()))
                        .collect();
                    return Err(format!(
                        "result {name} at batch {batch}, length {len}: expected [{}] as at smaller \
                         ones, got {dims:?}",
                        shown.join(", ")
                    ));
                }
            }
        }
        Ok(())
    }

    /// Dimensions of the results of an op that moves elements of a value with the dimensions `x`; none
    /// where a request's data decides them.
    fn moved(
        &self,
        node: &Node,
        x: &[usize],
        (batch, len): (usize, usize),
    ) -> Result<Option<Vec<Vec<usize>>>, String> {
        let numbers = |name: &str, i: usize| -> Result<Option<Vec<i64>>, String> {
            if let Some(v) = ints(node, name) {
                return Ok(Some(v.to_vec()));
            }
            if self.absent(node, i) {
                return Ok(None);
            }
            let value = self.trace.known(&node.inputs[i], batch, len);
            let value = value.map_err(|e| e.to_string())?;
            let all = value.map(|v| v.data().to_i128().into_iter());
            let most = i128::from(i64::MAX);
            Ok(all.map(|all| all.map(|v| v.clamp(-most, most) as i64).collect()))
        };
        let data = |i: usize| node.inputs.get(i).is_some_and(|n| self.trace.is_data(n));
        if (1..node.inputs.len()).any(data) {
            return Ok(None);
        }
        let dims = match node.op.as_str() {
            "Slice" => {
                let (starts, ends) = (numbers("starts", 1)?, numbers("ends", 2)?);
                let (axes, steps) = (numbers("axes", 3)?, numbers("", 4)?);
                starts
                    .zip(ends)
                    .and_then(|(s, e)| sliced(x, &s, &e, axes, steps))
            }
            "Split" => {
                let axis = axis_of(int(node, "axis", 0), x.len());
                let sizes = numbers("split", 1)?;
                let num = int(node, "num_outputs", node.outputs.len() as i64);
                let all = axis.and_then(|axis| split(x, axis, sizes, num));
                return Ok(all);
            }
            "Reshape" => {
                let keeps_zero = int(node, "allowzero", 0) != 0;
                numbers("shape", 1)?.and_then(|to| reshaped(x, &to, keeps_zero))
            }
            "Expand" => numbers("", 1)?.and_then(|to| expanded(x, &to)),
            _ => numbers("", 1)?.and_then(|times| {
                let times = times.iter().map(|&n| usize::try_from(n).ok());
                let times = times.collect::<Option<Vec<usize>>>()?;
                let each = x.iter().zip(&times).map(|(n, t)| n.saturating_mul(*t));
                (times.len() == x.len()).then(|| each.collect())
            }),
        };
        Ok(dims.map(|dims| vec![dims]))
    }

    /// Words of one sample must not be counted with those of another, which random ones do not show.
    fn check_words(&self, node: &Node) -> Result<(), String> {
        let x = node.inputs.first().and_then(|n| self.trace.fact(n));
        match x.and_then(|x| x.sizes.last().copied().flatten()) {
            Some(size) if size.b > 0 => Err("counts words along the batch".into()),
            _ => Ok(()),
        }
    }

    /// Windows along a sequence must leave it one: a fixed number of them is that of short ones.
    fn check_strides(&self, node: &Node) -> Result<(), String> {
        let fact = |names: &[String]| self.trace.fact(names.first()?);
        let (Some(x), Some(y)) = (fact(&node.inputs), fact(&node.outputs)) else {
            return Ok(());
        };
        let grows = |size: &Option<Size>| size.is_some_and(|s| s.s > 0);
        for (axis, (from, to)) in x.sizes.iter().zip(&y.sizes).enumerate().skip(2) {
            if grows(from) && to.is_some() && !grows(to) {
                return Err(format!(
                    "axis {axis} of its result does not grow with the sequence where that is short"
                ));
            }
        }
        Ok(())
    }
}

/// Dimensions of a slice.
fn sliced(
    x: &[usize],
    starts: &[i64],
    ends: &[i64],
    axes: Option<Vec<i64>>,
    steps: Option<Vec<i64>>,
) -> Option<Vec<usize>> {
    let num = starts.len();
    let axes = axes.unwrap_or_else(|| (0..num as i64).collect());
    let steps = steps.unwrap_or_else(|| vec![1; num]);
    if [ends.len(), axes.len(), steps.len()] != [num; 3] {
        return None;
    }
    let mut dims = x.to_vec();
    for k in 0..num {
        let axis = axis_of(axes[k], x.len())?;
        let n = i64::try_from(x[axis]).ok()?;
        let wrap = |v: i64| if v < 0 { v.saturating_add(n) } else { v };
        let (low, high) = if steps[k] > 0 { (0, n) } else { (-1, n - 1) };
        let place = |v: i64| wrap(v).clamp(low, high.max(low));
        let (start, end) = (place(starts[k]), place(ends[k]));
        let apart = if steps[k] > 0 {
            end - start
        } else {
            start - end
        };
        let step = steps[k].unsigned_abs();
        dims[axis] = (apart.max(0) as u64).div_ceil(step.max(1)) as usize;
    }
    Some(dims)
}

/// Dimensions of the parts along `axis`: of stated sizes, or `num` equal ones but for the last.
fn split(x: &[usize], axis: usize, sizes: Option<Vec<i64>>, num: i64) -> Option<Vec<Vec<usize>>> {
    let n = x[axis];
    let sizes: Vec<usize> = match sizes {
        Some(sizes) => {
            let sizes = sizes.iter().map(|&n| usize::try_from(n).ok());
            sizes.collect::<Option<_>>()?
        }
        None => {
            let num = usize::try_from(num).ok().filter(|&n| n > 0)?;
            let each = n.div_ceil(num);
            (0..num)
                .map(|i| each.min(n.saturating_sub(i.saturating_mul(each))))
                .collect()
        }
    };
    let part = |size: usize| {
        let mut dims = x.to_vec();
        dims[axis] = size;
        dims
    };
    Some(sizes.into_iter().map(part).collect())
}

/// Dimensions under the shape `to`.
fn reshaped(x: &[usize], to: &[i64], keeps_zero: bool) -> Option<Vec<usize>> {
    let mut dims = Vec::with_capacity(to.len());
    for (i, &n) in to.iter().enumerate() {
        dims.push(match n {
            -1 => 1,
            0 if !keeps_zero => *x.get(i)?,
            n => usize::try_from(n).ok()?,
        });
    }
    let product = |dims: &[usize]| {
        dims.iter()
            .map(|&n| n as u128)
            .fold(1, u128::saturating_mul)
    };
    if let Some(open) = to.iter().position(|&n| n == -1) {
        let rest = product(&dims).max(1);
        dims[open] = usize::try_from(product(x) / rest).ok()?;
    }
    Some(dims)
}

/// Dimensions of `x` broadcast to the shape `to`.
fn expanded(x: &[usize], to: &[i64]) -> Option<Vec<usize>> {
    let rank = x.len().max(to.len());
    let from_end = |i: usize, len: usize| (i + len).checked_sub(rank);
    (0..rank)
        .map(|i| {
            let own = from_end(i, x.len()).map_or(1, |i| x[i]);
            let wanted = from_end(i, to.len()).map_or(1, |i| to[i]);
            let wanted = usize::try_from(wanted).ok()?;
            Some(if own == 1 { wanted } else { own })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_are_those_of_the_kernel() {
        let cut = |n, start, end, step| sliced(&[n], &[start], &[end], None, Some(vec![step]));
        assert_eq!(cut(7, 0, 100, 1), Some(vec![7]));
        assert_eq!(cut(512, 0, 100, 1), Some(vec![100]));
        assert_eq!(cut(512, -16, i64::MAX, 1), Some(vec![16]));
        assert_eq!(cut(7, -16, i64::MAX, 1), Some(vec![7]));
        assert_eq!(cut(7, -1, i64::MIN + 1, -2), Some(vec![4]));
        assert_eq!(cut(7, 5, 2, 1), Some(vec![0]));
    }

    #[test]
    fn shapes_are_those_of_the_kernels() {
        assert_eq!(reshaped(&[2, 3, 4], &[0, -1], false), Some(vec![2, 12]));
        assert_eq!(expanded(&[3, 1], &[2, 1, 5]), Some(vec![2, 3, 5]));
        let parts = split(&[5, 2], 0, None, 2);
        assert_eq!(parts, Some(vec![vec![3, 2], vec![2, 2]]));
    }
}
