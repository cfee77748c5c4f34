//! Figures of the responses of a decoupled model, by their place in the answer to a request.
//!
//! A response takes from the one before it, the first from the arrival of its request. Behind the last
//! one is the end, which is a response without outputs. Places from [`MOST`] on are not told.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use lazybatch_sla::Nanos;

use crate::proto::{InferResponseStatistics, StatisticDuration};

/// Most places that are told.
const MOST: usize = 1024;

/// What became of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Response {
    /// It was made, in `infer`, and written, in `output`.
    Made {
        /// Since the one before it.
        infer: Nanos,
        /// Its outputs were put together.
        output: Nanos,
    },
    /// It was the end.
    Empty(Nanos),
    /// It was an error.
    Failed(Nanos),
    /// The client did not wait for it.
    Cancelled(Nanos),
}

/// A count and the nanoseconds of all together.
type Sum = (u64, u64);

#[derive(Clone, Copy, Debug, Default)]
struct Place {
    infer: Sum,
    output: Sum,
    success: Sum,
    fail: Sum,
    empty: Sum,
    cancel: Sum,
}

/// Figures of responses by their place.
#[derive(Debug, Default)]
pub struct Responses(Mutex<Vec<Place>>);

fn add(sum: &mut Sum, took: Nanos) {
    sum.0 += 1;
    sum.1 = sum.1.saturating_add(took.0);
}

impl Responses {
    /// Counts the response at `place` of an answer.
    pub fn add(&self, place: usize, response: Response) {
        if place >= MOST {
            return;
        }
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() <= place {
            all.resize(place + 1, Place::default());
        }
        let own = &mut all[place];
        match response {
            Response::Made { infer, output } => {
                add(&mut own.infer, infer);
                add(&mut own.output, output);
                add(&mut own.success, Nanos(infer.0.saturating_add(output.0)));
            }
            Response::Empty(took) => add(&mut own.empty, took),
            Response::Failed(took) => add(&mut own.fail, took),
            Response::Cancelled(took) => add(&mut own.cancel, took),
        }
    }

    /// As the protocol tells them.
    pub fn told(&self) -> HashMap<String, InferResponseStatistics> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let span = |(count, ns): Sum| Some(StatisticDuration { count, ns });
        let each = all.iter().enumerate().map(|(at, place)| {
            let told = InferResponseStatistics {
                compute_infer: span(place.infer),
                compute_output: span(place.output),
                success: span(place.success),
                fail: span(place.fail),
                empty_response: span(place.empty),
                cancel: span(place.cancel),
            };
            (at.to_string(), told)
        });
        each.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_count_by_their_place_and_those_far_behind_do_not() {
        let responses = Responses::default();
        let made = |infer, output| Response::Made {
            infer: Nanos(infer),
            output: Nanos(output),
        };
        responses.add(0, made(5, 1));
        responses.add(0, made(7, 2));
        responses.add(2, Response::Empty(Nanos(3)));
        responses.add(0, Response::Cancelled(Nanos(4)));
        responses.add(1, Response::Failed(Nanos(6)));
        responses.add(MOST, made(1, 1));
        let told = responses.told();
        assert_eq!(told.len(), 3);
        let of = |span: &Option<StatisticDuration>| span.as_ref().map(|s| (s.count, s.ns));
        let first = &told["0"];
        assert_eq!(of(&first.compute_infer), Some((2, 12)));
        assert_eq!(of(&first.compute_output), Some((2, 3)));
        assert_eq!(of(&first.success), Some((2, 15)));
        assert_eq!(of(&first.cancel), Some((1, 4)));
        assert_eq!(of(&told["1"].fail), Some((1, 6)));
        assert_eq!(of(&told["2"].empty_response), Some((1, 3)));
    }
}
