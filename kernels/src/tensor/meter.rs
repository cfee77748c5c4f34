//! What evaluating a graph may still take of its limits.

use std::cell::Cell;

use lazybatch_graph::onnx::{Error, Limits};

/// Inner steps that a node counts for besides those of its kernel.
const NODE: usize = 1 << 10;

/// Limits, and how much of [`Limits::work`] is left.
#[derive(Clone, Debug)]
pub struct Meter {
    /// The limits.
    pub limits: Limits,
    left: Cell<usize>,
}

impl Meter {
    /// A meter from which nothing is taken yet.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            left: Cell::new(limits.work),
        }
    }

    /// Inner steps that are left.
    pub fn left(&self) -> usize {
        self.left.get()
    }

    /// Takes as many inner steps as the product of `factors`.
    ///
    /// # Errors
    /// [`Error::Invalid`] at `place` if fewer are left.
    pub fn take(&self, place: &str, factors: &[usize]) -> Result<(), Error> {
        let steps = self.limits.num_steps(place, factors)?;
        match self.left.get().checked_sub(steps) {
            Some(left) => {
                self.left.set(left);
                Ok(())
            }
            None => {
                let expected = format!("at most {} in all", self.limits.work);
                let got = format!("{factors:?} more");
                Err(Error::invalid(place, "number of steps", expected, got))
            }
        }
    }

    /// Takes what a node counts for whose results have `elems` elements.
    ///
    /// # Errors
    /// As [`Meter::take`].
    pub fn take_node(&self, place: &str, elems: usize) -> Result<(), Error> {
        self.take(place, &[elems.saturating_add(NODE)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_adds_up() {
        let meter = Meter::new(Limits {
            work: 5000,
            ..Limits::default()
        });
        meter.take("n", &[2, 1000]).unwrap();
        meter.take_node("n", 476).unwrap();
        let e = meter.take_node("n", 500).unwrap_err().to_string();
        assert_eq!(
            e,
            "n: number of steps: expected at most 5000 in all, got [1524] more"
        );
        let e = meter.take("n", &[usize::MAX, 2]).unwrap_err().to_string();
        assert!(e.contains("expected at most 5000, got"), "{e}");
    }
}
