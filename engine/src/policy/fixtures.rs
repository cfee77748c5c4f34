//! Requests and endings of tests, which change what they are about.

use lazybatch_sla::{ClassId, ModelId, Outcome, RequestId, Time};

use crate::core::{Ending, Request};

/// The request of that number, of one sample and step, of the first model and class, at time zero and without a target.
pub fn request(number: u64) -> Request {
    Request {
        id: RequestId(number),
        model: ModelId(0),
        arrival: Time::ZERO,
        sla: None,
        class: ClassId::default(),
        priority: 0,
        delay_after: None,
        samples: 1,
        input_len: 1,
        sequence: None,
        max_steps: None,
        known_output_len: None,
    }
}

/// The end in time of the request of that number.
pub fn ending(number: u64) -> Ending {
    Ending {
        id: RequestId(number),
        model: ModelId(0),
        class: ClassId::default(),
        priority: 0,
        outcome: Outcome::Met,
        input_len: 1,
        output_len: None,
        is_cut: false,
    }
}
