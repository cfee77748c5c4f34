//! What graphs add to the scores of attention by position: masks, relative position biases (MPNet, T5),
//! slopes (ALiBi), sliding windows.
//!
//! All of them are one table: what a score gets by how far its key is behind its query. A softmax does
//! not see what is added to all scores of a row, so terms that count positions from one end are such
//! tables too.
//!
//! Source: Raffel et al. 2020 (T5), Press et al. 2022 (ALiBi), Beltagy et al. 2020 (sliding windows).

use lazybatch_graph::Seen;
use lazybatch_graph::onnx::Array;

/// Up to this a mask hides: the most that exporters write. Scores of trained models are far smaller, and
/// what is 100 below the largest of a row has no weight in it.
pub(super) const HIDDEN: f64 = -1e4;
/// What hides and is above this is told of: scores may come near it.
pub(super) const SURELY_HIDDEN: f64 = -1e6;
/// Differences of f32 numbers are off by so much of their magnitude.
const ROUNDED: f64 = 4.0 * f32::EPSILON as f64;

/// What is added to scores by the distance of a key from its query.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::import) struct ByDistance {
    /// A row for each head, or one for all heads: distances from the earliest key's to the latest's, 0 in
    /// the middle. Minus infinity where keys are hidden.
    rows: Vec<Vec<f64>>,
    /// The largest number that hides.
    pub least_hidden: f64,
}

/// A known operand beside scores, at one length.
pub(super) struct Beside<'a> {
    /// Its elements.
    pub array: &'a Array,
    /// What is added for an element.
    pub to: &'a dyn Fn(f64) -> f64,
    /// Sizes of the scores' axes before those of queries and keys, for one sample.
    pub lead: &'a [usize],
    /// Positions.
    pub len: usize,
}

/// Whether numbers, or infinities, are apart by no more than `rounded`.
fn is_same(a: f64, b: f64, rounded: f64) -> bool {
    a == b || (a - b).abs() <= rounded
}

impl Beside<'_> {
    /// Steps of the operand along the axes of scores; none where it does not go with them.
    fn strides(&self) -> Option<Vec<usize>> {
        let sizes = [self.lead, &[self.len, self.len]].concat();
        let dims = self.array.dims();
        let extra = sizes.len().checked_sub(dims.len())?;
        let mut strides = vec![0; sizes.len()];
        let mut stride = 1;
        for (axis, &n) in dims.iter().enumerate().rev() {
            if n != 1 {
                if n != sizes[axis + extra] {
                    return None;
                }
                strides[axis + extra] = stride;
            }
            stride *= n;
        }
        Some(strides)
    }

    /// Elements as what is added.
    fn values(&self) -> Vec<f64> {
        let values = self.array.data().to_f64().into_iter();
        values.map(self.to).collect()
    }

    /// Its table; none where the operand depends on more than the distance. With `is_relative` it counts
    /// from what a query adds for its own key.
    pub fn table(&self, is_relative: bool) -> Option<ByDistance> {
        let strides = self.strides()?;
        let (of_lead, of_square) = strides.split_at(self.lead.len());
        let &[row_step, step] = of_square else {
            return None;
        };
        let is_shared = of_lead.iter().all(|s| *s == 0);
        let heads = if is_shared {
            1
        } else {
            self.lead.iter().product()
        };
        let values = self.values();
        let shown = values.iter().filter(|v| v.is_finite() && **v > HIDDEN);
        let most = shown.fold(1.0_f64, |most, v| most.max(v.abs()));
        let rounded = if is_relative { ROUNDED * most } else { 0.0 };
        let mut made = ByDistance {
            rows: Vec::with_capacity(heads),
            least_hidden: f64::NEG_INFINITY,
        };
        for head in 0..heads {
            let (mut from, mut rest) = (0, head);
            for (n, stride) in self.lead.iter().zip(of_lead).rev() {
                from += rest % n * stride;
                rest /= n;
            }
            let at = |query: usize, key: usize| values[from + query * row_step + key * step];
            let mut row = vec![f64::NAN; 2 * self.len - 1];
            for query in 0..self.len {
                let own = if is_relative { at(query, query) } else { 0.0 };
                if own.is_nan() || own.abs() > -SURELY_HIDDEN {
                    return None;
                }
                for key in 0..self.len {
                    let mut v = at(query, key) - own;
                    if v.is_nan() || v == f64::INFINITY {
                        return None;
                    }
                    if v <= HIDDEN {
                        made.least_hidden = made.least_hidden.max(v);
                        v = f64::NEG_INFINITY;
                    }
                    // The first of a distance says what all others are.
                    let first = &mut row[self.len - 1 + key - query];
                    if first.is_nan() {
                        *first = v;
                    }
                    if !is_same(*first, v, rounded) {
                        return None;
                    }
                }
            }
            made.rows.push(row);
        }
        Some(made)
    }
}

