//! How a model is cut into segments, as its configuration says it.

use std::ops::Range;
use std::str::FromStr;

use lazybatch_graph::{BlockId, Program, Segments};

use crate::error::{Error, Result};

/// How a program is cut into segments, the runs of nodes that are launched as one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Cut {
    /// As the device needs it.
    #[default]
    ByDevice,
    /// The shortest runs of at least so many microseconds, of one sample, as measured.
    Us(f64),
    /// Runs of so many nodes.
    Nodes(u32),
}

impl Cut {
    /// The segments by block, where that does not depend on latencies; one a node if `None`.
    pub fn segments(self, program: &Program) -> Option<Vec<Vec<Range<u32>>>> {
        let Self::Nodes(num) = self else { return None };
        let segments = Segments::every(program, num.max(1) as usize);
        let position = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
        let of_block = |block| {
            let runs = segments.block(BlockId::new(block)).iter();
            runs.map(|r| position(r.start)..position(r.end)).collect()
        };
        Some((0..segments.num_blocks()).map(of_block).collect())
    }
}

impl FromStr for Cut {
    type Err = Error;

    /// Reads `us=80` or `nodes=4`.
    fn from_str(text: &str) -> Result<Self> {
        let cut = match text.split_once('=') {
            Some(("us", us)) => us.parse().ok().map(Self::Us),
            Some(("nodes", num)) => num.parse().ok().map(Self::Nodes),
            _ => None,
        };
        let is_sane = |cut: &Self| match *cut {
            Self::ByDevice => true,
            Self::Us(us) => (0.0..=1e9).contains(&us),
            Self::Nodes(num) => num > 0,
        };
        cut.filter(is_sane).ok_or_else(|| {
            let expected = "us=U, microseconds from 0, or nodes=N, from 1";
            Error::expected("parameter segments", expected, text)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_are_in_microseconds_or_nodes() {
        assert_eq!("us=80.5".parse(), Ok(Cut::Us(80.5)));
        assert_eq!("us=0".parse(), Ok(Cut::Us(0.0)));
        assert_eq!("nodes=4".parse(), Ok(Cut::Nodes(4)));
        for wrong in [
            "",
            "4",
            "us=",
            "us=-1",
            "us=NaN",
            "us=inf",
            "nodes=0",
            "nodes=1.5",
            "ms=1",
        ] {
            let told = wrong.parse::<Cut>().unwrap_err().to_string();
            assert!(
                told.starts_with("parameter segments: expected us=U"),
                "{told}"
            );
        }
    }
}
