//! The checker finds planted bugs: the transcript of a good run is tampered with, and the checker
//! must name the rule that it breaks.
//!
//! The good run, in microseconds (one model: `enc`, two nodes of 10, then `dec`, one node of 5 until
//! the output ends; max batch 2; outputs of 1, 2 and 1):
//!
//! | ticket | from | entry | what |
//! |---|---|---|---|
//! | t0 | 0 | b0 | enc.0 of r0 |
//! | t1 | 10 | b1 | enc.0 of r1, b0 parked |
//! | t2 | 20 | b0 | enc.1 of r0 and r1 |
//! | t3 | 30 | b0 | dec of r0 and r1; r0 ends |
//! | t4 | 35 | b2 | enc.0 of r2, b0 parked |
//! | t5 | 45 | b2 | enc.1 of r2, b0 parked |
//! | t6 | 55 | b0 | dec of r1 and r2; both end |

#![allow(clippy::unwrap_used, reason = "the good run is known")]

use crate::common::*;
use lazybatch_engine::core::checker::{Checker, Violation};
use lazybatch_engine::core::{Action, CoreConfig, Event, Note};
use lazybatch_sla::{Launch, ModelId, Outcome, RequestId, SubBatchId, Ticket, Time};

/// A transcript to tamper with.
struct Transcript {
    config: CoreConfig,
    stack: bool,
    items: Vec<(Time, Item)>,
}

/// Records a run that the checker accepts, twice: live, and from the transcript.
fn record(world: &World, policy: &str, arrivals: &[Arrival], depth: u32) -> Transcript {
    let stack = policy == "lazy";
    let options = Options {
        lane_depths: vec![depth],
        notes: true,
        stack,
        record: true,
        ..Options::default()
    };
    let run = simulate(world, policy, arrivals, &options);
    let transcript = Transcript {
        config: run.config,
        stack,
        items: run.transcript,
    };
    assert_eq!(transcript.judge(), Ok(()), "untampered");
    transcript
}

/// The run of the module's table, of a world with a second, idle model.
fn good() -> Transcript {
    let model = Model {
        max_batch: 2,
        p90: 1,
        blocks: vec![
            Block {
                rep: Rep::Once,
                nodes: vec![Node::constant(10_000), Node::constant(10_000)],
            },
            Block {
                rep: Rep::Until(None),
                nodes: vec![Node::constant(5_000)],
            },
        ],
    };
    let world = World {
        models: vec![model.clone(), model],
        dispatch: 0,
    };
    let arrivals = [
        Arrival::new(0, 0, 1, 1, None),
        Arrival::new(5_000, 0, 1, 2, None),
        Arrival::new(6_000, 0, 1, 1, None),
    ];
    let good = record(&world, "lazy", &arrivals, 1);
    let launches: Vec<(u64, u64, usize)> = good
        .items
        .iter()
        .filter_map(|(now, item)| match item {
            Item::Launch(l) => Some((now.0, l.sub_batch.0, l.members.len())),
            _ => None,
        })
        .collect();
    let table = [
        (0, 0, 1),
        (10_000, 1, 1),
        (20_000, 0, 2),
        (30_000, 0, 2),
        (35_000, 2, 1),
        (45_000, 2, 1),
        (55_000, 0, 2),
    ];
    assert_eq!(launches, table, "the module's table");
    good
}

impl Transcript {
    fn judge(&self) -> Result<(), Violation> {
        let mut checker = Checker::new(&self.config, self.stack);
        for (now, item) in &self.items {
            match item {
                Item::Event(event) => checker.on_event(*now, event)?,
                Item::Launch(launch) => checker.on_launch(*now, launch)?,
                Item::Action(action) => checker.on_action(*now, action)?,
            }
        }
        checker.finish()
    }

    #[track_caller]
    fn breaks(&self, rule: u32, what: &str) {
        let violation = self.judge().expect_err("a planted bug");
        assert_eq!(violation.rule, rule, "{violation}");
        assert!(violation.what.contains(what), "{violation}");
    }

    fn position(&self, is_it: impl Fn(&Item) -> bool) -> usize {
        self.items.iter().position(|(_, i)| is_it(i)).unwrap()
    }

    fn at_launch(&self, ticket: u64) -> usize {
        self.position(|i| matches!(i, Item::Launch(l) if l.ticket == Ticket(ticket)))
    }

    fn at_done(&self, ticket: u64) -> usize {
        self.position(
            |i| matches!(i, Item::Event(Event::Done { ticket: t, .. }) if *t == Ticket(ticket)),
        )
    }

    fn at_finish(&self, id: u64) -> usize {
        self.position(
            |i| matches!(i, Item::Action(Action::Finish { request, .. }) if *request == RequestId(id)),
        )
    }

