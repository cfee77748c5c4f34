//! What is known of every value of a flat graph: whether a request's data is in it, its element
//! type, and its sizes as functions of batch and length.
//!
//! Sizes are observed, not derived: the graph is evaluated at a few batch sizes and lengths, and
//! each size is a number times powers of the batch and of the length that fits what came. So no op
//! needs a shape rule; the comparison behind an import checks the result at other sizes.
//!
//! A value without data is *known*: it follows from constants and sizes (shape arithmetic, position
//! ids, masks), and can be computed for any batch size and length. What is made of a known value is
//! checked up to the longest sequence and at larger batches ([`Trace::look_up_to`]): what it is at
//! small sizes need not be what it is at others.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use lazybatch_graph::onnx::{Array, Data, Elem, Error, Graph, Limits, Node};
use lazybatch_graph::{Layout, Part};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::axes::Input;
use crate::onnx::evaluate;
use crate::tensor::{Call, Meter};

/// Batch sizes at which sizes are observed.
const BATCHES: [usize; 2] = [2, 3];
/// Lengths at which sizes are observed.
pub(super) const LENGTHS: [usize; 2] = [5, 7];
/// Shorter lengths at which known values are checked, where they can be computed.
const SHORT: [usize; 3] = [1, 2, 3];
/// Longer ones are these, powers of two from 16 on, the longest and one less.
const LONGER: usize = 11;
/// Batch sizes at which known values are checked, where they can be computed.
const CHECKED_BATCHES: [usize; 4] = [2, 3, 16, 256];

/// A size: `k * batch^b * len^s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    /// The number.
    pub k: usize,
    /// Power of the batch.
    pub b: u32,
    /// Power of the length.
    pub s: u32,
}

impl Size {
    /// The size 1.
    pub const ONE: Self = Self { k: 1, b: 0, s: 0 };

    /// The size at that batch and length; what is too large for a number is the largest.
    pub fn at(self, batch: usize, len: usize) -> usize {
        let power = batch
            .saturating_pow(self.b)
            .saturating_mul(len.saturating_pow(self.s));
        self.k.saturating_mul(power)
    }
}

/// What an input that a request does not bring always holds.
#[derive(Clone, Debug)]
pub(super) struct Filled {
    /// Element type.
    pub elem: Elem,
    /// Axes.
    pub layout: Layout,
    /// The length instead of ones.
    pub is_length: bool,
}

/// A value with data.
#[derive(Clone, Debug)]
pub(super) struct Fact {
    /// Element type.
    pub elem: Elem,
    /// Sizes of its axes; `None` where no power fits.
    pub sizes: Vec<Option<Size>>,
}

/// Known values at one batch size and length.
type Values = Rc<BTreeMap<String, Array>>;

/// All that is known of a graph.
pub(super) struct Trace<'g> {
    /// The flat graph.
    pub graph: &'g Graph,
    /// Its opset.
    pub opset: i64,
    /// What a request brings.
    pub inputs: Vec<Input>,
    meter: &'g Meter,
    filled: BTreeMap<String, Filled>,
    data: BTreeSet<String>,
    /// Values that a node or the graph's outputs read.
    read: BTreeSet<&'g str>,
    facts: BTreeMap<String, Fact>,
    /// Lengths at which known values are checked, from short to long.
    lengths: Vec<usize>,
    /// Batch sizes above 1 at which they are checked.
    batches: Vec<usize>,
    /// What a request's numbers are drawn from.
    ranges: Ranges,
    /// Known values that somebody asks for, once that is known.
    wanted: Option<BTreeSet<&'g str>>,
    sized: RefCell<BTreeMap<(usize, usize), Values>>,
}

/// Most sizes whose known values are kept.
const MOST_SIZES: usize = 64;

/// `layout` with that many samples and positions; what is too large for a number is the largest.
pub(super) fn dims_at(layout: &Layout, batch: usize, len: usize) -> Vec<usize> {
    let size = |p: &Part| match p {
        Part::Batch => batch,
        Part::Len => len,
        Part::Fixed(n) => *n,
    };
    let axes = layout.0.iter();
    let product = |axis: &Vec<Part>| axis.iter().map(size).fold(1, usize::saturating_mul);
    axes.map(product).collect()
}

