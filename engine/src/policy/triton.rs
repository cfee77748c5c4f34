//! `triton`: padded whole-graph batches, formed as Triton Inference Server's dynamic batcher forms
//! them.
//!
//! When the lane is free, waiting requests are gone through in order: by priority level, within a
//! level by arrival, those whose queue timeout has passed behind the others (`action=delay`) or
//! refused (`action=reject`). They are added to a pending batch until one does not fit max batch
//! or, unless clients pad, has another shape; then
//! 1. the largest preferred size that was passed on the way goes, if the oldest of the pending has
//!    not waited the queue delay; a request that jumps over the largest preferred size before any
//!    was met marks the size before it as one;
//! 2. else all that is pending goes, if it can grow no further, has reached the largest preferred
//!    size, or the oldest has waited the delay (a delay of 0 always has);
//! 3. else the batcher waits for the delay or the first queue timeout among the pending, whichever
//!    comes first, in whole microseconds; what is left of less than one is no wait.
//!
//! The shape of a request is its input length. A request beyond `max-queue` waiting ones of its
//! level is refused, the youngest first. Several models: of those that have a batch to send, the
//! one with the oldest pending request.
//!
//! Source: `DynamicBatchScheduler::GetDynamicBatch` (src/dynamic_batch_scheduler.cc) and
//! `PriorityQueue` (src/scheduler_utils.cc) of github.com/triton-inference-server/core, and the
//! batcher's documentation in its `server` repository. Triton also prefetches, where no queue
//! policy is set: while an instance is busy it forms the next batch and lets it grow until it is
//! fetched. Here a batch is formed when the lane is free, as Triton does with queue policies.

use lazybatch_sla::{ModelId, Nanos, RequestId, Time};

use super::{Decision, Entry, Pick, Policy};
use crate::core::{Key, View};

/// Registry line.
pub const ENTRY: Entry = Entry {
    name: "triton",
    usage: "triton[:KEY=VALUE,...]",
    summary: "Triton's dynamic batcher: preferred=4+8, delay=MS, levels=N, default-level=K, \
              timeout=MS, action=reject|delay, max-queue=N, pad",
    examples: &[
        "triton",
        "triton:pad,delay=0.01,preferred=2+3",
        "triton:levels=2,timeout=0.03,action=delay,delay=0.02",
    ],
    refusing: &[
        "triton:timeout=0.02,max-queue=3",
        "triton:levels=3,default-level=2,timeout=0.05,delay=0.03,preferred=2+4,pad",
    ],
    needs_output_len: false,
    build: |argument| match argument {
        Some("") => None,
        _ => Some(Box::new(Triton::parse(argument.unwrap_or_default()).ok()?)),
    },
};

/// What becomes of a request whose queue timeout has passed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Action {
    /// It is refused.
    Reject,
    /// It waits behind the others of its level.
    Delay,
}

struct Triton {
    /// Preferred batch sizes in samples, ascending; max batch if there are none.
    preferred: Vec<u32>,
    delay: Nanos,
    /// Priority levels 1, the first, to this; 0: all requests are of one level.
    levels: u8,
    /// Level of requests that state none, or one that there is not.
    default_level: u8,
    timeout: Option<Nanos>,
    action: Action,
    /// Most waiting requests of a level.
    max_queue: usize,
    pad: bool,
}

/// What to do for one model.
enum Step {
    /// These start as a batch; when the oldest of all that were pending arrived.
    Send(Vec<Key>, Time),
    Wait(Time),
    Shed(Key, &'static str),
}

impl Policy for Triton {
    fn pads(&self) -> bool {
        self.pad
    }

