//! What goes into the core and what comes out.

use lazybatch_sla::{
    ClassId, LaneId, ModelId, Nanos, Outcome, RequestId, Slot, SubBatchId, Ticket, Time,
};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::models::Attach;
use super::plan::Plan;
use super::why::{Hold, Why};

/// A request at its arrival.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Id; ids of arrivals increase.
    pub id: RequestId,
    /// Model to run.
    pub model: ModelId,
    /// When it arrived; at most the time at which the event is handled.
    pub arrival: Time,
    /// SLA target; `None` is met whenever it completes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sla: Option<Nanos>,
    /// SLA class.
    #[serde(default, skip_serializing_if = "is_default")]
    pub class: ClassId,
    /// Priority level, 0 is the default, 1 the highest of those stated.
    #[serde(default)]
    pub priority: u8,
    /// Behind so much waiting it is delayed: it lets all of its model pass that are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_after: Option<Nanos>,
    /// Samples of the client's own batch, at least 1.
    pub samples: u32,
    /// Length of its input; 0 for models without a sequence.
    pub input_len: u32,
    /// Correlation id: requests of one sequence run one after another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequence: Option<u64>,
    /// Most passes of `UntilStop` blocks that the client wants; 0 skips them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_steps: Option<u32>,
    /// True output length; given under the `oracle` policy only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub known_output_len: Option<u32>,
}

fn is_default(class: &ClassId) -> bool {
    *class == ClassId::default()
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// A request arrived.
    Arrive(Request),
    /// A client withdrew its request. Unknown and ended ids are ignored.
    Cancel(RequestId),
    /// A sequence of which no request is open is in the backlog: those that arrive of it wait.
    Hold {
        /// Its model.
        model: ModelId,
        /// Its correlation id.
        sequence: u64,
    },
    /// A sequence has left the backlog: its requests run one after another. One that is not in it is ignored.
    LetGo {
        /// Its model.
        model: ModelId,
        /// Its correlation id.
        sequence: u64,
    },
    /// A launch completed.
    Done {
        /// Which one; tickets of a lane complete in order.
        ticket: Ticket,
        /// Members whose `UntilStop` loop ended with it.
        stopped: SmallVec<[RequestId; 4]>,
        /// Members that failed alone, and why; none of them is in `stopped`.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        faults: Vec<(RequestId, String)>,
        /// Cause of failure, which is that of all its members.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failed: Option<String>,
        /// How long it took the device, and the host to issue it, where the device has measured it or
        /// worked on the thread that issued it; else that is told from the times of events. What of it
        /// passed while the launch ahead of it ran did not take its lane.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        took: Option<Nanos>,
    },
    /// A model's weights are resident.
    Loaded(ModelId),
    /// Drop a model's weights as soon as none of its requests is in flight.
    Evict(ModelId),
    /// A model whose weights are resident takes part from now on.
    Attach(Box<Attach>),
    /// A resident model takes no more arrivals, and goes when its last request has ended.
    Detach(ModelId),
    /// Nothing comes behind what has: there is no use in waiting for it.
    Drain,
    /// The answer to [`Action::Plan`].
    Planned(Plan),
    /// A wake-up that [`super::Core::next_wakeup`] asked for.
    Wake,
}

/// What shall be done, in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Stage a request's inputs in `slot`.
    Open {
        /// The request.
        request: RequestId,
        /// Where.
        slot: Slot,
    },
    /// Run a launch; its content is [`super::Core::launch`].
    Launch {
        /// Which one.
        ticket: Ticket,
        /// Where.
        lane: LaneId,
    },
    /// Tell the client how its request ended.
    Finish {
        /// The request.
        request: RequestId,
        /// How.
        outcome: Outcome,
        /// When it was launched first.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        first_launch: Option<Time>,
        /// Cause of a failure or refusal.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cause: Option<String>,
    },
    /// Free a slot: no launch that uses it is in flight.
    Release {
        /// The request that held it.
        request: RequestId,
        /// Which slot.
        slot: Slot,
    },
    /// Make a model's weights resident, then report [`Event::Loaded`].
    Load(ModelId),
    /// Drop a model's weights.
    Evict(ModelId),
    /// Forget a detached model: nothing of it is open, and its id may be used again.
    Vacate(ModelId),
    /// Make the plan that [`super::Core::take_plan`] describes, off the device's path, then report
    /// [`Event::Planned`].
    Plan,
    /// A change of the batch table, for timelines and the checker.
    Note(Note),
}

/// A change of the batch table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Note {
    /// Requests left the arrival queue as a new sub-batch on top of the table.
    Admit {
        /// The new entry.
        sub_batch: SubBatchId,
        /// Its members.
        members: Vec<RequestId>,
    },
    /// `from` joined `into` at the same cursor.
    Merge {
        /// Stays.
        into: SubBatchId,
        /// Goes.
        from: SubBatchId,
    },
    /// Members of `from` that are ahead became the entry `ahead`, just below it.
    Split {
        /// Keeps those less progressed.
        from: SubBatchId,
        /// The new entry.
        ahead: SubBatchId,
        /// Who moved.
        members: Vec<RequestId>,
    },
    /// `parked` waits because `by` runs.
    Preempt {
        /// Was active.
        parked: SubBatchId,
        /// Is active now.
        by: SubBatchId,
    },
    /// A request waits outside the arrival queue, for its sequence.
    Behind {
        /// Which one.
        request: RequestId,
        /// [`Hold::Sequence`] or [`Hold::Backlog`].
        hold: Hold,
    },
    /// A request that did is in the arrival queue now.
    Queue {
        /// Which one.
        request: RequestId,
    },
    /// A decision and why it was taken; under [`super::CoreConfig::reasons`] only.
    Decide(Why),
    /// The entry has no members left.
    Pop {
        /// Which one.
        sub_batch: SubBatchId,
    },
}
