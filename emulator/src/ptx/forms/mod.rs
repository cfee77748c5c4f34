//! The forms of instructions that compute on registers alone: one table from the full name, with
//! all suffixes, to what it does to a warp.
//!
//! A name that is neither here nor in [`crate::ptx::decode`] fails the loading of its module. The
//! tests walk this table, so every form that is accepted is compared with a host computation.
//!
//! Invariants:
//! 1. A lane of a row holds its value in the low bits, and zeros above.
//! 2. Every result that is not a number has the pattern that the hardware makes, where PTX names
//!    one.

mod bits;
mod compare;
mod convert;
mod dot;
mod float;
mod half;
mod integer;
mod lane;

use std::sync::OnceLock;

use rustc_hash::FxHashMap;

use super::types::Type;
pub use lane::Lane;

/// Threads in a warp.
pub const LANES: usize = 32;
/// One register of a warp, a value per lane.
pub type Row = [u64; LANES];
/// What a form does: four sources, of which it reads its own number, and two results.
type Run = Box<dyn Fn(&[&Row; 4], &mut [Row; 2]) + Send + Sync>;

/// An instruction that computes on registers alone.
pub struct Form {
    /// Name with all suffixes.
    pub name: String,
    /// Types of the results, one or two.
    pub dests: Vec<Type>,
    /// Types of the sources, one to four.
    pub sources: Vec<Type>,
    run: Run,
}

impl Form {
    /// Computes all lanes: `results[i][lane]` from `sources[..][lane]`.
    pub fn run(&self, sources: &[&Row; 4], results: &mut [Row; 2]) {
        (self.run)(sources, results);
    }
}

/// A form being added: its name and its types.
struct Entry<'a> {
    name: String,
    dests: &'a [Type],
    sources: &'a [Type],
}

/// The table while it is made.
#[derive(Default)]
struct Table {
    forms: Vec<Form>,
}

impl Table {
    fn push(&mut self, entry: Entry<'_>, run: Run) {
        self.forms.push(Form {
            name: entry.name,
            dests: entry.dests.to_vec(),
            sources: entry.sources.to_vec(),
            run,
        });
    }

    /// Adds a form of one source.
    fn unary<A: Lane, D: Lane>(
        &mut self,
        name: impl Into<String>,
        types: [Type; 2],
        op: impl Fn(A) -> D + Send + Sync + 'static,
    ) {
        let [d, a] = types;
        let name = name.into();
        let entry = Entry {
            name,
            dests: &[d],
            sources: &[a],
        };
        self.push(
            entry,
            Box::new(move |s, results| {
                for (d, a) in results[0].iter_mut().zip(s[0]) {
                    *d = op(A::of(*a)).bits();
                }
            }),
        );
    }

    /// Adds a form of two sources.
    fn binary<A: Lane, B: Lane, D: Lane>(
        &mut self,
        name: impl Into<String>,
        types: [Type; 3],
        op: impl Fn(A, B) -> D + Send + Sync + 'static,
    ) {
        let [d, a, b] = types;
        let name = name.into();
        let entry = Entry {
            name,
            dests: &[d],
            sources: &[a, b],
        };
        self.push(
            entry,
            Box::new(move |s, results| {
                for (i, d) in results[0].iter_mut().enumerate() {
                    *d = op(A::of(s[0][i]), B::of(s[1][i])).bits();
                }
            }),
        );
    }

    /// Adds a form of three sources.
    fn ternary<A: Lane, B: Lane, C: Lane, D: Lane>(
        &mut self,
        name: impl Into<String>,
        types: [Type; 4],
        op: impl Fn(A, B, C) -> D + Send + Sync + 'static,
    ) {
        let [d, a, b, c] = types;
        let name = name.into();
        let entry = Entry {
            name,
            dests: &[d],
            sources: &[a, b, c],
        };
        self.push(
            entry,
            Box::new(move |s, results| {
                for (i, d) in results[0].iter_mut().enumerate() {
                    *d = op(A::of(s[0][i]), B::of(s[1][i]), C::of(s[2][i])).bits();
                }
            }),
        );
    }

    /// Adds a form of any shape; `op` takes the sources' bits and answers the results'.
    fn general(
        &mut self,
        name: impl Into<String>,
        dests: &[Type],
        sources: &[Type],
        op: impl Fn([u64; 4]) -> [u64; 2] + Send + Sync + 'static,
    ) {
        let (name, num_sources) = (name.into(), sources.len());
        let entry = Entry {
            name,
            dests,
            sources,
        };
        self.push(
            entry,
            Box::new(move |s, results| {
                for i in 0..LANES {
                    let mut values = [0; 4];
                    for (value, row) in values.iter_mut().zip(s).take(num_sources) {
                        *value = row[i];
                    }
                    let [d, e] = op(values);
                    results[0][i] = d;
                    results[1][i] = e;
                }
            }),
        );
    }
}

/// All forms, in the order in which the families add them.
pub fn all() -> &'static [Form] {
    static FORMS: OnceLock<Vec<Form>> = OnceLock::new();
    FORMS.get_or_init(|| {
        let mut table = Table::default();
        integer::add(&mut table);
        bits::add(&mut table);
        dot::add(&mut table);
        float::add(&mut table);
        half::add(&mut table);
        compare::add(&mut table);
        convert::add(&mut table);
        table.forms
    })
}

/// The form of that name.
pub fn find(name: &str) -> Option<&'static Form> {
    static BY_NAME: OnceLock<FxHashMap<&'static str, &'static Form>> = OnceLock::new();
    let by_name = BY_NAME.get_or_init(|| all().iter().map(|f| (f.name.as_str(), f)).collect());
    by_name.get(name).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        let names: std::collections::BTreeSet<_> = all().iter().map(|f| &f.name).collect();
        assert_eq!(names.len(), all().len());
        assert!(find("add.s32").is_some() && find("add.s33").is_none());
    }
}