    fn decide(&mut self, view: &View<'_>) -> Decision {
        if let Some(running) = view.table().iter().find(|e| view.is_launchable(e)) {
            return Decision::Launch(running.id);
        }
        let mut until: Option<Time> = None;
        let mut send: Option<(Time, ModelId, Vec<Key>)> = None;
        for model in view.ready() {
            match self.step(view, model) {
                Step::Shed(request, cause) => return Decision::Shed { request, cause },
                Step::Wait(t) => until = Some(until.map_or(t, |u| u.min(t))),
                Step::Send(keys, oldest) => {
                    if send.as_ref().is_none_or(|s| oldest < s.0) {
                        send = Some((oldest, model, keys));
                    }
                }
            }
        }
        match send {
            Some((_, model, keys)) => Decision::Admit {
                model,
                pick: Pick::These(keys),
                padded: true,
            },
            None => Decision::Wait { until },
        }
    }
}

/// Parameters, as they are written.
const PARAMETERS: &str = "preferred=N+N.., delay=MS, levels=N, default-level=K, timeout=MS, \
                          action=reject or delay, max-queue=N, pad";

/// Whether a text that stands behind a specification and a comma is meant as a parameter of it.
pub(super) fn is_parameter(text: &str) -> bool {
    text == "pad" || text.contains('=')
}

/// What would be right in place of parameters that are refused, and in place of which one.
pub(super) fn expected(argument: &str) -> String {
    Triton::parse(argument).err().unwrap_or_default()
}

impl Triton {
    /// Parameters as the policy takes them, separated by commas; else what would be right where.
    fn parse(text: &str) -> Result<Self, String> {
        let mut triton = Self {
            preferred: Vec::new(),
            delay: Nanos::ZERO,
            levels: 0,
            default_level: 0,
            timeout: None,
            action: Action::Reject,
            max_queue: usize::MAX,
            pad: false,
        };
        let ms = |text: &str| -> Option<Nanos> {
            let ms: f64 = text.parse().ok()?;
            (ms.is_finite() && ms >= 0.0).then(|| Nanos::from_ms_f64(ms))
        };
        let mut seen = Vec::new();
        for part in text.split(',').filter(|_| !text.is_empty()) {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            let wrong = |expected: &str| format!("{expected} in place of {part:?}");
            let time = || ms(value).ok_or_else(|| wrong(&format!("{key}=MS of 0 or more")));
            if seen.contains(&key) {
                return Err(wrong("each parameter once"));
            }
            seen.push(key);
            match key {
                "preferred" => {
                    let sizes = value.split('+').map(|n| n.parse().ok().filter(|&n| n > 0));
                    let sizes: Option<_> = sizes.collect();
                    triton.preferred =
                        sizes.ok_or_else(|| wrong("preferred=N+N.. of 1 or more"))?;
                    triton.preferred.sort_unstable();
                }
                "delay" => triton.delay = time()?,
                // As in Triton, 0 is as if it were not stated.
                "levels" => {
                    let levels = value.parse();
                    triton.levels = levels.map_err(|_| wrong("levels=N of 0 to 255"))?;
                }
                "default-level" => {
                    let level = value.parse();
                    triton.default_level =
                        level.map_err(|_| wrong("default-level=K of 0 to 255"))?;
                }
                "timeout" => triton.timeout = Some(time()?).filter(|&t| t > Nanos::ZERO),
                "action" if value == "reject" => triton.action = Action::Reject,
                "action" if value == "delay" => triton.action = Action::Delay,
                "action" => return Err(wrong("action=reject or action=delay")),
                // As in Triton, 0 is no bound.
                "max-queue" => {
                    let most: Option<usize> = value.parse().ok();
                    let most = most.ok_or_else(|| wrong("max-queue=N of 0 or more"))?;
                    triton.max_queue = if most == 0 { usize::MAX } else { most };
                }
                "pad" if part == "pad" => triton.pad = true,
                _ => return Err(wrong(&format!("one of {PARAMETERS}"))),
            }
        }
        if triton.default_level > triton.levels {
            let most = match triton.levels {
                0 => "levels=N with it".into(),
                n => format!("one of the {n} levels"),
            };
            return Err(format!(
                "{most} in place of \"default-level={}\"",
                triton.default_level
            ));
        }
        if triton.default_level == 0 {
            triton.default_level = triton.levels;
        }
        Ok(triton)
    }

    fn level(&self, priority: u8) -> u8 {
        if priority == 0 || priority > self.levels {
            self.default_level
        } else {
            priority
        }
    }

