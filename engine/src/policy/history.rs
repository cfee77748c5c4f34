//! Arrivals of the recent past, for plans.
//!
//! Output lengths of requests that have not ended are guessed: that of an ended request of the same
//! model whose input was about as long, and whose output is longer than what the request has run.

use std::collections::VecDeque;

use lazybatch_graph::Repeat;
use lazybatch_sla::{ClassId, ModelId, Nanos, RequestId, Time};

use crate::core::{Ending, ModelSpec, Past, Request};

/// Most arrivals that are remembered.
pub(super) const CAPACITY: usize = 4096;
/// Arrivals that the recent rate is measured over.
const RECENT: usize = 256;

/// An arrival and what is known of its output.
#[derive(Clone, Copy, Debug)]
struct Known {
    past: Past,
    /// Its arrival, but no sooner than that of who came before: whoever hands it in may state one that is
    /// past.
    came: Time,
    /// Its arrival as it is stated.
    arrival: Time,
    /// Passes of its loop, once that has ended.
    output_len: Option<u32>,
    /// They are as many as it asks for: others may take more.
    is_cut: bool,
    is_open: bool,
}

/// The last [`CAPACITY`] arrivals.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    known: VecDeque<Known>,
    /// How many of them are of each model.
    by_model: Vec<usize>,
    /// How many are of each SLA class.
    by_class: Vec<usize>,
    num_arrivals: u64,
    num_open: usize,
}

/// Counts one more at a place that may be new.
fn count(nums: &mut Vec<usize>, at: usize) {
    if nums.len() <= at {
        nums.resize(at + 1, 0);
    }
    nums[at] += 1;
}

impl History {
    pub fn on_arrive(&mut self, request: &Request) {
        let last = self.known.back().map_or(request.arrival, |k| k.came);
        let came = request.arrival.max(last);
        self.num_arrivals += 1;
        self.num_open += 1;
        if self.known.len() == CAPACITY
            && let Some(first) = self.known.pop_front()
        {
            self.by_model[first.past.model.index()] -= 1;
            self.by_class[first.past.class.index()] -= 1;
        }
        count(&mut self.by_model, request.model.index());
        count(&mut self.by_class, request.class.index());
        self.known.push_back(Known {
            past: Past {
                id: request.id,
                gap: came.since(last),
                model: request.model,
                sla: request.sla,
                class: request.class,
                priority: request.priority,
                delay_after: request.delay_after,
                samples: request.samples,
                input_len: request.input_len,
                output_len: 0,
                max_steps: request.max_steps,
            },
            came,
            arrival: request.arrival,
            output_len: (request.max_steps == Some(0)).then_some(0),
            is_cut: request.max_steps == Some(0),
            is_open: true,
        });
        self.sort();
    }

    /// Puts the last arrival where its id belongs: requests that are handed in at the same time from
    /// several threads may come in another order. Times of arrival stay where they are.
    fn sort(&mut self) {
        let known = &mut self.known;
        for i in (1..known.len()).rev() {
            if known[i - 1].past.id < known[i].past.id {
                return;
            }
            known.swap(i - 1, i);
            let (earlier, later) = (known[i - 1].came, known[i].came);
            (known[i - 1].came, known[i].came) = (later, earlier);
            let (first, second) = (known[i - 1].past.gap, known[i].past.gap);
            (known[i - 1].past.gap, known[i].past.gap) = (second, first);
        }
    }

    /// Forgets a model: nobody of it is open.
    pub fn on_model(&mut self, model: ModelId) {
        self.known.retain(|k| k.past.model != model);
        self.by_class.fill(0);
        for known in &self.known {
            self.by_class[known.past.class.index()] += 1;
        }
        if let Some(num) = self.by_model.get_mut(model.index()) {
            *num = 0;
        }
        // Each gap is to the one that is before it now.
        for i in 1..self.known.len() {
            self.known[i].past.gap = self.known[i].came.since(self.known[i - 1].came);
        }
    }

