//! What core and policy hold does not grow with the number of requests.
//!
//! An allocator counts the bytes that are live; the driver of this test keeps nothing of a request
//! that has ended.

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use lazybatch_engine::core::{Action, Core, CoreConfig, Event, ModelSpec, Request};
use lazybatch_engine::driver::plan::{self, Crew};
use lazybatch_engine::policy;
use lazybatch_graph::Repeat;
use lazybatch_sla::{ClassId, ModelId, Nanos, Profile, RequestId, Time};

static LIVE: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, counting.
struct Counting;

// SAFETY: all calls go to the system's allocator as they come.
#[allow(unsafe_code, reason = "an allocator is unsafe by its trait")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's contract is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's contract is passed on.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const PROFILE: &str = r#"{ "format": "lazybatch-profile/1", "device": "t", "models": [
    { "name": "m", "max_batch": 8, "output_len_p90": 3, "blocks": [
        { "name": "encoder", "repeat": "once",
          "nodes": [{ "name": "e", "by": "rows", "latency_us": [[1, 20.0], [64, 30.0]] }] },
        { "name": "decoder", "repeat": "until_stop", "max_steps": 8,
          "nodes": [{ "name": "d", "by": "members", "latency_us": [[1, 10.0], [8, 12.0]] }] }] }] }"#;

/// Without a loop, and fast enough for those that run one request at a time.
const STATIC: &str = r#"{ "format": "lazybatch-profile/1", "device": "t", "models": [
    { "name": "m", "max_batch": 8, "blocks": [
        { "name": "encoder", "repeat": "once",
          "nodes": [{ "name": "e", "by": "rows", "latency_us": [[1, 7.0], [64, 90.0]] },
                    { "name": "f", "by": "rows", "latency_us": [[1, 3.0], [64, 20.0]] }] }] }] }"#;

/// Serves requests one after another as they come, at about 80 % of what the device can bear, and
/// says how many bytes are live at each of `marks`.
fn live_at(profile: &str, policy_spec: &str, marks: &[u64]) -> Vec<usize> {
    let profile = Profile::parse("t", profile).expect("a valid profile");
    let spec = ModelSpec::from_profile(&profile, &profile.models[0], 1, 3);
    let table = spec.table.clone();
    let mut core = Core::new(
        CoreConfig::new(vec![spec]),
        policy::build(policy_spec).expect("a registered policy"),
    );
    let output_len = |id: RequestId| 1 + (id.0 * 7 % 3) as u32;
    let mut running: Option<(Time, Event)> = None;
    let mut planned = None;
    let (mut now, mut next, mut arrival) = (Time::ZERO, 0, Time::ZERO);
    let mut live = Vec::new();
    while live.len() < marks.len() {
        now = match &running {
            Some((end, _)) if *end <= arrival => *end,
            _ => arrival.max(now),
        };
        if let Some((_, done)) = running.take_if(|r| r.0 <= now) {
            core.handle(now, done);
        }
        if let Some(plan) = planned.take() {
            core.handle(now, Event::Planned(plan));
        }
        if arrival <= now {
            if marks.contains(&next) {
                live.push(LIVE.load(Ordering::Relaxed));
            }
            let request = Request {
                id: RequestId(next),
                model: ModelId(0),
                arrival: now,
                // One in four cannot be in time.
                sla: Some(Nanos(if next % 4 == 0 { 30_000 } else { 400_000 })),
                class: ClassId::default(),
                priority: 0,
                delay_after: None,
                samples: 1,
                input_len: 1 + (next % 8) as u32,
                sequence: (next % 16 == 0).then_some(next),
                max_steps: None,
                known_output_len: None,
            };
            core.handle(now, Event::Arrive(request));
            next += 1;
            // Bursts of eight, so that batches form.
            arrival = now + Nanos(if next % 8 == 0 { 150_000 } else { 1_000 });
        }
        while let Some(action) = core.poll_action(now) {
            match action {
                Action::Launch { ticket, lane } => {
                    let launch = core.launch(lane, ticket);
                    let took = table.segment(
                        launch.block,
                        launch.segment,
                        launch.num_samples(),
                        launch.num_rows(),
                    );
                    let repeat = core.config().models[0].blocks[launch.block as usize].repeat;
                    let loops = matches!(repeat, Repeat::UntilStop { .. });
                    let members = launch.members.iter().filter(|m| loops && !m.idle);
                    let stopped = members
                        .filter(|m| m.step + 1 == output_len(m.request))
                        .map(|m| m.request)
                        .collect();
                    let done = Event::Done {
                        ticket,
                        stopped,
                        faults: Vec::new(),
                        failed: None,
                        took: None,
                    };
                    running = Some((now + took, done));
                }
                Action::Plan => {
                    let request = core.take_plan().expect("asked for together");
                    planned = Some(plan::make(&request, request.budget, &Crew::ALONE).plan);
                }
                _ => {}
            }
        }
    }
    live
}

/// Bytes that containers may round up to while they find their size.
const MARGIN: usize = 64 * 1024;

#[test]
fn what_is_held_does_not_grow_with_the_run() {
    // A map of the open requests would be that much for 150,000 of them.
    let before = LIVE.load(Ordering::Relaxed);
    let map: HashMap<u64, (u64, u64)> = (0..150_000).map(|i| (i, (i, i))).collect();
    let grown = LIVE.load(Ordering::Relaxed) - before;
    assert!(
        grown > 50 * MARGIN,
        "the count sees {grown} of {}",
        map.len()
    );
    drop(map);
    let (long, short) = ([50_000, 100_000, 200_000], [20_000, 30_000, 40_000]);
    let cases = [
        ("adaptive", long),
        ("adaptive:refuse", short),
        ("adaptive:sharing:1/0.5/0.25/shed", long),
        ("iteration:shed", short),
        ("lazy", long),
        ("edf", long),
    ];
    for (policy, marks) in cases {
        is_level(PROFILE, policy, &marks);
    }
    let others = ["adaptive:shed", "adaptive:join:1/cap95/demote", "iteration"];
    for policy in policy::examples().chain(others) {
        is_level(STATIC, policy, &short);
    }
}

/// No more is held at one of the marks than at another.
fn is_level(profile: &str, policy: &str, marks: &[u64]) {
    let live = live_at(profile, policy, marks);
    let ends = live.iter().max().zip(live.iter().min());
    let span = ends.map(|(most, least)| most - least);
    assert!(
        span.is_some_and(|s| s <= MARGIN),
        "{policy}: {live:?} bytes"
    );
}
