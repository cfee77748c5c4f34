//! What happens in a running engine, for those who look at it while it runs.
//!
//! A [`Monitor`] of an engine gives a [`Look`] at what it does just now, and a [`Watch`], which has
//! what passed since it was last asked. While nobody watches, an engine looks at a flag for each
//! event and remembers nothing; what it remembers for watchers is bounded, and who asks too seldom
//! loses the oldest of it.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lazybatch_sla::{Histogram, Launch, ModelId, Nanos, RequestId, SubBatchId, Time};
use tokio::sync::oneshot;

use crate::core::{Action, Core, Event, SubBatch};
use crate::driver::Observer;
use crate::driver::command::Command;
use crate::driver::figures::Planning;
use crate::embed::Shared;
use crate::timeline::{Names, nodes};

/// Something that passed a driver.
#[derive(Clone, Debug)]
pub enum Seen {
    /// An arrival, an end of a launch, or a model that came.
    Event(Event),
    /// A launch that was issued.
    Launch(Launch),
    /// The end of a request.
    Action(Action),
}

/// How often an engine that is watched tells what it does without being asked.
const LOOK_EVERY: Nanos = Nanos(50_000_000);
/// What is remembered for watchers counts by the members of its launches.
const MOST: usize = 1 << 18;

fn weight(seen: &Seen) -> usize {
    match seen {
        Seen::Launch(launch) => 1 + launch.members.len(),
        Seen::Event(_) | Seen::Action(_) => 1,
    }
}

/// What is shared between an engine's driver and those who watch it.
#[derive(Default)]
pub(crate) struct Tape {
    /// How many watch.
    watchers: AtomicUsize,
    kept: Mutex<Kept>,
    /// The last look that was told.
    look: Mutex<Option<Arc<Look>>>,
}

#[derive(Default)]
struct Kept {
    /// Number of the oldest entry.
    first: u64,
    entries: VecDeque<Arc<(Time, Seen)>>,
    weight: usize,
    /// Behind all entries.
    names: Names,
}