/// A random tensor for an input: floats uniform in `[-1, 1)`, ids below their bound, 2 without one.
///
/// # Errors
/// More elements than the limits allow.
pub(super) fn random(
    input: &Input,
    at: (usize, usize),
    limits: &Limits,
    rng: &mut impl Rng,
) -> Result<Array, Error> {
    random_within(&Ranges::default(), input, at, limits, rng)
}

/// What random elements are drawn from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ranges {
    /// Floats: the least, and what they are below.
    pub floats: (f32, f32),
    /// What whole numbers without a bound are at least, and what they are below.
    pub least: usize,
    /// See there.
    pub open: usize,
}

impl Ranges {
    /// Without whole numbers that are zero, for graphs that divide by them.
    pub const NO_ZEROS: Self = Self {
        floats: (-1.0, 1.0),
        least: 1,
        open: 3,
    };
}

impl Default for Ranges {
    fn default() -> Self {
        Self {
            floats: (-1.0, 1.0),
            least: 0,
            open: 2,
        }
    }
}

/// As [`random`], with elements from `ranges`, whole numbers within their type.
///
/// # Errors
/// As [`random`].
pub(super) fn random_within(
    ranges: &Ranges,
    input: &Input,
    (batch, len): (usize, usize),
    limits: &Limits,
    rng: &mut impl Rng,
) -> Result<Array, Error> {
    let dims = dims_at(&input.layout, batch, len);
    let num = limits.num_elems(&format!("input {}", input.name), &dims)?;
    if input.elem.is_float() {
        let (least, below) = ranges.floats;
        let values = (0..num).map(|_| f64::from(rng.random_range(least..below)));
        return Ok(Array::from_f64(input.elem, dims, values.collect()));
    }
    let most = input.elem.int_range().map_or(1, |(_, most)| most);
    let open = (ranges.open as i128).min(most + 1);
    let bound = input.id_bound.map_or(open, |n| n as i128).max(1);
    let least = match input.id_bound {
        None => (ranges.least as i128).min(bound - 1),
        Some(_) => 0,
    };
    let values = (0..num).map(|_| i128::from(rng.random_range(least as i64..bound as i64)));
    let data = Data::from_i128(input.elem, values.collect());
    Ok(Array::new(dims, data))
}

/// The tensor of the input `name` that a request does not bring.
///
/// # Errors
/// More elements than the limits allow.
pub(super) fn fill(
    name: &str,
    filled: &Filled,
    (batch, len): (usize, usize),
    limits: &Limits,
) -> Result<Array, Error> {
    let dims = dims_at(&filled.layout, batch, len);
    let num = limits.num_elems(&format!("input {name}"), &dims)?;
    let value = if filled.is_length { len as i128 } else { 1 };
    let data = Data::from_i128(filled.elem, vec![value; num]);
    Ok(Array::new(dims, data))
}

impl<'g> Trace<'g> {
    /// Observes `graph`, whose inputs are `inputs` and `filled`.
    ///
    /// # Errors
    /// What the evaluation refuses.
    pub fn of(
        graph: &'g Graph,
        opset: i64,
        meter: &'g Meter,
        inputs: Vec<Input>,
        filled: BTreeMap<String, Filled>,
    ) -> Result<Self, Error> {
        let mut data: BTreeSet<String> = inputs.iter().map(|i| i.name.clone()).collect();
        for node in &graph.nodes {
            let sized = matches!(node.op.as_str(), "Shape" | "Size");
            if !sized && node.inputs.iter().any(|n| data.contains(n)) {
                let named = node.outputs.iter().filter(|n| !n.is_empty());
                data.extend(named.cloned());
            }
        }
        let operands = graph.nodes.iter().flat_map(|n| &n.inputs);
        let outputs = graph.outputs.iter().map(|o| &o.name);
        let mut trace = Self {
            graph,
            opset,
            inputs,
            meter,
            filled,
            data,
            read: operands.chain(outputs).map(String::as_str).collect(),
            facts: BTreeMap::new(),
            lengths: LENGTHS.to_vec(),
            batches: Vec::new(),
            ranges: Ranges::default(),
            wanted: None,
            sized: RefCell::default(),
        };
        if let Err(e) = trace.observe() {
            // A divisor may not be zero.
            trace.ranges = Ranges::NO_ZEROS;
            trace.facts.clear();
            trace.observe().map_err(|_| e)?;
        }
        Ok(trace)
    }

