//! What is left of requests in flight, for plans: they start there as others do, with shorter loops.

use lazybatch_graph::Repeat;
use lazybatch_sla::RequestId;

use crate::core::{ModelSpec, Past, View};

/// The request with the passes that it has run taken off its lengths. Of a loop over the input one
/// pass is left at the least; one until the output stops is skipped by who is behind it. Blocks that
/// run once count anew, those by rows for the rows of what is left of the input.
pub(super) fn of(view: &View<'_>, past: &Past) -> Past {
    let Some(entry) = view.entry_of(past.id) else {
        return *past;
    };
    let mut members = view.members(entry);
    let step = members
        .find(|m| m.request.id == past.id)
        .map_or(0, |m| m.step);
    behind(view.model(past.model), past, entry.block, step)
}

/// Passes that a request has run of the loop until the output stops that it is in.
pub(super) fn ran(view: &View<'_>, id: RequestId) -> u32 {
    let Some(entry) = view.entry_of(id) else {
        return 0;
    };
    let block = &view.model(entry.model).blocks[entry.block as usize];
    if !matches!(block.repeat, Repeat::UntilStop { .. }) {
        return 0;
    }
    let mut members = view.members(entry);
    members.find(|m| m.request.id == id).map_or(0, |m| m.step)
}

/// What is left of a request at pass `step` of `block`.
fn behind(spec: &ModelSpec, past: &Past, block: u32, step: u32) -> Past {
    let mut left = *past;
    // Passes over the input, of all such blocks.
    let (mut all, mut done) = (0, 0);
    for (b, spec) in (0..).zip(&spec.blocks) {
        match spec.repeat {
            Repeat::Once => {}
            Repeat::PerInputStep { stride } => {
                let passes = u64::from(past.input_len.div_ceil(stride));
                all += passes;
                done += match b.cmp(&block) {
                    std::cmp::Ordering::Less => passes,
                    std::cmp::Ordering::Equal => passes.min(u64::from(step)),
                    std::cmp::Ordering::Greater => 0,
                };
            }
            Repeat::UntilStop { .. } if b < block => left.output_len = 0,
            Repeat::UntilStop { .. } if b == block && past.output_len > 0 => {
                left.output_len = past.output_len.saturating_sub(step).max(1);
            }
            Repeat::UntilStop { .. } => {}
        }
    }
    if all > 0 {
        let input = u64::from(past.input_len) * (all - done);
        left.input_len = (input.div_ceil(all) as u32).max(1);
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::coarse::tests::past;
    use lazybatch_sla::Profile;

    /// Two encoders over steps, the second over every other one, and what is between; a decoder, and
    /// what is behind it.
    fn spec() -> ModelSpec {
        let block = |(i, repeat): (usize, &str)| {
            let node = r#"{"name":"n","by":"members","latency_us":[[1,5],[4,5]]}"#;
            format!(r#"{{"name":"b{i}","repeat":{repeat},"nodes":[{node}]}}"#)
        };
        let repeats = [
            r#""per_input_step""#,
            r#""once""#,
            r#""per_input_step","stride":2"#,
            r#""until_stop""#,
            r#""once""#,
        ];
        let blocks: Vec<String> = repeats.into_iter().enumerate().map(block).collect();
        let text = format!(
            r#"{{"format":"lazybatch-profile/1","device":"d","copy_gbps":1.0,"dispatch_us":0,
                "models":[{{"name":"m","max_batch":4,"output_len_p90":90,"blocks":[{}]}}]}}"#,
            blocks.join(",")
        );
        let profile = Profile::parse("test", &text).unwrap();
        ModelSpec::from_profile(&profile, &profile.models[0], 1, 100)
    }

    #[test]
    fn passes_that_were_run_are_taken_off() {
        let left = |output_len, block, step| {
            let left = behind(&spec(), &past(&[(20, output_len)])[0], block, step);
            (left.input_len, left.output_len)
        };
        // 20 passes of the first encoder, and 10 of the second.
        assert_eq!(left(8, 0, 0), (20, 8));
        assert_eq!(left(8, 0, 6), (16, 8));
        assert_eq!(
            left(8, 1, 0),
            (7, 8),
            "a third of the passes over the input"
        );
        assert_eq!(left(8, 2, 3), (5, 8));
        assert_eq!(left(8, 3, 0), (1, 8), "no input is left");
        assert_eq!(left(8, 3, 5), (1, 3));
        assert_eq!(left(8, 3, 50), (1, 1), "longer than it was thought");
        assert_eq!(left(8, 4, 0), (1, 0), "it stopped");
        assert_eq!(left(0, 3, 0), (1, 0), "it never starts");
    }
}
