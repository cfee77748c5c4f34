//! How much a model file may ask for.

use super::Error;

/// Bounds on what reading and evaluating a model takes, against damaged or hostile files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most bytes of a file.
    pub file_bytes: usize,
    /// Most messages in a file: nodes, their operands and attributes, tensors, graphs.
    pub messages: usize,
    /// Most elements of one tensor.
    pub elems: usize,
    /// Most elements of all values that a run holds at once.
    pub held: usize,
    /// Most nested subgraphs.
    pub depth: usize,
    /// Most nodes evaluated in one run, those of loop bodies counted each time.
    pub node_runs: usize,
    /// Most multiply-adds, or comparable inner steps, of one node.
    pub work: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            file_bytes: 2 << 30,
            messages: 1 << 22,
            elems: 1 << 29,
            held: 1 << 31,
            depth: 16,
            node_runs: 1 << 24,
            work: 1 << 42,
        }
    }
}

impl Limits {
    /// Number of elements of a tensor of `dims`.
    ///
    /// # Errors
    /// [`Error::Invalid`] at `place` if that overflows or is more than the limit.
    pub fn num_elems(&self, place: &str, dims: &[usize]) -> Result<usize, Error> {
        self.bounded(place, "elements", dims, self.elems)
    }

    /// Checks that the product of `factors` inner steps is within the limit.
    ///
    /// # Errors
    /// [`Error::Invalid`] at `place` if it is not.
    pub fn check_work(&self, place: &str, factors: &[usize]) -> Result<(), Error> {
        self.bounded(place, "steps", factors, self.work).map(|_| ())
    }

    fn bounded(
        &self,
        place: &str,
        what: &str,
        factors: &[usize],
        most: usize,
    ) -> Result<usize, Error> {
        // Zeros last: a product of the others that overflows is refused even so.
        let mut product = 1_usize;
        for &n in factors.iter().filter(|&&n| n != 0) {
            product = product
                .checked_mul(n)
                .filter(|&n| n <= most)
                .ok_or_else(|| {
                    let expected = format!("at most {most}");
                    Error::invalid(
                        place,
                        format!("number of {what}"),
                        expected,
                        format!("{factors:?}"),
                    )
                })?;
        }
        Ok(if factors.contains(&0) { 0 } else { product })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_bounded_and_do_not_overflow() {
        let limits = Limits {
            elems: 24,
            ..Limits::default()
        };
        assert_eq!(limits.num_elems("t", &[2, 3, 4]), Ok(24));
        assert_eq!(limits.num_elems("t", &[]), Ok(1));
        assert_eq!(limits.num_elems("t", &[5, 0]), Ok(0));
        let e = limits.num_elems("t", &[5, 5]).unwrap_err().to_string();
        assert_eq!(e, "t: number of elements: expected at most 24, got [5, 5]");
        assert!(limits.num_elems("t", &[usize::MAX, usize::MAX, 0]).is_err());
    }
}
