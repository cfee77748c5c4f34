//! Compares a program with the graph that it was made of: at two small sizes, and where the graph is
//! small enough, at a larger batch, at a long sequence, and on larger whole numbers.

use std::collections::BTreeMap;

use lazybatch_graph::onnx::{Array, Elem, Error, Limits, Model};
use lazybatch_graph::{DType, Layout, Part, Tensor};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::axes::Input;
use super::compiled::{Compiled, Samples};
use super::trace::{Filled, LENGTHS, Ranges, dims_at, fill, random_within};
use crate::cpu::{CpuDevice, CpuOptions};
use crate::onnx::Interpreter;
use crate::tensor::Meter;

/// Largest difference, relative to the largest magnitude in the tensor.
pub const TOLERANCE: f64 = 1e-4;

/// Batch sizes and lengths at which both are run.
const SIZES: [(usize, usize); 2] = [(1, 6), (3, 9)];
/// A larger batch, which is run at the shorter of these lengths.
const LARGER_BATCH: usize = 17;
/// Most inner steps that the interpreter takes for a run at larger sizes, by those that it took.
const LARGER_WORK: usize = 1 << 27;
/// Largest difference at larger sizes: in floats of 32 bits, what a long sequence sums up or hands on
/// strays further.
const FAR_TOLERANCE: f64 = 1e-2;
/// What floats are drawn from: the first of these, and the others where that leaves elements that are
/// never finite, as a logarithm of what is below zero does.
pub(super) const FLOATS: [(f32, f32); 4] = [(-1.0, 1.0), (0.0, 1.0), (1.0, 2.0), (-1.0, 0.0)];
/// Magnitude of the floats that graphs in f64 get besides.
const LARGE: f32 = 1e3;
/// What whole numbers without a bound are below, where larger ones than 0 and 1 are tried.
const LARGER_NUMBERS: [usize; 3] = [8, 64, 4096];

/// Elements of a tensor by sample, each sample's as packed rows.
///
/// # Errors
/// A tensor of other dimensions than its axes have at that size.
pub(super) fn by_sample(
    place: &str,
    array: &Array,
    layout: &Layout,
    (batch, len): (usize, usize),
) -> Result<Vec<Vec<f64>>, Error> {
    let dims = dims_at(layout, batch, len);
    if array.dims() != dims {
        let what = format!("dimensions at batch {batch}, length {len}");
        return Err(Error::invalid(place, what, format!("{dims:?}"), array));
    }
    let parts: Vec<Part> = layout.parts().collect();
    let row = layout.row_elems();
    let rows = if layout.has_len() { len } else { 1 };
    let mut samples = vec![vec![0.0; rows * row]; batch];
    for (at, value) in array.data().to_f64().into_iter().enumerate() {
        let (mut rest, mut fixed, mut stride) = (at, 0, 1);
        let (mut sample, mut position) = (None, 0);
        for part in parts.iter().rev() {
            match *part {
                Part::Batch => {
                    sample = Some(rest % batch);
                    rest /= batch;
                }
                Part::Len => {
                    position = rest % len;
                    rest /= len;
                }
                Part::Fixed(n) => {
                    fixed += rest % n * stride;
                    stride *= n;
                    rest /= n;
                }
            }
        }
        let to = position * row + fixed;
        match sample {
            Some(sample) => samples[sample][to] = value,
            // What no sample owns is every sample's.
            None => samples.iter_mut().for_each(|s| s[to] = value),
        }
    }
    Ok(samples)
}

/// A sample's rows as a request brings them.
pub(super) fn as_input(values: &[f64], dtype: DType, layout: &Layout, len: usize) -> Tensor {
    let lead = if layout.has_len() { len } else { 1 };
    let dims: Vec<usize> = std::iter::once(lead).chain(layout.fixed()).collect();
    if dtype.is_float() {
        let values: Vec<f32> = values.iter().map(|&v| v as f32).collect();
        Tensor::from_f32(&dims, &values)
    } else {
        let values: Vec<i32> = values.iter().map(|&v| v as i32).collect();
        Tensor::from_i32(&dims, &values)
    }
}

