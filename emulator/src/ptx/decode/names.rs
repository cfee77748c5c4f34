//! What names of a function stand for.

use std::collections::HashMap;

use crate::ptx::LoadError;
use crate::ptx::ast::Space;
use crate::ptx::program::{Dest, Special};

/// What a name stands for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Name {
    Register(Dest),
    /// A variable, by its offset in its space.
    Variable(Space, u64),
}

/// Names of one function, or of one inlined copy.
#[derive(Default)]
pub(super) struct Names {
    by_name: HashMap<String, Name>,
}

impl Names {
    pub(super) fn register(&mut self, name: &str, dest: Dest) {
        self.by_name.insert(name.to_owned(), Name::Register(dest));
    }

    pub(super) fn variable(&mut self, name: &str, space: Space, offset: u64) {
        self.by_name
            .insert(name.to_owned(), Name::Variable(space, offset));
    }

    pub(super) fn find(&self, name: &str) -> Option<Name> {
        self.by_name.get(name).copied()
    }

    /// The register of that name.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn dest(&self, name: &str, line: u32) -> Result<Dest, LoadError> {
        match self.find(name) {
            Some(Name::Register(dest)) => Ok(dest),
            _ => Err(LoadError::new(
                line,
                format!("register `{name}` is not known"),
            )),
        }
    }
}

/// Whether a register counts time.
pub(super) fn is_clock(name: &str) -> bool {
    [
        "%clock",
        "%clock_hi",
        "%clock64",
        "%globaltimer",
        "%globaltimer_lo",
    ]
    .contains(&name)
}

/// The special register of that name.
pub(super) fn special(name: &str) -> Option<Special> {
    if let Some((vector, part)) = name.split_once('.') {
        let part = ["x", "y", "z"].iter().position(|p| *p == part)?;
        return match vector {
            "%tid" => Some(Special::Tid(part)),
            "%ntid" => Some(Special::Ntid(part)),
            "%ctaid" => Some(Special::Ctaid(part)),
            "%nctaid" => Some(Special::Nctaid(part)),
            _ => None,
        };
    }
    match name {
        "%laneid" => Some(Special::LaneId),
        "%warpid" => Some(Special::WarpId),
        "%nwarpid" => Some(Special::NumWarps),
        "%lanemask_eq" => Some(Special::LaneMaskEq),
        "%lanemask_lt" => Some(Special::LaneMaskLt),
        "%lanemask_le" => Some(Special::LaneMaskLe),
        "%lanemask_gt" => Some(Special::LaneMaskGt),
        "%lanemask_ge" => Some(Special::LaneMaskGe),
        "%dynamic_smem_size" => Some(Special::DynamicShared),
        "%total_smem_size" => Some(Special::TotalShared),
        "%smid" | "%gridid" => Some(Special::Zero),
        "%nsmid" => Some(Special::One),
        _ => None,
    }
}
