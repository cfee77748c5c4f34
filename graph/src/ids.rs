//! Typed ids. Raw integers index storage only inside the module that owns it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Defines an id newtype over `u32` that prints as a short prefix and a number.
macro_rules! id {
    ($(#[$meta:meta])* $name:ident, $prefix:literal) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(u32);

        impl $name {
            /// The id of the `index`-th entry.
            ///
            /// # Panics
            /// If `index` does not fit 32 bits.
            pub fn new(index: usize) -> Self {
                Self(u32::try_from(index).expect("fewer than 2^32 entries"))
            }

            /// The position in the owning list.
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

id!(/// A block of a program, in program order.
    BlockId, "k");
id!(/// A node of a program; unique over all blocks.
    NodeId, "n");
id!(/// A value (activation or weight operand) of a program.
    ValueId, "v");
id!(/// A weight of a program.
    WeightId, "w");
id!(/// A per-request state of a program.
    StateId, "s");
id!(/// An input of a program.
    InputId, "in");
id!(/// An output of a program.
    OutputId, "out");