impl Kept {
    fn end(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    fn push(&mut self, now: Time, seen: Seen) {
        self.weight += weight(&seen);
        self.entries.push_back(Arc::new((now, seen)));
        while self.weight > MOST {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        if let Some(oldest) = self.entries.pop_front() {
            self.weight -= weight(&oldest.1);
            self.first += 1;
        }
    }
}

impl Tape {
    /// Empty, with the models that are there from the start.
    pub fn new(names: Names) -> Self {
        let kept = Kept {
            names,
            ..Kept::default()
        };
        Self {
            kept: Mutex::new(kept),
            ..Self::default()
        }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether someone watches, for a first look: it changes under the locks of what is kept.
    fn is_watched(&self) -> bool {
        self.watchers.load(Ordering::Relaxed) > 0
    }

    fn look(&self) -> MutexGuard<'_, Option<Arc<Look>>> {
        self.look.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether someone watches and the last look is not of just now, or was idle.
    pub fn wants_look(&self, now: Time) -> bool {
        let is_old = |look: &Arc<Look>| look.running.is_empty() || now.since(look.at) >= LOOK_EVERY;
        self.is_watched() && self.look().as_ref().is_none_or(is_old)
    }

    /// Tells what is being done.
    pub fn show(&self, look: Arc<Look>) {
        let mut shown = self.look();
        // Under the lock: the last watcher who goes clears it behind its own going.
        if self.is_watched() {
            *shown = Some(look);
        }
    }

    /// Keeps what passes, if someone watches.
    fn keep(&self, now: Time, seen: impl FnOnce() -> Seen) {
        if !self.is_watched() {
            return;
        }
        let mut kept = self.kept();
        // Again under the lock: the last watcher may have gone meanwhile, and cleared it.
        if self.is_watched() {
            kept.push(now, seen());
        }
    }

    /// Entries that are kept.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.kept().entries.len()
    }
}

/// Puts what passes a driver on its tape.
pub(crate) struct Recorder(pub Arc<Tape>);

impl Observer for Recorder {
    fn on_event(&mut self, now: Time, event: &Event) {
        if let Event::Attach(attach) = event {
            // Whoever comes later needs the name too.
            self.0.kept().names.attach(attach);
        }
        let is_told = matches!(
            event,
            Event::Arrive(_) | Event::Done { .. } | Event::Attach(_)
        );
        if is_told {
            self.0.keep(now, || Seen::Event(event.clone()));
        }
    }

    fn on_launch(&mut self, now: Time, launch: &Launch) {
        self.0.keep(now, || Seen::Launch(launch.clone()));
    }

    fn on_action(&mut self, now: Time, action: &Action) {
        if matches!(action, Action::Finish { .. }) {
            self.0.keep(now, || Seen::Action(action.clone()));
        }
    }
}

/// One who watches an engine, until it is dropped.
pub struct Watch {
    tape: Arc<Tape>,
    next: u64,
    names: Names,
}

/// What passed since a watcher last asked.
#[derive(Debug)]
pub struct Passed {
    /// In order.
    pub seen: Vec<Arc<(Time, Seen)>>,
    /// How much older was lost.
    pub lost: u64,
    /// Names of the models that were there before the first of it.
    pub names: Names,
}

impl Passed {
    /// Shows it to an observer.
    pub fn replay(&self, observer: &mut impl Observer) {
        for entry in &self.seen {
            let (now, seen) = &**entry;
            match seen {
                Seen::Event(event) => observer.on_event(*now, event),
                Seen::Launch(launch) => observer.on_launch(*now, launch),
                Seen::Action(action) => observer.on_action(*now, action),
            }
        }
    }
}

impl Watch {
    fn new(tape: Arc<Tape>) -> Self {
        let (next, names) = {
            let kept = tape.kept();
            tape.watchers.fetch_add(1, Ordering::Relaxed);
            (kept.end(), kept.names.clone())
        };
        Self { tape, next, names }
    }

    /// What the engine did when it last told: while something is launched, within some 50 ms or the
    /// length of a launch.
    pub fn latest(&self) -> Option<Arc<Look>> {
        self.tape.look().clone()
    }

    /// What passed since the last time, or since the watch began.
    pub fn take(&mut self) -> Passed {
        let kept = self.tape.kept();
        let lost = kept.first.saturating_sub(self.next);
        let from = self.next.max(kept.first) - kept.first;
        let seen: Vec<_> = kept.entries.range(from as usize..).cloned().collect();
        self.next = kept.end();
        // Models that came with what was lost are known to the tape only.
        let latest = (lost > 0).then(|| kept.names.clone());
        drop(kept);
        let names = latest.unwrap_or_else(|| self.names.clone());
        self.names.clone_from(&names);
        for entry in &seen {
            if let Seen::Event(Event::Attach(attach)) = &entry.1 {
                self.names.attach(attach);
            }
        }
        Passed { seen, lost, names }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut kept = self.tape.kept();
        if self.tape.watchers.fetch_sub(1, Ordering::Relaxed) == 1 {
            while !kept.entries.is_empty() {
                kept.drop_oldest();
            }
            kept.entries.shrink_to_fit();
            *self.tape.look() = None;
        }
    }
}

/// Most entries of the batch table that a [`Look`] lists.
const MOST_ENTRIES: usize = 256;
/// Most members that it lists of an entry.
const MOST_MEMBERS: usize = 64;

/// What an engine does at one moment.
#[derive(Clone, Debug)]
pub struct Look {
    /// When, on the engine's clock.
    pub at: Time,
    /// Launches that run: the sub-batch of each and when it was issued.
    pub running: Vec<(SubBatchId, Time)>,
    /// Sub-batches, the bottom of the batch table first.
    pub table: Vec<Entry>,
    /// How many more there are.
    pub more: usize,
}

/// A sub-batch.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its id.
    pub id: SubBatchId,
    /// Its model.
    pub model: ModelId,
    /// The model's name.
    pub name: String,
    /// Where it stands: the nodes that run, or those that come next; as `encoder.3-5`.
    pub nodes: String,
    /// Samples of all members.
    pub samples: u32,
    /// How many members there are.
    pub num_members: usize,
    /// The first of them, each with its pass through the block.
    pub members: Vec<(RequestId, u32)>,
    /// Whether it was launched before.
    pub has_started: bool,
}

impl Look {
    /// At a core that has decided.
    pub(crate) fn of(core: &Core, now: Time) -> Self {
        let view = core.view();
        let launches = || core.running();
        let entry = |e: &SubBatch| {
            // Cursors advance at the launch; it stands where it runs.
            let launch = launches().find(|(l, _)| l.sub_batch == e.id).map(|l| l.0);
            let spec = view.model(e.model);
            let (block, range): (u32, Range<u32>) = match launch {
                Some(l) => (l.block, l.first_node..l.end_node),
                None => {
                    let block = &spec.blocks[e.block as usize];
                    (e.block, block.segments[e.segment as usize].clone())
                }
            };
            let members = view.members(e).take(MOST_MEMBERS);
            Entry {
                id: e.id,
                model: e.model,
                name: spec.name.clone(),
                nodes: nodes(&spec.blocks[block as usize].name, &range),
                samples: e.samples,
                num_members: e.num_members(),
                members: members.map(|r| (r.request.id, r.step)).collect(),
                has_started: e.has_started(),
            }
        };
        let mut table: Vec<Entry> = view.table().iter().take(MOST_ENTRIES).map(entry).collect();
        let more = view.table().len() - table.len();
        // One that ends with its launch is in the table no more.
        for (launch, _) in launches() {
            if table.iter().all(|e| e.id != launch.sub_batch) && table.len() < MOST_ENTRIES {
                let spec = view.model(launch.model);
                let block = &spec.blocks[launch.block as usize].name;
                let members = launch.members.iter().take(MOST_MEMBERS);
                table.push(Entry {
                    id: launch.sub_batch,
                    model: launch.model,
                    name: spec.name.clone(),
                    nodes: nodes(block, &(launch.first_node..launch.end_node)),
                    samples: launch.num_samples(),
                    num_members: launch.members.len(),
                    members: members.map(|m| (m.request, m.step)).collect(),
                    has_started: true,
                });
            }
        }
        Self {
            at: now,
            running: launches().map(|(l, at)| (l.sub_batch, at)).collect(),
            table,
            more,
        }
    }
}

/// Looks at an engine, as long as there is one.
#[derive(Clone)]
pub struct Monitor {
    shared: Arc<Shared>,
}

impl Monitor {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// What the engine does, told when its driver comes to it: where the device runs in place,
    /// behind the launch that runs. An engine that is gone tells nothing.
    pub fn look(&self) -> oneshot::Receiver<Arc<Look>> {
        let (tx, rx) = oneshot::channel();
        drop(self.shared.outbox.send(Command::Look(tx)));
        rx
    }