    /// A request that its level's queue has no room for, the youngest there, or the first whose timeout
    /// has passed.
    fn refused(&self, view: &View<'_>, model: ModelId) -> Option<Step> {
        if self.max_queue < view.queue(model).len() {
            let mut waiting = [0usize; 256];
            let mut over: Option<(RequestId, Key)> = None;
            for key in view.queue(model).iter() {
                let request = &view.request(key).request;
                waiting[usize::from(self.level(request.priority))] += 1;
            }
            for key in view.queue(model).iter() {
                let request = &view.request(key).request;
                if waiting[usize::from(self.level(request.priority))] > self.max_queue {
                    over = over.max(Some((request.id, key)));
                }
            }
            if let Some((_, key)) = over {
                return Some(Step::Shed(key, "exceeds the maximum queue size"));
            }
        }
        if self.timeout.is_none() || self.action == Action::Delay {
            return None;
        }
        let mut queue = view.queue(model).iter();
        let has_own = |k: Key| view.request(k).request.delay_after.is_some();
        queue
            .find(|&k| !has_own(k) && self.is_expired(view, k))
            .map(|k| Step::Shed(k, "the queue timeout has expired"))
    }

    /// When a request's queue timeout passes: its own, behind which it is delayed, or that of all.
    fn expiry(&self, view: &View<'_>, key: Key) -> Option<Time> {
        let request = &view.request(key).request;
        let timeout = request.delay_after.or(self.timeout);
        timeout.map(|t| request.arrival + t)
    }

    fn is_expired(&self, view: &View<'_>, key: Key) -> bool {
        self.expiry(view, key).is_some_and(|t| t < view.now)
    }

    /// Waiting requests in the order in which they are looked at.
    fn in_order<'a>(&'a self, view: &'a View<'_>, model: ModelId) -> impl Iterator<Item = Key> {
        let of_level = move |level: u8, expired: bool| {
            let queue = view.queue(model).iter();
            queue.filter(move |&k| {
                self.level(view.request(k).request.priority) == level
                    && self.is_expired(view, k) == expired
            })
        };
        (0..=self.levels).flat_map(move |l| of_level(l, false).chain(of_level(l, true)))
    }

    fn step(&self, view: &View<'_>, model: ModelId) -> Step {
        if let Some(refused) = self.refused(view, model) {
            return refused;
        }
        let max_batch = view.model(model).max_batch;
        let by_default = [max_batch];
        let preferred = match &self.preferred[..] {
            [] => &by_default[..],
            sizes => sizes,
        };
        let largest = preferred[preferred.len() - 1];
        let mut pending: Vec<Key> = Vec::new();
        let mut samples = 0;
        let mut best: Option<usize> = None;
        let mut is_closed = false;
        let mut oldest = Time::MAX;
        let mut expiry = Time::MAX;
        for key in self.in_order(view, model) {
            let request = &view.request(key).request;
            if let Some(&first) = pending.first() {
                if samples + request.samples > largest && best.is_none() {
                    best = Some(pending.len());
                }
                let shape = view.request(first).request.input_len;
                let fits = samples + request.samples <= max_batch;
                if !fits || (!self.pad && shape != request.input_len) {
                    is_closed = true;
                    break;
                }
            }
            pending.push(key);
            samples += request.samples;
            oldest = oldest.min(request.arrival);
            if !self.is_expired(view, key) {
                expiry = expiry.min(self.expiry(view, key).unwrap_or(Time::MAX));
            }
            if preferred.contains(&samples) {
                best = Some(pending.len());
            }
        }
        let waited = view.now.since(oldest);
        let is_due = self.delay > Nanos::ZERO && waited >= self.delay;
        let free = view.model(model).max_in_flight - view.num_in_flight(model);
        let send = |mut keys: Vec<Key>, num: usize| {
            keys.truncate(num.min(free as usize));
            Step::Send(keys, oldest)
        };
        match best.filter(|_| !is_due) {
            Some(num) => return send(pending, num),
            // There is nothing to wait for either where nobody may come.
            None if is_closed
                || samples >= largest
                || is_due
                || self.delay == Nanos::ZERO
                || !view.may_come(model) =>
            {
                let num = pending.len();
                return send(pending, num);
            }
            None => {}
        }
        let left = (self.delay - waited).0.min(expiry.since(view.now).0);
        match left / 1000 {
            0 => {
                let num = pending.len();
                send(pending, num)
            }
            us => Step::Wait(view.now + Nanos(us * 1000)),
        }
    }
}