/// The table of an operand whose form at each length `at` gives, longest first.
///
/// # Errors
/// What `at` refuses; the length at which it depends on more than the distance, or is another table.
pub(super) fn table(
    name: &str,
    lengths: &[usize],
    at: impl Fn(usize, bool) -> Result<Option<ByDistance>, String>,
) -> Result<ByDistance, String> {
    let mut differs = 0;
    for is_relative in [false, true] {
        let mut longest: Option<ByDistance> = None;
        let mut fails = None;
        for &len in lengths.iter().rev() {
            match (&mut longest, at(len, is_relative)?) {
                (None, found @ Some(_)) => longest = found,
                (Some(all), Some(found)) if all.begins(&found, is_relative) => {
                    all.least_hidden = all.least_hidden.max(found.least_hidden);
                }
                _ => {
                    fails = Some(len);
                    break;
                }
            }
        }
        match (longest, fails) {
            (Some(table), None) if table.hides_own() => {
                return Err(format!("its mask {name} hides positions from themselves"));
            }
            (Some(table), None) => return Ok(table),
            (_, len) => differs = len.unwrap_or(differs),
        }
    }
    // The least length at which it is no such table tells which --max-len would do.
    for &len in lengths {
        if at(len, false)?.is_none() && at(len, true)?.is_none() {
            differs = len;
            break;
        }
    }
    Err(format!(
        "its mask {name} depends on more than the head and how far a key is behind its query, at length \
         {differs}"
    ))
}

impl ByDistance {
    /// Positions of the longest sequence.
    fn longest(&self) -> usize {
        self.rows[0].len().div_ceil(2)
    }

    /// What head `head` adds at a distance, 0 being the `longest() - 1`st.
    fn row(&self, head: usize) -> &[f64] {
        &self.rows[if self.rows.len() == 1 { 0 } else { head }]
    }

    /// Whether a table of shorter sequences is the middle of this one.
    fn begins(&self, short: &Self, is_relative: bool) -> bool {
        let skipped = self.longest() - short.longest();
        let finite = |v: &&f64| v.is_finite();
        self.rows.len().max(short.rows.len()) == self.rows.len()
            && self.rows.iter().enumerate().all(|(head, row)| {
                let short = short.row(head);
                let most = row
                    .iter()
                    .filter(finite)
                    .fold(1.0_f64, |m, v| m.max(v.abs()));
                let rounded = if is_relative {
                    2.0 * ROUNDED * most
                } else {
                    0.0
                };
                let middle = &row[skipped..][..short.len()];
                let mut both = middle.iter().zip(short);
                both.all(|(a, b)| is_same(*a, *b, rounded))
            })
    }

    /// Whether it adds nothing.
    pub fn is_nothing(&self) -> bool {
        self.rows.iter().flatten().all(|v| *v == 0.0)
    }

    fn hides_own(&self) -> bool {
        let own = self.longest() - 1;
        self.rows.iter().any(|row| row[own] == f64::NEG_INFINITY)
    }

    /// Whether it hides all that `other` does.
    pub fn hides_all_of(&self, other: &Self) -> bool {
        (0..self.rows.len().max(other.rows.len())).all(|head| {
            let mut both = self.row(head).iter().zip(other.row(head));
            both.all(|(a, b)| *a == f64::NEG_INFINITY || *b != f64::NEG_INFINITY)
        })
    }

    /// Both, one added to the other.
    pub fn plus(&self, other: &Self) -> Self {
        let heads = self.rows.len().max(other.rows.len());
        let row = |head| {
            let both = self.row(head).iter().zip(other.row(head));
            both.map(|(a, b)| a + b).collect()
        };
        Self {
            rows: (0..heads).map(row).collect(),
            least_hidden: self.least_hidden.max(other.least_hidden),
        }
    }

    /// All of it times a number; none where that shows what is hidden.
    pub fn times(&self, factor: f64) -> Option<Self> {
        let row = |row: &Vec<f64>| row.iter().map(|v| v * factor).collect();
        (factor > 0.0 && factor.is_finite()).then(|| Self {
            rows: self.rows.iter().map(row).collect(),
            least_hidden: self.least_hidden,
        })
    }

    /// For sequences of up to `max_len` positions: what a query sees, and a bias `[heads, 2 max_len - 1]`
    /// where those that it sees do not all get the same.
    pub fn split(&self, heads: usize, max_len: usize) -> (Seen, Option<Vec<f32>>) {
        let own = self.longest() - 1;
        let hidden = |at: usize| self.rows.iter().all(|row| row[at] == f64::NEG_INFINITY);
        let causal = max_len > 1 && (1..max_len).all(|d| hidden(own + d));
        let is_near = |d: &usize| !hidden(own - d) || !(causal || hidden(own + d));
        let farthest = (0..max_len).rev().find(is_near).unwrap_or(0);
        let seen = Seen {
            causal,
            window: (farthest + 1 < max_len).then_some(farthest),
        };
        // Distances that are seen.
        let from = own - farthest;
        let to = if causal { own } else { own + farthest };
        let is_even = |row: &Vec<f64>| row[from..=to].iter().all(|v| *v == row[own]);
        if self.rows.iter().all(is_even) {
            return (seen, None);
        }
        let mut bias = Vec::with_capacity(heads * (2 * max_len - 1));
        for head in 0..heads {
            let row = self.row(head);
            let first = own + 1 - max_len;
            let one = |at: usize| match (from..=to).contains(&at) {
                true => row[at] as f32,
                false => 0.0,
            };
            bias.extend((first..first + 2 * max_len - 1).map(one));
        }
        (seen, Some(bias))
    }
}