    fn launch(&mut self, ticket: u64) -> &mut Launch {
        let at = self.at_launch(ticket);
        match &mut self.items[at].1 {
            Item::Launch(launch) => launch,
            _ => unreachable!("found as a launch"),
        }
    }

    fn set_done(&mut self, at: usize, to: u64) {
        match &mut self.items[at].1 {
            Item::Event(Event::Done { ticket, .. }) => *ticket = Ticket(to),
            other => panic!("no completion: {other:?}"),
        }
    }

    fn set_outcome(&mut self, id: u64, to: Outcome) {
        let at = self.at_finish(id);
        match &mut self.items[at].1 {
            Item::Action(Action::Finish { outcome, .. }) => *outcome = to,
            _ => unreachable!("found as an end"),
        }
    }

    /// Adds `by` to the tickets of all launches and completions at or behind `from`.
    fn renumber(&mut self, from: usize, by: i64) {
        for (_, item) in &mut self.items[from..] {
            match item {
                Item::Launch(l) => l.ticket.0 = l.ticket.0.checked_add_signed(by).unwrap(),
                Item::Event(Event::Done { ticket, .. }) => {
                    ticket.0 = ticket.0.checked_add_signed(by).unwrap();
                }
                _ => {}
            }
        }
    }
}

#[test]
fn the_good_run_is_good() {
    assert_eq!(good().judge(), Ok(()));
}

// Rule 1.

#[test]
fn time_going_back() {
    let mut t = good();
    let at = t.at_done(2);
    t.items[at].0 = Time(t.items[at - 1].0.0 - 1);
    t.breaks(1, "time goes back");
}

// Rule 2.

#[test]
fn a_node_run_twice() {
    let mut t = good();
    // t1 once more behind its completion, as t2; the others move up.
    let (launch, done) = (t.at_launch(1), t.at_done(1));
    let again = [t.items[launch].clone(), t.items[done].clone()];
    let now = t.items[done].0;
    t.items.splice(
        done + 1..done + 1,
        again.into_iter().map(|(_, item)| (now, item)),
    );
    t.renumber(done + 1, 1);
    t.breaks(
        2,
        "r1 stands at block 0 node 1 step 0, t2 runs block 0 node 0",
    );
}

#[test]
fn a_node_skipped() {
    let mut t = good();
    // t2 never happens; the others move down.
    let (launch, done) = (t.at_launch(2), t.at_done(2));
    t.items.remove(done);
    t.items.remove(launch);
    t.renumber(launch, -1);
    t.breaks(
        2,
        "r0 stands at block 0 node 1 step 0, t2 runs block 1 node 0",
    );
}

#[test]
fn a_merge_of_different_cursors() {
    let mut t = good();
    // r0 stands at enc.1 and joins r1 at enc.0.
    let r0 = t.launch(0).members[0];
    t.launch(1).members.push(r0);
    t.breaks(
        2,
        "r0 stands at block 0 node 1 step 0, t1 runs block 0 node 0",
    );
}

#[test]
fn a_step_of_another_member() {
    let mut t = good();
    // r1 runs its second step, r2 its first.
    t.launch(6).members[1].step = 1;
    t.breaks(2, "r2 stands at block 1 node 0 step 0");
}

#[test]
fn a_stop_of_who_is_not_a_member() {
    let mut t = good();
    let at = t.at_done(3);
    match &mut t.items[at].1 {
        Item::Event(Event::Done { stopped, .. }) => stopped.push(RequestId(2)),
        _ => unreachable!("found as a completion"),
    }
    t.breaks(2, "r2 stops but is not a member of t3");
}

// Rule 3.

#[test]
fn a_member_in_one_launch_twice() {
    let mut t = good();
    let r0 = t.launch(0).members[0];
    t.launch(0).members.push(r0);
    t.breaks(3, "r0 is in t0 twice");
}

#[test]
fn a_member_of_another_model() {
    let mut t = good();
    t.launch(2).model = ModelId(1);
    t.breaks(3, "r0 is not of");
}

#[test]
fn an_idle_member_of_a_packed_batch() {
    let mut t = good();
    t.launch(2).members[1].idle = true;
    t.breaks(3, "r1 idles");
}

// Rule 4.

#[test]
fn an_over_full_batch() {
    let mut t = good();
    let r2 = t.launch(4).members[0];
    t.launch(2).members.push(r2);
    t.breaks(4, "t2 carries 3 samples");
}

// Rule 5.

#[test]
fn completions_out_of_order() {
    // Two launches at a time on one lane.
    let world = World::chain(1, vec![Node::constant(10_000); 3]);
    let mut t = record(&world, "lazy", &[Arrival::new(0, 0, 0, 0, None)], 2);
    let (first, second) = (t.at_done(0), t.at_done(1));
    t.set_done(first, 1);
    t.set_done(second, 0);
    t.breaks(5, "t1 completes but is not the oldest");
}

