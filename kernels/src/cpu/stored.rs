//! Elements that do not change any more: in memory, or in a file that is mapped.

use std::ops::Deref;

use lazybatch_graph::Bytes;

use super::buffers::Aligned;

/// Packed weights, starting on a cache line.
#[derive(Clone, Debug)]
pub enum Stored {
    /// In memory.
    Owned(Aligned),
    /// In a mapped file, from that byte on.
    Mapped {
        /// The file.
        file: Bytes,
        /// First byte; a multiple of 64.
        start: usize,
        /// Number of elements.
        len: usize,
    },
}

impl From<Aligned> for Stored {
    fn from(data: Aligned) -> Self {
        Self::Owned(data)
    }
}

impl Deref for Stored {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match self {
            Self::Owned(data) => data,
            Self::Mapped { file, start, len } => {
                bytemuck::cast_slice(&file.as_slice()[*start..start + len * size_of::<f32>()])
            }
        }
    }
}

impl Stored {
    /// Elements `first..first + num` of it.
    pub fn part(&self, first: usize, num: usize) -> Self {
        match self {
            Self::Owned(data) => Self::Owned(Aligned::from_slice(&data[first..first + num])),
            Self::Mapped { file, start, .. } => Self::Mapped {
                file: file.clone(),
                start: start + first * size_of::<f32>(),
                len: num,
            },
        }
    }
}