    /// Chooses the sizes at which known values are checked, for sequences of at most `most`
    /// positions. Short sequences and large batches at which they cannot be computed are left out.
    pub fn look_up_to(&mut self, most: usize) {
        let mut lengths = vec![1];
        if self.has_len() {
            let short = SHORT.iter().filter(|&&n| n <= most);
            lengths = short.copied().collect();
            lengths.retain(|&len| self.sized(1, len).is_ok());
            let powers = (4..usize::BITS - 1).map(|i| 1 << i);
            let longer = [LONGER, most.saturating_sub(1), most];
            let longer = powers.take_while(|&n| n < most).chain(longer);
            lengths.extend(longer.filter(|&n| n > LENGTHS[0] && n <= most));
            lengths.extend(LENGTHS);
            lengths.sort_unstable();
            lengths.dedup();
        }
        let mut batches = CHECKED_BATCHES.to_vec();
        let len = self.base_len();
        batches.retain(|&batch| self.has_batch() && self.sized(batch, len).is_ok());
        let readers = self.graph.nodes.iter();
        let readers = readers.filter(|n| n.outputs.iter().any(|o| self.data.contains(o)));
        let outputs = self.graph.outputs.iter().map(|o| &o.name);
        let wanted = readers.flat_map(|n| &n.inputs).chain(outputs);
        self.wanted = Some(wanted.map(String::as_str).collect());
        self.lengths = lengths;
        self.batches = batches;
        // What is kept of the sizes so far has more values than are asked for from now on.
        self.sized.borrow_mut().clear();
    }

    /// Lengths at which known values are checked, from short to long; one where nothing counts
    /// positions.
    pub fn lengths(&self) -> &[usize] {
        &self.lengths
    }

    /// Batch sizes above 1 at which they are checked.
    pub fn batches(&self) -> &[usize] {
        &self.batches
    }

    /// All batch sizes and lengths at which known values are checked.
    pub fn sizes(&self) -> impl Iterator<Item = (usize, usize)> {
        let lengths = self.lengths.iter().map(|&len| (1, len));
        let batches = self.batches.iter();
        lengths.chain(batches.map(|&batch| (batch, self.base_len())))
    }

    /// The length at which other batch sizes are looked at.
    fn base_len(&self) -> usize {
        if self.has_len() { LENGTHS[0] } else { 1 }
    }

    /// Whether any input holds samples.
    pub fn has_batch(&self) -> bool {
        let mut parts = self.inputs.iter().flat_map(|i| i.layout.parts());
        parts.any(|p| p == Part::Batch)
    }

    /// Whether any input holds a sequence.
    pub fn has_len(&self) -> bool {
        self.inputs.iter().any(|i| i.layout.has_len())
    }

    /// Whether a value with a request's data has elements of that type.
    pub fn has_elem(&self, elem: Elem) -> bool {
        self.facts.values().any(|fact| fact.elem == elem)
    }

    /// Whether a request's data is in the value.
    pub fn is_data(&self, name: &str) -> bool {
        self.data.contains(name)
    }

    /// Whether a table of those sizes that is made of the value `name` is within the limits.
    ///
    /// # Errors
    /// The sizes and the limit.
    pub fn check_elems(&self, name: &str, dims: &[usize]) -> Result<(), String> {
        let place = format!("value {name}");
        let num = self.meter.limits.num_elems(&place, dims);
        num.map(|_| ()).map_err(|e| e.to_string())
    }

    /// Whether a node or the graph's outputs read the value.
    pub fn is_read(&self, name: &str) -> bool {
        self.read.contains(name)
    }

    /// Whether every value with data is within the limits at one sample of `len` positions; scores of
    /// positions by positions are no values of a program.
    pub fn fits(&self, len: usize) -> bool {
        let limits = &self.meter.limits;
        self.facts.values().all(|fact| {
            let sizes: Option<Vec<Size>> = fact.sizes.iter().copied().collect();
            sizes.is_none_or(|sizes| {
                let dims: Vec<usize> = sizes.iter().map(|s| s.at(1, len)).collect();
                let is_square = sizes.iter().map(|s| s.s).sum::<u32>() > 1;
                is_square || limits.num_elems("", &dims).is_ok()
            })
        })
    }

    /// What is known of a value with data.
    pub fn fact(&self, name: &str) -> Option<&Fact> {
        self.facts.get(name)
    }

