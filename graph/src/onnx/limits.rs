//! How much a model file may ask for.

use std::fmt;
use std::str::FromStr;

use super::Error;

/// Most dimensions of a tensor.
pub const MAX_RANK: usize = 64;

/// Bounds on what reading, evaluating and importing a model takes, against damaged or hostile files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most bytes of a file.
    pub file_bytes: usize,
    /// Most messages in a file: nodes, their operands and attributes, tensors, graphs.
    pub messages: usize,
    /// Most elements of one tensor that a file holds.
    pub stored: usize,
    /// Most elements of one tensor that is computed, or made for an input.
    pub elems: usize,
    /// Most elements of all values that a run holds at once.
    pub held: usize,
    /// Most nested subgraphs.
    pub depth: usize,
    /// Most nodes of a graph whose branches and loops are put in place, one after another.
    pub nodes: usize,
    /// Most nodes evaluated in one run, those of loop bodies counted each time.
    pub node_runs: usize,
    /// Most multiply-adds, or comparable inner steps, of one run; of an import, all runs in it
    /// together.
    pub work: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            file_bytes: 2 << 30,
            messages: 1 << 20,
            stored: 1 << 29,
            elems: 1 << 26,
            held: 1 << 28,
            depth: 16,
            nodes: 1 << 16,
            node_runs: 1 << 20,
            work: 1 << 37,
        }
    }
}

/// Another value of a limit: `elems=1000000`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    name: String,
    most: usize,
}

/// Names of the limits that a user may set: those of [`Limits`] but `depth`, which the stack bounds.
const NAMES: [&str; 8] = [
    "file_bytes",
    "messages",
    "stored",
    "elems",
    "held",
    "nodes",
    "node_runs",
    "work",
];

impl FromStr for Limit {
    type Err = String;

    /// `NAME=NUMBER`.
    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.split_once('=').and_then(|(name, most)| {
            let most = most.parse().ok().filter(|&n| n > 0)?;
            let name = name.to_owned();
            NAMES
                .contains(&name.as_str())
                .then_some(Self { name, most })
        });
        parsed.ok_or_else(|| {
            let names = NAMES.join(", ");
            format!("expected NAME=NUMBER, NAME one of {names}, got {text}")
        })
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.most)
    }
}

impl Limits {
    /// These limits with others in the place of some.
    #[must_use]
    pub fn with(mut self, others: &[Limit]) -> Self {
        for limit in others {
            let field = match limit.name.as_str() {
                "file_bytes" => &mut self.file_bytes,
                "messages" => &mut self.messages,
                "stored" => &mut self.stored,
                "elems" => &mut self.elems,
                "held" => &mut self.held,
                "nodes" => &mut self.nodes,
                "node_runs" => &mut self.node_runs,
                _ => &mut self.work,
            };
            *field = limit.most;
        }
        self
    }

    /// Number of elements of a tensor of `dims` that is computed.
    ///
    /// # Errors
    /// [`Error::Invalid`] at `place` if that overflows or is more than the limit, or if there are
    /// more than [`MAX_RANK`] dimensions.
    pub fn num_elems(&self, place: &str, dims: &[usize]) -> Result<usize, Error> {
        self.check_rank(place, dims.len())?;
        self.bounded(place, "elements", dims, self.elems)
    }

    /// Number of elements of a tensor of `dims` that a file holds.
    ///
    /// # Errors
    /// As [`Limits::num_elems`].
    pub fn num_stored(&self, place: &str, dims: &[usize]) -> Result<usize, Error> {
        self.check_rank(place, dims.len())?;
        self.bounded(place, "elements", dims, self.stored)
    }

    /// Checks the number of dimensions of a tensor.
    ///
    /// # Errors
    /// [`Error::Invalid`] at `place` if it is more than [`MAX_RANK`].
    pub fn check_rank(&self, place: &str, rank: usize) -> Result<(), Error> {
        if rank > MAX_RANK {
            let expected = format!("at most {MAX_RANK}");
            return Err(Error::invalid(
                place,
                "number of dimensions",
                expected,
                rank,
            ));
        }
        Ok(())
    }

    /// The product of `factors`, inner steps of a node.
    ///
    /// # Errors
    /// [`Error::Invalid`] at `place` if it is more than the limit.
    pub fn num_steps(&self, place: &str, factors: &[usize]) -> Result<usize, Error> {
        self.bounded(place, "steps", factors, self.work)
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
        let e = limits.num_elems("t", &[1; 65]).unwrap_err().to_string();
        assert_eq!(e, "t: number of dimensions: expected at most 64, got 65");
        assert_eq!(limits.num_stored("t", &[5, 5]), Ok(25));
    }

    #[test]
    fn a_user_sets_limits_by_name() {
        let set = |text: &str| text.parse::<Limit>();
        let limits = Limits::default().with(&NAMES.map(|n| set(&format!("{n}=7")).unwrap()));
        let all = Limits {
            file_bytes: 7,
            messages: 7,
            stored: 7,
            elems: 7,
            held: 7,
            depth: Limits::default().depth,
            nodes: 7,
            node_runs: 7,
            work: 7,
        };
        assert_eq!(limits, all);
        for wrong in ["elems", "elems=", "elems=-1", "elems=0", "depth=9", "=1"] {
            let e = set(wrong).unwrap_err();
            assert!(e.ends_with(&format!("got {wrong}")), "{e}");
        }
    }
}