    /// Begins to watch.
    pub fn watch(&self) -> Watch {
        Watch::new(self.shared.tape.clone())
    }

    /// How many watch.
    pub fn num_watchers(&self) -> usize {
        self.shared.tape.watchers.load(Ordering::Relaxed)
    }

    /// How long decisions with a real choice took, in nanoseconds; empty without
    /// [`crate::Builder::measure_decisions`].
    pub fn decisions(&self) -> Histogram {
        self.shared.stats().decisions.clone()
    }

    /// The rule that the policy decides by, and the plans that chose it.
    pub fn planning(&self) -> Planning {
        self.shared.stats().planning.clone()
    }

    /// Time on the engine's clock.
    pub fn now(&self) -> Time {
        self.shared.clock.now()
    }

    /// Whether both look at the same engine.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lazybatch_sla::{LaneId, Member, Slot, Ticket};

    fn launch(members: usize) -> Launch {
        let member = |i| Member {
            request: RequestId(i as u64),
            slot: Slot(0),
            step: 0,
            input_len: 0,
            samples: 1,
            idle: false,
        };
        Launch {
            ticket: Ticket(0),
            lane: LaneId(0),
            model: ModelId(0),
            block: 0,
            segment: 0,
            first_node: 0,
            end_node: 1,
            sub_batch: SubBatchId(0),
            members: (0..members).map(member).collect(),
            padded_len: None,
            merged_members: 0,
        }
    }

    #[test]
    fn nothing_is_kept_unless_someone_watches() {
        let tape = Arc::new(Tape::default());
        let mut recorder = Recorder(tape.clone());
        recorder.on_launch(Time(1), &launch(3));
        assert_eq!(tape.len(), 0);
        let mut watch = Watch::new(tape.clone());
        let mut other = Watch::new(tape.clone());
        recorder.on_launch(Time(2), &launch(3));
        recorder.on_event(Time(3), &Event::Wake);
        assert_eq!((tape.len(), watch.take().seen.len()), (1, 1));
        assert_eq!(watch.take().seen.len(), 0, "taken before");
        assert_eq!(other.take().seen.len(), 1, "each has its own place");
        drop(watch);
        recorder.on_launch(Time(4), &launch(3));
        assert_eq!(other.take().seen.len(), 1);
        drop(other);
        assert_eq!(tape.len(), 0);
        recorder.on_launch(Time(5), &launch(3));
        assert_eq!((tape.len(), tape.kept().weight), (0, 0));
    }

    #[test]
    fn what_passes_while_the_last_watcher_goes_is_not_kept() {
        let tape = Arc::new(Tape::default());
        let is_over = std::sync::atomic::AtomicBool::new(false);
        let look = Arc::new(Look {
            at: Time(1),
            running: Vec::new(),
            table: Vec::new(),
            more: 0,
        });
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut recorder = Recorder(tape.clone());
                let one = launch(1);
                while !is_over.load(Ordering::Relaxed) {
                    recorder.on_launch(Time(1), &one);
                    tape.show(look.clone());
                }
            });
            let left = (0..20_000).map(|_| {
                drop(Watch::new(tape.clone()));
                tape.len() + usize::from(tape.look().is_some())
            });
            let left: usize = left.sum();
            is_over.store(true, Ordering::Relaxed);
            assert_eq!(left, 0);
        });
    }

    #[test]
    fn who_asks_too_seldom_loses_the_oldest() {
        let tape = Arc::new(Tape::default());
        let mut recorder = Recorder(tape.clone());
        let mut watch = Watch::new(tape.clone());
        let each = 1023;
        for i in 0..300 {
            recorder.on_launch(Time(i), &launch(each));
        }
        let passed = watch.take();
        assert_eq!(passed.seen.len(), MOST / (each + 1));
        assert_eq!(passed.lost, 300 - passed.seen.len() as u64);
        assert_eq!(passed.seen.last().unwrap().0, Time(299));
        assert_eq!(watch.take().lost, 0);
    }
}