    /// Whether nothing is remembered.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    pub fn on_end(&mut self, ending: &Ending) {
        self.num_open = self.num_open.saturating_sub(1);
        if let Some(i) = self.position(ending.id) {
            let known = &mut self.known[i];
            known.is_open = false;
            known.output_len = ending.output_len.or(known.output_len);
            known.is_cut |= ending.is_cut;
        }
    }

    /// Ids increase, so their order is that of the history; most are the one before and one.
    fn position(&self, id: RequestId) -> Option<usize> {
        let is_it = |&i: &usize| self.known.get(i).is_some_and(|k| k.past.id == id);
        let first = self.known.front()?.past.id;
        let likely = usize::try_from(id.0.checked_sub(first.0)?).ok();
        let search = || Some(self.known.partition_point(|k| k.past.id < id));
        likely.filter(is_it).or_else(|| search().filter(is_it))
    }

    /// Arrivals since the start.
    pub fn num_arrivals(&self) -> u64 {
        self.num_arrivals
    }

    /// Requests that have not ended.
    pub fn num_open(&self) -> usize {
        self.num_open
    }

    /// Whether any of those that are remembered is of that model.
    pub fn has(&self, model: ModelId) -> bool {
        self.by_model.get(model.index()).is_some_and(|&num| num > 0)
    }

    /// Whether any of those that are remembered has a priority level.
    pub fn has_priorities(&self) -> bool {
        self.known.iter().any(|k| k.past.priority != 0)
    }

    /// Whether the next one takes the place of the oldest.
    pub fn is_full(&self) -> bool {
        self.known.len() >= CAPACITY
    }

    /// The longest target of those that are remembered.
    pub fn longest_target(&self) -> Option<Nanos> {
        self.known.iter().filter_map(|k| k.past.sla).max()
    }

    /// Whether any of those that are remembered is of that class.
    pub fn has_class(&self, class: ClassId) -> bool {
        self.by_class.get(class.index()).is_some_and(|&num| num > 0)
    }

    /// Time between the first and the last that are remembered.
    pub fn span(&self) -> Nanos {
        let first = self.known.front().map(|k| k.came);
        let last = self.known.back().map(|k| k.came);
        last.zip(first).map_or(Nanos::ZERO, |(l, f)| l.since(f))
    }

    /// Time since the first that is remembered.
    pub fn since_first(&self, now: Time) -> Nanos {
        let first = self.known.front().map(|k| k.came);
        first.map_or(Nanos::ZERO, |f| now.since(f))
    }

    /// Requests per second over all that are remembered.
    pub fn rate(&self) -> f64 {
        self.rate_of(self.known.len())
    }

    /// Requests per second over the last [`RECENT`].
    pub fn recent_rate(&self) -> f64 {
        self.rate_of(RECENT.min(self.known.len()))
    }

    fn rate_of(&self, n: usize) -> f64 {
        let (Some(first), Some(last)) = (self.known.get(self.known.len() - n), self.known.back())
        else {
            return 0.0;
        };
        let span = last.came.since(first.came).0.max(1) as f64;
        (n as f64 - 1.0).max(0.0) * 1e9 / span
    }

    /// Those that are remembered and open, oldest first: their places among [`Self::arrivals`], and
    /// for how long they have been.
    pub fn open(&self, now: Time) -> Vec<(usize, Nanos)> {
        let open = self.known.iter().enumerate().filter(|k| k.1.is_open);
        open.map(|(i, k)| (i, now.since(k.arrival))).collect()
    }

    /// All that are remembered, oldest first, every output length filled in. `ran` says how many
    /// passes of its loop an open request has run so far.
    pub fn arrivals(&self, models: &[ModelSpec], ran: impl Fn(RequestId) -> u32) -> Vec<Past> {
        let loops: Vec<bool> = models
            .iter()
            .map(|m| {
                m.blocks
                    .iter()
                    .any(|b| matches!(b.repeat, Repeat::UntilStop { .. }))
            })
            .collect();
        let priors: Vec<u32> = models.iter().map(|m| m.output_len_p90).collect();
        let guesses = Guesses::new(self, &priors);
        self.known
            .iter()
            .map(|k| {
                let m = k.past.model.index();
                let ran = || if k.is_open { ran(k.past.id) } else { 0 };
                let guess = || guesses.of(k, models[m].output_len_p90, ran());
                Past {
                    output_len: match (loops[m], k.output_len) {
                        (false, _) => 1,
                        (true, Some(len)) => len,
                        (true, None) => guess().min(k.past.max_steps.unwrap_or(u32::MAX)),
                    },
                    ..k.past
                }
            })
            .collect()
    }
}