/// Elements of an output.
pub(super) fn elements(tensor: &Tensor) -> Vec<f64> {
    if tensor.dtype.is_float() {
        tensor.to_f32().into_iter().map(f64::from).collect()
    } else {
        tensor.to_i32().into_iter().map(f64::from).collect()
    }
}

/// Where and how much two lists differ most, relative to the largest finite magnitude of `expected`.
/// What is infinite or no number on one side and not the same on the other differs without end.
fn worst(expected: &[f64], got: &[f64]) -> (usize, f64) {
    let finite = expected.iter().filter(|v| v.is_finite());
    let scale = finite.fold(1e-6_f64, |m, v| m.max(v.abs()));
    let mut worst = (0, 0.0);
    for (i, (e, g)) in expected.iter().zip(got).enumerate() {
        let far = if e.is_finite() && g.is_finite() {
            (e - g).abs() / scale
        } else if e == g || e.is_nan() && g.is_nan() {
            0.0
        } else {
            f64::INFINITY
        };
        if far > worst.1 {
            worst = (i, far);
        }
    }
    worst
}

/// The embedded device, within the limits.
pub(super) fn device(limits: &Limits) -> CpuDevice {
    CpuDevice::new(CpuOptions {
        threads: 1,
        max_open: LARGER_BATCH,
        state_bytes: limits.held.saturating_mul(size_of::<f32>()),
        ..CpuOptions::default()
    })
}

/// What a comparison needs to know of the graph.
pub(super) struct Compared<'a> {
    /// The model as it was read.
    pub model: &'a Model,
    /// What requests do not bring.
    pub filled: &'a BTreeMap<String, Filled>,
    /// Values of inputs that are always the same.
    pub fixed: &'a BTreeMap<String, Array>,
    /// Most positions.
    pub max_len: usize,
    /// Whether there is a batch axis, and a sequence.
    pub has: (bool, bool),
    /// Whether the graph computes in f64.
    pub is_f64: bool,
}