#[test]
fn a_completion_of_an_unknown_ticket() {
    let mut t = good();
    let at = t.at_done(2);
    t.set_done(at, 99);
    t.breaks(5, "t99 completes");
}

#[test]
fn a_completion_twice() {
    let mut t = good();
    let at = t.at_done(2);
    t.items.insert(at + 1, t.items[at].clone());
    t.breaks(5, "t2 completes");
}

#[test]
fn a_lost_launch() {
    let mut t = good();
    let (launch, done) = (t.at_launch(2), t.at_done(2));
    t.items.remove(done);
    t.items.remove(launch);
    t.breaks(5, "t3 follows");
}

#[test]
fn a_lost_completion() {
    let mut t = good();
    let at = t.at_done(0);
    t.items.remove(at);
    t.breaks(5, "has more than 1 launches");
}

#[test]
fn a_last_launch_that_never_completes() {
    let mut t = good();
    let at = t.at_done(6);
    t.items.truncate(at);
    t.breaks(5, "t6 never completes");
}

// Rule 6.

#[test]
fn a_lost_request() {
    let mut t = good();
    let at = t.at_finish(1);
    t.items.remove(at);
    t.breaks(6, "r1 never ends (1 open)");
}

#[test]
fn a_request_that_finishes_twice() {
    let mut t = good();
    let at = t.at_finish(0);
    t.items.insert(at + 1, t.items[at].clone());
    t.breaks(6, "r0 ends (met) but is not open");
}

#[test]
fn a_request_that_arrives_twice() {
    let mut t = good();
    let at = t.position(|i| matches!(i, Item::Event(Event::Arrive(_))));
    t.items.insert(at + 1, t.items[at].clone());
    t.breaks(6, "r0 arrives twice");
}

#[test]
fn an_end_before_the_last_pass_completes() {
    let mut t = good();
    // r0 ends while its last pass is in flight.
    let at = t.at_finish(0);
    let early = t.items.remove(at);
    let done = t.at_done(3);
    t.items.insert(done, (Time(30_000), early.1));
    t.breaks(6, "r0 ends as met");
}

#[test]
fn met_though_late() {
    let world = World::chain(1, vec![Node::constant(10_000)]);
    let late = [Arrival::new(0, 0, 0, 0, Some(9_999))];
    let mut t = record(&world, "lazy", &late, 1);
    t.set_outcome(0, Outcome::Met);
    t.breaks(6, "r0 ends as met");
}

#[test]
fn violated_though_in_time() {
    let world = World::chain(1, vec![Node::constant(10_000)]);
    let just = [Arrival::new(0, 0, 0, 0, Some(10_000))];
    let mut t = record(&world, "lazy", &just, 1);
    t.set_outcome(0, Outcome::Violated);
    t.breaks(6, "r0 ends as violated");
}

#[test]
fn outcomes_without_their_cause() {
    for outcome in [Outcome::Failed, Outcome::Cancelled, Outcome::Shed] {
        let mut t = good();
        t.set_outcome(1, outcome);
        t.breaks(6, "r1 ends as");
    }
}

// Rule 7.

#[test]
fn a_launch_below_the_top() {
    let mut t = good();
    // b1 was pushed onto b0.
    t.launch(1).sub_batch = SubBatchId(0);
    t.breaks(7, "b0 is launched, the table is [b0, b1]");
}

#[test]
fn a_launch_below_the_top_is_fine_without_a_stack() {
    let mut t = good();
    t.launch(1).sub_batch = SubBatchId(0);
    t.stack = false;
    assert_eq!(t.judge(), Ok(()));
}

#[test]
fn a_merge_upwards() {
    let mut t = good();
    let at = t.position(|i| matches!(i, Item::Action(Action::Note(Note::Merge { .. }))));
    t.items[at].1 = Item::Action(Action::Note(Note::Merge {
        into: SubBatchId(1),
        from: SubBatchId(0),
    }));
    t.breaks(7, "b0 is not on top of b1");
}

// Rule 11.

#[test]
fn a_launch_of_a_sequence_in_the_backlog() {
    let mut t = good();
    let (model, sequence) = (ModelId(0), 7);
    for (_, item) in &mut t.items {
        if let Item::Event(Event::Arrive(request)) = item {
            request.sequence = Some(sequence);
        }
    }
    let (hold, let_go) = (
        (Time(0), Item::Event(Event::Hold { model, sequence })),
        (Time(0), Item::Event(Event::LetGo { model, sequence })),
    );
    t.items.insert(0, hold);
    t.breaks(11, "r0 runs, whose sequence is in the backlog");
    t.items.insert(1, let_go);
    assert_eq!(t.judge(), Ok(()));
}