/// Output lengths of ended requests, by model, sorted by input length. One that was cut might have been
/// as long as any that was not and is longer, or as the model's own prediction where none is.
struct Guesses(Vec<Vec<(u32, u32)>>);

impl Guesses {
    /// `priors` are what the models themselves predict.
    fn new(history: &History, priors: &[u32]) -> Self {
        let mut whole = vec![Vec::new(); priors.len()];
        let ended = || {
            history
                .known
                .iter()
                .filter_map(|k| Some((k, k.output_len?)))
        };
        for (k, output) in ended().filter(|(k, _)| !k.is_cut) {
            whole[k.past.model.index()].push(output);
        }
        for lens in &mut whole {
            lens.sort_unstable();
        }
        let mut by_model = vec![Vec::new(); priors.len()];
        for (k, output) in ended() {
            let m = k.past.model.index();
            let longer = &whole[m][whole[m].partition_point(|&len| len <= output)..];
            let output = match (k.is_cut, longer.len()) {
                (false, _) => output,
                (true, 0) => output.max(priors[m]),
                (true, n) => longer[spread(k.past.id) % n],
            };
            by_model[m].push((k.past.input_len, output));
        }
        for pairs in &mut by_model {
            // Stable: ties stay in order of arrival, whatever the outputs.
            pairs.sort_by_key(|p| p.0);
        }
        Self(by_model)
    }

    /// The output length of one of the 16 ended requests nearest in input length, a different one
    /// for different requests, among those longer than the `ran` passes that this one has run;
    /// where none of these is, of all that are; where there is none, half as many passes again.
    /// `prior` where none has ended.
    fn of(&self, k: &Known, prior: u32, ran: u32) -> u32 {
        const NEIGHBOURS: usize = 16;
        let pairs = &self.0[k.past.model.index()];
        if pairs.is_empty() {
            return prior.max(1);
        }
        let below = pairs.partition_point(|p| p.0 < k.past.input_len);
        let up_to = pairs.partition_point(|p| p.0 <= k.past.input_len);
        let at = (below + up_to) / 2;
        let num = NEIGHBOURS.min(pairs.len());
        let first = at.saturating_sub(num / 2).min(pairs.len() - num);
        let spread = spread(k.past.id);
        let near = &pairs[first..first + num];
        if ran == 0 {
            return near[spread % num].1;
        }
        let longer = |of: &[(u32, u32)]| -> Vec<u32> {
            let lens = of.iter().map(|p| p.1);
            lens.filter(|&len| len > ran).collect()
        };
        let mut lens = longer(near);
        if lens.is_empty() {
            lens = longer(pairs);
        }
        match lens.len() {
            0 => ran + ran / 2 + 1,
            n => lens[spread % n],
        }
    }
}