/// Runs both on random inputs at two batch sizes and lengths, until all elements were finite once or
/// there are no other inputs, and where that takes the interpreter at most [`LARGER_WORK`], at a batch
/// and a sequence that are larger. Whole numbers without a bound are 0 and 1, and then larger, where
/// the graph takes such and the program can hold what it makes of them.
///
/// Gives the least number of positions at which both run, of those that are small, and what to note.
///
/// # Errors
/// The output and element that differ most; an output that is finite for none of [`FLOATS`].
pub(super) fn compare(
    c: &Compared<'_>,
    compiled: &Compiled,
    meter: &Meter,
) -> Result<(usize, Option<String>), Error> {
    let run = Comparison {
        c,
        compiled,
        interpreter: Interpreter::new(c.model, meter.limits)?,
        meter,
    };
    let sized = |(batch, len): (usize, usize)| {
        (
            if c.has.0 { batch } else { 1 },
            if c.has.1 { len.min(c.max_len) } else { 0 },
        )
    };
    let mut rng = ChaCha8Rng::seed_from_u64(31);
    let mut taken = 0;
    // Elements that were finite at the last size, where there are several samples, which a graph might
    // mix: what never is says nothing.
    let mut told = vec![Vec::new(); compiled.outputs.len()];
    let mut ranges = Ranges::default();
    let probe = run.given(&ranges, sized(SIZES[0]), &mut ChaCha8Rng::seed_from_u64(30))?;
    if run.interpreted(&probe, sized(SIZES[0])).is_err() {
        // A divisor may not be zero.
        ranges = Ranges::NO_ZEROS;
    }
    let mut most = (0, ranges.floats);
    for floats in FLOATS {
        ranges.floats = floats;
        let mut expected = Vec::new();
        for at in SIZES.map(sized) {
            let left = meter.left();
            let given = run.given(&ranges, at, &mut rng)?;
            expected = run.interpreted(&given, at)?;
            run.at(&given, &expected, at, TOLERANCE)?;
            taken = (left - meter.left()).div_ceil(at.0);
        }
        let mut num = 0;
        for (told, expected) in told.iter_mut().zip(&expected) {
            told.resize(expected.len(), false);
            for (told, v) in told.iter_mut().zip(expected.data().to_f64()) {
                num += usize::from(v.is_finite());
                *told |= v.is_finite();
            }
        }
        if num > most.0 {
            most = (num, floats);
        }
        if told.iter().flatten().all(|told| *told) {
            break;
        }
    }
    let never = |told: &Vec<bool>| !told.is_empty() && !told.contains(&true);
    if let Some(i) = told.iter().position(never) {
        return Err(never_finite(format!("output {}", compiled.outputs[i].name)));
    }
    ranges.floats = most.1;
    let may_take = |steps: usize| steps <= LARGER_WORK.min(meter.left() / 4);
    let [(_, short), (_, long)] = SIZES;
    if c.has.0 && may_take(taken.saturating_mul(LARGER_BATCH)) {
        let at = sized((LARGER_BATCH, short));
        let given = run.given(&ranges, at, &mut rng)?;
        run.at(&given, &run.interpreted(&given, at)?, at, FAR_TOLERANCE)?;
    }
    if c.has.1 {
        // Attention takes steps by the square of the length; nothing that is compiled takes more.
        let times = |len: usize| len.div_ceil(long).saturating_pow(2);
        let halves = std::iter::successors(Some(c.max_len), |len| Some(len / 2));
        let mut longer = halves.take_while(|&len| len > long);
        if let Some(len) = longer.find(|&len| may_take(taken.saturating_mul(times(len)))) {
            let given = run.given(&ranges, (1, len), &mut rng)?;
            let expected = run.interpreted(&given, (1, len)).map_err(|e| {
                let expected = "one, or a smaller --max-len where the graph ends before";
                Error::invalid("graph", format!("run at length {len}"), expected, e)
            })?;
            run.at(&given, &expected, (1, len), FAR_TOLERANCE)?;
        }
    }
    let is_open = |i: &Input| !i.elem.is_float() && i.id_bound.is_none() && i.elem != Elem::Bool;
    for open in LARGER_NUMBERS {
        if !compiled.inputs.iter().any(is_open) || !may_take(taken.saturating_mul(3)) {
            break;
        }
        let at = sized(SIZES[1]);
        let given = run.given(&Ranges { open, ..ranges }, at, &mut rng)?;
        // Numbers that a graph itself does not take may be places in something small; what the program
        // cannot hold, its launches refuse. Floats made of them differ by how they are rounded.
        let Ok(expected) = run.interpreted(&given, at) else {
            break;
        };
        let Ok(results) = run.results(&given, at) else {
            break;
        };
        run.compared(&expected, &results, at, f64::INFINITY)?;
    }
    let mut note = None;
    if c.is_f64 {
        let at = sized(SIZES[0]);
        let floats = (-LARGE, LARGE);
        let given = run.given(&Ranges { floats, ..ranges }, at, &mut rng)?;
        if let Ok(expected) = run.interpreted(&given, at)
            && let Err(e) = run.at(&given, &expected, at, FAR_TOLERANCE)
        {
            note = Some(format!("with inputs up to {LARGE}, f32 is not f64: {e}"));
        }
    }
    let least = match c.has.1 {
        true => run.least(&ranges, &mut rng),
        false => 1,
    };
    Ok((least, note))
}

/// A program beside its graph.
struct Comparison<'a> {
    c: &'a Compared<'a>,
    compiled: &'a Compiled,
    interpreter: Interpreter<'a>,
    meter: &'a Meter,
}