    fn observe(&mut self) -> Result<(), Error> {
        let batches = if self.has_batch() { BATCHES } else { [1, 1] };
        let lengths = if self.has_len() { LENGTHS } else { [1, 1] };
        let at = |batch, len| {
            self.probe(batch, len).map_err(|e| {
                let what = format!("run at batch {batch}, length {len}");
                let expected = "one for any batch and length: an export with dynamic axes for both, and \
                                --size for other open axes";
                Error::invalid("graph", what, expected, e)
            })
        };
        let base = at(batches[0], lengths[0])?;
        let wide = match self.has_batch() {
            true => at(batches[1], lengths[0])?,
            false => base.clone(),
        };
        let long = match self.has_len() {
            true => at(batches[0], lengths[1])?,
            false => base.clone(),
        };
        for (name, (elem, dims)) in base {
            let (Some((_, wide)), Some((_, long))) = (wide.get(&name), long.get(&name)) else {
                continue;
            };
            let same_rank = wide.len() == dims.len() && long.len() == dims.len();
            let sizes = dims.iter().enumerate().map(|(i, &n)| {
                let all = [n, *wide.get(i)?, *long.get(i)?];
                fit(all, batches, lengths).filter(|_| same_rank)
            });
            let sizes = sizes.collect();
            self.facts.insert(name, Fact { elem, sizes });
        }
        Ok(())
    }

    /// Element types and sizes of all values with data, at one batch size and length.
    fn probe(
        &self,
        batch: usize,
        len: usize,
    ) -> Result<BTreeMap<String, (Elem, Vec<usize>)>, Error> {
        let mut rng = ChaCha8Rng::seed_from_u64(17);
        let mut values = BTreeMap::new();
        let limits = &self.meter.limits;
        for input in &self.inputs {
            let array = random_within(&self.ranges, input, (batch, len), limits, &mut rng)?;
            values.insert(input.name.clone(), array);
        }
        for (name, filled) in &self.filled {
            let array = fill(name, filled, (batch, len), limits)?;
            values.insert(name.clone(), array);
        }
        let mut held: usize = values.values().map(Array::len).sum();
        let mut last_use: BTreeMap<&str, usize> = BTreeMap::new();
        for (i, node) in self.graph.nodes.iter().enumerate() {
            for name in &node.inputs {
                last_use.insert(name, i);
            }
        }
        let mut seen = BTreeMap::new();
        let mut note = |name: &String, array: &Array| {
            if self.data.contains(name) {
                seen.insert(name.clone(), (array.elem(), array.dims().to_vec()));
            }
        };
        values.iter().for_each(|(name, array)| note(name, array));
        for (i, node) in self.graph.nodes.iter().enumerate() {
            for (name, array) in node.outputs.iter().zip(self.node(node, &values)?) {
                note(name, &array);
                held = held.saturating_add(array.len());
                values.insert(name.clone(), array);
            }
            if held > limits.held {
                let place = format!("node {} ({})", node.name, node.op);
                let expected = format!("at most {}", limits.held);
                return Err(Error::invalid(place, "elements held", expected, held));
            }
            for name in &node.inputs {
                if last_use.get(name.as_str()) == Some(&i) {
                    let freed = values.remove(name).map_or(0, |a| a.len());
                    held = held.saturating_sub(freed);
                }
            }
        }
        Ok(seen)
    }

    fn node(&self, node: &Node, values: &BTreeMap<String, Array>) -> Result<Vec<Array>, Error> {
        let mut inputs = Vec::with_capacity(node.inputs.len());
        for name in &node.inputs {
            let value = values
                .get(name)
                .or_else(|| self.graph.initializers.get(name));
            if value.is_none() && !name.is_empty() {
                let place = format!("node {} ({})", node.name, node.op);
                return Err(Error::invalid(
                    place,
                    format!("input {name}"),
                    "a value",
                    "none",
                ));
            }
            inputs.push(value);
        }
        evaluate(&Call {
            node,
            opset: self.opset,
            inputs,
            meter: self.meter,
        })
    }

    /// A known value at one batch size and length; `None` if data is in it.
    ///
    /// # Errors
    /// What its evaluation refuses: a length that a table does not have, for one.
    pub fn known(&self, name: &str, batch: usize, len: usize) -> Result<Option<Array>, Error> {
        if let Some(array) = self.graph.initializers.get(name) {
            return Ok(Some(array.clone()));
        }
        if self.is_data(name) {
            return Ok(None);
        }
        Ok(self.sized(batch, len)?.get(name).cloned())
    }

