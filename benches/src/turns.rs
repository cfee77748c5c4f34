//! Sides that take turns, so that noise of the machine falls on all of them.
//!
//! A turn is one call that is not counted, to bring the weights back into the caches, and calls for
//! some 30 ms whose median counts.

use std::time::Duration;

use crate::clock;
use crate::spread::Spread;

/// Nanoseconds of one turn.
pub const TURN_NS: f64 = 30e6;
/// Fewest calls of a turn.
pub const MIN_CALLS: usize = 3;

/// Between turns, for our own threads to go to sleep.
pub fn rest() {
    clock::pause(Duration::from_millis(5));
}

/// The median of a turn of `call`, which gives nanoseconds.
///
/// # Errors
/// What a call fails with.
pub fn turn(mut call: impl FnMut() -> anyhow::Result<f64>) -> anyhow::Result<f64> {
    call()?;
    let (mut calls, mut total) = (Vec::new(), 0.0);
    while total < TURN_NS || calls.len() < MIN_CALLS {
        let ns = call()?;
        total += ns;
        calls.push(ns);
    }
    Ok(Spread::of(calls).median())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_long_enough_and_its_first_call_does_not_count() {
        let mut made = 0;
        let median = turn(|| {
            made += 1;
            Ok(if made == 1 { 1e9 } else { 4e6 })
        });
        assert_eq!((median.unwrap(), made), (4e6, 9));
        let mut made = 0;
        let long = turn(|| {
            made += 1;
            Ok(f64::from(made) * 1e9)
        });
        assert_eq!((long.unwrap(), made), (3e9, 4));
        assert!(turn(|| anyhow::bail!("no")).is_err());
    }
}