impl Comparison<'_> {
    /// Random inputs of a request.
    fn given(
        &self,
        ranges: &Ranges,
        at: (usize, usize),
        rng: &mut ChaCha8Rng,
    ) -> Result<BTreeMap<String, Array>, Error> {
        let mut given = BTreeMap::new();
        for input in &self.compiled.inputs {
            let array = random_within(ranges, input, at, &self.meter.limits, rng)?;
            given.insert(input.name.clone(), array);
        }
        Ok(given)
    }

    /// What the graph gives for them.
    fn interpreted(
        &self,
        given: &BTreeMap<String, Array>,
        at: (usize, usize),
    ) -> Result<Vec<Array>, Error> {
        let mut given = given.clone();
        for (name, filled) in self.c.filled {
            given.insert(name.clone(), fill(name, filled, at, &self.meter.limits)?);
        }
        given.extend(self.c.fixed.clone());
        let infos = self.c.model.graph.inputs.iter();
        let inputs = infos.map(|i| given.remove(&i.name)).collect();
        self.interpreter.run_metered(inputs, self.meter)
    }

    /// What the program gives for them, by sample.
    fn results(
        &self,
        given: &BTreeMap<String, Array>,
        at: (usize, usize),
    ) -> Result<Samples, Error> {
        let mut device = device(&self.meter.limits);
        self.compiled.run_samples(&mut device, given, at)
    }

    /// The least length from which on both run, of those below the lengths at which sizes are observed.
    fn least(&self, ranges: &Ranges, rng: &mut ChaCha8Rng) -> usize {
        let mut least = LENGTHS[0].min(self.c.max_len);
        while least > 1 {
            let at = (1, least - 1);
            let runs = self.given(ranges, at, rng).and_then(|given| {
                self.interpreted(&given, at)?;
                self.results(&given, at)
            });
            if runs.is_err() {
                break;
            }
            least -= 1;
        }
        least
    }

    /// Compares what the program gives with what the graph gave.
    fn at(
        &self,
        given: &BTreeMap<String, Array>,
        expected: &[Array],
        at: (usize, usize),
        tolerance: f64,
    ) -> Result<(), Error> {
        self.compared(expected, &self.results(given, at)?, at, tolerance)
    }

    /// Whole numbers must be the same, floats within `tolerance`.
    fn compared(
        &self,
        expected: &[Array],
        results: &Samples,
        (batch, len): (usize, usize),
        tolerance: f64,
    ) -> Result<(), Error> {
        let at = format!("at batch {batch}, length {len}");
        for (i, output) in self.compiled.outputs.iter().enumerate() {
            let place = format!("output {}", output.name);
            let wanted = by_sample(&place, &expected[i], &output.layout, (batch, len))?;
            let far = if output.elem.is_float() {
                tolerance
            } else {
                0.0
            };
            for (sample, (wanted, got)) in wanted.iter().zip(results).enumerate() {
                let at = format!("{at}, sample {sample}");
                within(far, &place, &at, wanted, &got[i])?;
            }
        }
        Ok(())
    }
}

/// The refusal of an output that is never finite.
pub(super) fn never_finite(place: String) -> Error {
    let expected = "a finite one for some of the inputs that were tried";
    Error::invalid(place, "elements", expected, "none")
}

/// Refuses lists that differ by more than `tolerance`.
pub(super) fn within(
    tolerance: f64,
    place: &str,
    at: &str,
    wanted: &[f64],
    got: &[f64],
) -> Result<(), Error> {
    if wanted.len() != got.len() {
        let expected = format!("{} elements", wanted.len());
        return Err(Error::invalid(place, at, expected, got.len()));
    }
    let (worst, far) = worst(wanted, got);
    if far <= tolerance {
        return Ok(());
    }
    let what = format!("{at}, element {worst}");
    let got = match far.is_finite() {
        true => format!("{} ({far:.1e} of the largest magnitude)", got[worst]),
        false => got[worst].to_string(),
    };
    Err(Error::invalid(place, what, wanted[worst], got))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_infinite_or_no_number_is_in_the_same_places() {
        let (inf, nan) = (f64::INFINITY, f64::NAN);
        assert_eq!(worst(&[inf, 4.0], &[inf, 5.0]), (1, 0.25));
        assert_eq!(worst(&[1.0, -inf], &[1.0, 5.0]), (1, inf));
        assert_eq!(worst(&[inf], &[-inf]), (0, inf));
        assert_eq!(worst(&[2.0, nan], &[2.0, 3.0]), (1, inf));
        assert_eq!(worst(&[2.0, 3.0], &[2.0, nan]), (1, inf));
        assert_eq!(worst(&[nan, -inf, 2.0], &[nan, -inf, 2.0]), (0, 0.0));
    }

    #[test]
    fn whole_numbers_are_the_same_or_refused() {
        let e = within(0.0, "output y", "at batch 1", &[1e6, 7.0], &[1e6, 8.0]);
        let e = e.unwrap_err().to_string();
        assert!(
            e.contains("at batch 1, element 1: expected 7, got 8"),
            "{e}"
        );
    }
}