    fn sized(&self, batch: usize, len: usize) -> Result<Values, Error> {
        if let Some(values) = self.sized.borrow().get(&(batch, len)) {
            return Ok(Rc::clone(values));
        }
        let mut values = BTreeMap::new();
        let limits = &self.meter.limits;
        for (name, filled) in &self.filled {
            let array = fill(name, filled, (batch, len), limits)?;
            values.insert(name.clone(), array);
        }
        for node in &self.graph.nodes {
            if node.outputs.iter().any(|n| self.data.contains(n)) {
                continue;
            }
            // Only the sizes of data are read here: elements of a byte stand for it.
            let data = node.inputs.first().filter(|n| self.data.contains(*n));
            if let Some(name) = data {
                let sizes = self.facts.get(name).map_or(&[][..], |f| &f.sizes);
                let dims: Option<Vec<usize>> =
                    sizes.iter().map(|s| s.map(|s| s.at(batch, len))).collect();
                let dims = dims.ok_or_else(|| {
                    let expected = "sizes that are numbers times batch and length";
                    Error::invalid(format!("value {name}"), "sizes", expected, "others")
                })?;
                let num = limits.num_elems(&format!("value {name}"), &dims)?;
                values.insert(name.clone(), Array::new(dims, Data::zeros(Elem::Bool, num)));
            }
            let results = self.node(node, &values)?;
            if let Some(name) = data {
                values.remove(name);
            }
            for (name, array) in node.outputs.iter().zip(results) {
                values.insert(name.clone(), array);
            }
        }
        if let Some(wanted) = &self.wanted {
            values.retain(|name, _| wanted.contains(name.as_str()));
        }
        let values = Rc::new(values);
        let mut sized = self.sized.borrow_mut();
        if sized.len() == MOST_SIZES {
            sized.clear();
        }
        sized.insert((batch, len), Rc::clone(&values));
        Ok(values)
    }

    /// A known value that is the same at all sizes that are checked.
    pub fn constant(&self, name: &str) -> Option<Array> {
        if let Some(array) = self.graph.initializers.get(name) {
            return Some(array.clone());
        }
        let mut sizes = self.sizes();
        let (batch, len) = sizes.next()?;
        let first = self.known(name, batch, len).ok()??;
        let same = |(batch, len)| {
            let values = self.sized(batch, len);
            values.is_ok_and(|values| values.get(name).is_some_and(|v| v.is_same(&first)))
        };
        sizes.all(same).then_some(first)
    }
}

/// The size that is `n[0]` at the first batch and length, `n[1]` at the second batch, `n[2]` at the
/// second length.
fn fit(n: [usize; 3], batches: [usize; 2], lengths: [usize; 2]) -> Option<Size> {
    (0..=1_u32)
        .flat_map(|b| (0..=1_u32).map(move |s| (b, s)))
        .find_map(|(b, s)| {
            let unit = batches[0].pow(b) * lengths[0].pow(s);
            let size = Size {
                k: n[0] / unit,
                b,
                s,
            };
            let fits = n[0].is_multiple_of(unit)
                && size.at(batches[1], lengths[0]) == n[1]
                && size.at(batches[0], lengths[1]) == n[2];
            fits.then_some(size)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_numbers_times_batch_and_length() {
        let at = |f: fn(usize, usize) -> usize| fit([f(2, 5), f(3, 5), f(2, 7)], BATCHES, LENGTHS);
        let size = |k, b, s| Some(Size { k, b, s });
        assert_eq!(at(|_, _| 1), size(1, 0, 0));
        assert_eq!(at(|_, _| 10), size(10, 0, 0));
        assert_eq!(at(|b, _| 12 * b), size(12, 1, 0));
        assert_eq!(at(|_, s| s), size(1, 0, 1));
        assert_eq!(at(|b, s| b * s), size(1, 1, 1));
        assert_eq!(at(|_, s| s - 1), None);
        assert_eq!(at(|_, s| s.div_ceil(2)), None);
        assert_eq!(at(|_, s| s * s), None);
        assert_eq!(at(|_, _| 0), size(0, 0, 0));
    }
}
