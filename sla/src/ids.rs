//! Ids that the scheduler and the devices share. Never reused within a run, but for [`Slot`].

use std::fmt;

use serde::{Deserialize, Serialize};

/// Defines an id newtype that prints as a short prefix and a number.
macro_rules! id {
    ($(#[$meta:meta])* $name:ident($raw:ty), $prefix:literal) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $raw);

        impl $name {
            /// The number as an index into dense storage.
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

id!(/// A model that a core or device serves, by position in its configuration.
    ModelId(u32), "m");
id!(/// An SLA class, by position in a configuration; 0 is that of requests that name none.
    #[derive(Default)]
    ClassId(u32), "class");
id!(/// One inference asked by one client; the count of arrivals before it.
    RequestId(u64), "r");
id!(/// Where a request's data lives on a device. Reused once the request is released.
    Slot(u32), "slot");
id!(/// One issued launch, numbered per core in issuing order.
    Ticket(u64), "t");
id!(/// One place where launches run one after another.
    LaneId(u32), "lane");
id!(/// Requests that share model and cursor and move together.
    SubBatchId(u64), "b");