/// A number that spreads neighbouring ids: multiplicative hashing (Knuth).
fn spread(id: RequestId) -> usize {
    (id.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::fixtures;

    fn request(id: u64, at_ms: u64, input_len: u32) -> Request {
        Request {
            arrival: Time(at_ms * 1_000_000),
            input_len,
            ..fixtures::request(id)
        }
    }

    fn end(id: u64, output_len: Option<u32>) -> Ending {
        Ending {
            output_len,
            ..fixtures::ending(id)
        }
    }

    #[test]
    fn the_oldest_are_forgotten_and_rates_are_those_of_what_is_left() {
        let mut history = History::default();
        for i in 0..5000 {
            // Ten a second at first, a thousand a second in the end.
            let at = if i < 4900 {
                i * 100
            } else {
                4899 * 100 + (i - 4899)
            };
            history.on_arrive(&request(i, at, 1));
        }
        assert_eq!(history.num_arrivals(), 5000);
        assert_eq!(history.known.len(), CAPACITY);
        assert_eq!(history.known[0].past.id, RequestId(904));
        assert!((history.rate() - 10.2).abs() < 0.1, "{}", history.rate());
        let recent = history.recent_rate();
        assert!((recent - 255.0 / 15.6).abs() < 1.0, "{recent}");
    }

    #[test]
    fn gaps_are_to_those_that_are_left_when_a_model_goes() {
        let mut history = History::default();
        for i in 0..10 {
            let model = ModelId((i % 2) as u32);
            history.on_arrive(&Request {
                model,
                ..request(i, i, 1)
            });
        }
        history.on_model(ModelId(1));
        let gaps: Vec<u64> = history.known.iter().map(|k| k.past.gap.0).collect();
        assert_eq!(gaps, [0, 2_000_000, 2_000_000, 2_000_000, 2_000_000]);
    }

    #[test]
    fn nobody_is_guessed_to_run_for_longer_than_it_may() {
        let text = r#"{"format":"lazybatch-profile/1","device":"d","models":[{"name":"m","max_batch":4,
            "output_len_p90":256,"blocks":[{"name":"decode","repeat":"until_stop","nodes":[
            {"name":"n","latency_us":[[1,5]]}]}]}]}"#;
        let profile = lazybatch_sla::Profile::parse("test", text).unwrap();
        let model = ModelSpec::from_profile(&profile, &profile.models[0], 1, 256);
        let mut history = History::default();
        for (i, max_steps) in [Some(16), None, Some(300)].into_iter().enumerate() {
            history.on_arrive(&Request {
                max_steps,
                ..request(i as u64, i as u64, 1)
            });
        }
        let lens = history.arrivals(&[model], |_| 0);
        let lens: Vec<u32> = lens.iter().map(|p| p.output_len).collect();
        assert_eq!(lens, [16, 256, 256]);
    }

    #[test]
    fn those_that_have_not_ended_are_open() {
        let mut history = History::default();
        for i in 0..4 {
            history.on_arrive(&request(i, i, 1));
        }
        for id in [0, 2] {
            history.on_end(&end(id, (id == 0).then_some(5)));
        }
        let ms = Nanos::from_ms;
        assert_eq!(history.num_open(), 2);
        assert_eq!(history.open(Time(10_000_000)), [(1, ms(9)), (3, ms(7))]);
        assert_eq!(history.known[0].output_len, Some(5));
        assert_eq!(history.known[2].output_len, None);
    }

    #[test]
    fn requests_are_found_by_id_also_where_some_are_missing() {
        let mut history = History::default();
        for i in 10..20 {
            let mut request = request(i, i, 1);
            request.model = ModelId((i % 2) as u32);
            history.on_arrive(&request);
        }
        let at = |history: &History, id| history.position(RequestId(id));
        assert_eq!(at(&history, 10), Some(0));
        assert_eq!(at(&history, 17), Some(7));
        assert_eq!([9, 20].map(|id| at(&history, id)), [None; 2]);
        history.on_model(ModelId(1));
        assert_eq!(at(&history, 16), Some(3));
        assert_eq!([13, 9, 20].map(|id| at(&history, id)), [None; 3]);
    }

    #[test]
    fn arrivals_that_are_stated_in_the_past_do_not_make_time_go_back() {
        let mut history = History::default();
        // Every other one is said to have come 500 ms before it did, all of them in 1 ms steps.
        for i in 0..256 {
            let late = if i % 2 == 1 { 500 } else { 0 };
            history.on_arrive(&request(i, 1000 + i - late, 1));
        }
        let span: u64 = history.known.iter().map(|k| k.past.gap.0).sum();
        assert_eq!(span, Nanos::from_ms(254).0);
        assert_eq!(history.span(), Nanos(span));
        assert!(
            (900.0..1100.0).contains(&history.rate()),
            "{}",
            history.rate()
        );
        // For how long they are open is as they say.
        let open = history.open(Time(1_255_000_000));
        assert_eq!(open[255].1, Nanos::from_ms(500));
        assert_eq!(open[254].1, Nanos::from_ms(1));
    }

    #[test]
    fn those_that_are_handed_in_out_of_order_end_all_the_same() {
        let mut history = History::default();
        for (at, id) in [0, 2, 1, 3, 6, 5, 4].into_iter().enumerate() {
            history.on_arrive(&request(id, 10 * at as u64, 1));
        }
        let gaps: Vec<Nanos> = history.known.iter().map(|k| k.past.gap).collect();
        assert_eq!(gaps[1..], [Nanos::from_ms(10); 6]);
        assert!(history.known.iter().is_sorted_by_key(|k| k.came));
        for id in [1, 2, 4, 6] {
            history.on_end(&end(id, None));
        }
        let open = history.known.iter().filter(|k| k.is_open);
        let open: Vec<u64> = open.map(|k| k.past.id.0).collect();
        assert_eq!(open, [0, 3, 5]);
    }

    #[test]
    fn unknown_outputs_are_those_of_ended_neighbours() {
        let mut history = History::default();
        for i in 0..40 {
            history.on_arrive(&request(i, i, if i % 2 == 0 { 10 } else { 50 }));
        }
        history.on_end(&end(0, Some(11)));
        assert_eq!(history.known[0].output_len, Some(11));
        for i in 2..36 {
            history.on_end(&end(i, Some(if i % 2 == 0 { 11 } else { 51 })));
        }
        let guesses = Guesses::new(&history, &[7]);
        assert_eq!(guesses.of(&history.known[38], 7, 0), 11);
        assert_eq!(guesses.of(&history.known[39], 7, 0), 51);
        // It has run more than its neighbours ever did; and more than anyone.
        assert_eq!(guesses.of(&history.known[38], 7, 11), 51);
        assert_eq!(guesses.of(&history.known[38], 7, 60), 91);
        let empty = Guesses::new(&History::default(), &[7]);
        assert_eq!(empty.of(&history.known[39], 7, 0), 7);
    }

    #[test]
    fn who_was_cut_might_have_been_as_long_as_others_were() {
        let mut history = History::default();
        for i in 0..60 {
            history.on_arrive(&request(i, i, 10));
        }
        let cut = |id, len| Ending {
            is_cut: true,
            ..end(id, Some(len))
        };
        let lens = |history: &History| -> Vec<u32> {
            let guesses = Guesses::new(history, &[90]);
            let open = history.known.iter().skip(50);
            open.map(|k| guesses.of(k, 90, 0)).collect()
        };
        (0..40).for_each(|i| history.on_end(&cut(i, 1)));
        assert!(
            lens(&history).iter().all(|&len| len == 90),
            "nobody says how long"
        );
        (40..50).for_each(|i| history.on_end(&end(i, Some(20))));
        assert!(lens(&history).iter().all(|&len| len == 20));
        // Longer ones that were cut: as long as the model says.
        (0..40).for_each(|i| history.known[i as usize].output_len = Some(30));
        let of = lens(&history);
        assert!(
            of.iter().all(|len| [20, 90].contains(len)) && of.contains(&90),
            "{of:?}"
        );
    }
}
