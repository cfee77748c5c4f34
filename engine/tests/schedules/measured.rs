//! What launches take, as policies hear of it: from the device where it measures, else from the
//! times of events, with several launches in flight too. A journal keeps what was measured.

#![allow(clippy::unwrap_used, reason = "a test says by panicking")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::*;
use lazybatch_engine::core::{Core, Event, View};
use lazybatch_engine::driver::Observer;
use lazybatch_engine::driver::virtual_time::{Script, run, untimed};
use lazybatch_engine::journal::{Header, Writer, replay};
use lazybatch_engine::policy::{self, Decision, Policy};
use lazybatch_engine::{Engine, ModelOptions};
use lazybatch_graph::Tensor;
use lazybatch_kernels::cpu::{CpuDevice, CpuOptions};
use lazybatch_kernels::sim::{Noise, SimDevice};
use lazybatch_kernels::{Completion, Device, Wrapper};
use lazybatch_sla::{Launch, Nanos, Ticket, Time};

/// What launches took, as a policy was told.
type Heard = Arc<Mutex<Vec<(Ticket, Nanos)>>>;

/// `greedy`, which notes what it is told.
struct Listening {
    inner: Box<dyn Policy>,
    heard: Heard,
}

impl Policy for Listening {
    fn decide(&mut self, view: &View<'_>) -> Decision {
        self.inner.decide(view)
    }

    fn on_done(&mut self, _now: Time, launch: &Launch, took: Nanos, _ran: Nanos) {
        self.heard.lock().unwrap().push((launch.ticket, took));
    }
}

/// A simulated device that says what launches took, by ticket.
struct Measuring(SimDevice);

fn measured(ticket: Ticket) -> Nanos {
    Nanos(7 * ticket.0 + 1)
}

impl Wrapper for Measuring {
    fn inner(&self) -> &dyn Device {
        &self.0
    }

    fn inner_mut(&mut self) -> &mut dyn Device {
        &mut self.0
    }

    fn poll(&mut self, now: Time) -> Option<Completion> {
        let done = self.0.poll(now)?;
        Some(Completion {
            busy: Some(measured(done.ticket)),
            ..done
        })
    }
}

/// Nodes of three lengths, and a dozen requests that are there at once.
fn case() -> (World, Vec<Arrival>) {
    let nodes = [300, 50, 1000].map(Node::constant).to_vec();
    let arrivals = (0..12).map(|_| Arrival::new(0, 0, 0, 0, None));
    (World::chain(4, nodes), arrivals.collect())
}

/// Runs the case with so many launches in flight: what the policy heard, the launches, the journal.
fn hear(depth: u32, measures: bool) -> (Vec<(Ticket, Nanos)>, Recorder, Vec<u8>) {
    hear_with(depth, measures, Noise::default())
}

fn hear_with(
    depth: u32,
    measures: bool,
    noise: Noise,
) -> (Vec<(Ticket, Nanos)>, Recorder, Vec<u8>) {
    let (world, arrivals) = case();
    let options = Options {
        lane_depths: vec![depth],
        ..Options::default()
    };
    let config = config(&world, &options);
    let tables = config.models.iter().map(|m| m.table.clone()).collect();
    let sim = SimDevice::new("sim", 1, tables, Nanos::ZERO, noise);
    let mut device: Box<dyn Device> = match measures {
        true => Box::new(Measuring(sim)),
        false => Box::new(sim),
    };
    let heard = Heard::default();
    let policy = Listening {
        inner: policy::build("greedy").unwrap(),
        heard: heard.clone(),
    };
    let header = Header::new("greedy", &world.profile(), &config);
    let mut both = (Writer::new(Vec::new(), &header), Recorder::default());
    let mut core = Core::new(config, Box::new(policy));
    run(
        &mut core,
        device.as_mut(),
        &sim_requests(&arrivals, false),
        &Script::default(),
        &mut both,
        &mut untimed,
    );
    let heard = std::mem::take(&mut *heard.lock().unwrap());
    (heard, both.1, both.0.finish().unwrap())
}

