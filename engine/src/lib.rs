//! Placeholder front page; replaced by the crate's own.