#[test]
fn without_measurements_each_launch_has_the_time_it_had_the_lane() {
    for depth in [1, 2, 3] {
        let (heard, passed, _) = hear(depth, false);
        let mut want = Vec::new();
        let mut most = 0;
        for (_, item) in &passed.0 {
            match item {
                Item::Launch(l) => {
                    let ns = [300, 50, 1000][l.first_node as usize];
                    want.push((l.ticket, Nanos(ns)));
                }
                Item::Event(Event::Done { ticket, took, .. }) => {
                    assert_eq!(*took, None);
                    most = most.max(want.iter().filter(|w| w.0 >= *ticket).count());
                }
                _ => {}
            }
        }
        assert_eq!(heard, want, "depth {depth}");
        assert_eq!(most, depth as usize, "launches in flight");
    }
}

#[test]
fn what_the_device_measures_is_heard_and_kept() {
    for depth in [1, 2] {
        let (heard, passed, journal) = hear(depth, true);
        assert!(heard.len() >= 9);
        for (ticket, took) in &heard {
            assert_eq!(*took, measured(*ticket));
        }
        let text = String::from_utf8(journal.clone()).unwrap();
        assert_eq!(text.matches("\"took\":").count(), heard.len());
        let mut replayed = Recorder::default();
        replay(&journal[..], &mut replayed).unwrap();
        assert!(replayed.0 == passed.0, "depth {depth}");
        // One that says nothing of it is read as before.
        let without = text.lines().map(|line| match line.find(",\"took\":") {
            Some(at) => {
                let rest = line[at + 8..].trim_start_matches(|c: char| c.is_ascii_digit());
                format!("{}{rest}\n", &line[..at])
            }
            None => format!("{line}\n"),
        });
        let without: String = without.collect();
        assert!(!without.contains("took"));
        replay(without.as_bytes(), &mut ()).unwrap();
    }
}

/// Notes when launches were issued and seen to have ended, and what they took; keeps the driver busy
/// for a while in front of each.
#[derive(Clone, Default)]
struct Slow(Arc<Mutex<Vec<Noted>>>);

/// Issue, end, and what it took.
type Noted = (Time, Time, Option<Nanos>);

const WHILE: Duration = Duration::from_millis(2);

impl Observer for Slow {
    fn on_launch(&mut self, now: Time, _launch: &Launch) {
        self.0.lock().unwrap().push((now, now, None));
        #[allow(clippy::disallowed_methods, reason = "the driver has to be kept busy")]
        std::thread::sleep(WHILE);
    }

    fn on_event(&mut self, now: Time, event: &Event) {
        if let Event::Done { took, .. } = event
            && let Some(last) = self.0.lock().unwrap().last_mut()
        {
            (last.1, last.2) = (now, *took);
        }
    }
}

#[test]
fn what_the_host_does_beside_a_launch_is_not_what_it_took() {
    let slow = Slow::default();
    let engine = Engine::builder()
        .device(CpuDevice::new(CpuOptions {
            threads: 1,
            ..CpuOptions::default()
        }))
        .model("tiny", crate::tiny::model(), ModelOptions::default())
        .observer(slow.clone(), false)
        .build()
        .unwrap();
    let letters = Tensor::from_i32(&[3], &[3, 4, 5]);
    engine
        .try_submit("tiny", vec![letters], lazybatch_engine::Options::default())
        .unwrap()
        .wait()
        .unwrap();
    engine.drain_blocking().unwrap();
    let launches = slow.0.lock().unwrap();
    assert!(launches.len() > 3);
    for &(issued, seen, took) in &*launches {
        let took = took.expect("the driver knows what it waited for");
        let beside = seen.since(issued).0 - took.0;
        assert!(took > Nanos::ZERO && u128::from(beside) >= WHILE.as_nanos());
    }
}

#[test]
fn launches_that_fail_teach_nothing() {
    for (depth, measures) in [(1, false), (1, true), (2, false), (2, true)] {
        let failing = Ticket(1);
        let noise = Noise {
            failing: vec![failing],
            ..Noise::default()
        };
        let (heard, passed, journal) = hear_with(depth, measures, noise);
        let (mut done, mut num_failed) = (Vec::new(), 0);
        for (_, item) in &passed.0 {
            if let Item::Event(Event::Done { ticket, failed, .. }) = item {
                match failed {
                    None => done.push(*ticket),
                    Some(_) => num_failed += 1,
                }
            }
        }
        let heard: Vec<Ticket> = heard.iter().map(|(ticket, _)| *ticket).collect();
        assert_eq!(heard, done, "depth {depth}");
        assert!(num_failed == 1 && !heard.contains(&failing) && heard.len() > 1);
        replay(&journal[..], &mut ()).unwrap();
    }
}
