//! A core that begins in the midst of another's work goes on as that one does.

use crate::common::*;
use lazybatch_engine::core::{Core, Request, RequestState};
use lazybatch_engine::driver::virtual_time::{Script, SimRequest, run, untimed};
use lazybatch_engine::policy;
use lazybatch_kernels::sim::{Noise, SimDevice};
use lazybatch_sla::{ModelId, Nanos, RequestId, Time};

/// A core over a world, and its device.
fn begin(world: &World) -> (Core, SimDevice) {
    let config = config(world, &Options::default());
    let tables = config.models.iter().map(|m| m.table.clone()).collect();
    let device = SimDevice::new("sim", 1, tables, Nanos::ZERO, Noise::default());
    // It remembers nothing that matters from one decision to the next.
    let policy = policy::build("front").expect("a policy");
    (Core::new(config, policy), device)
}

/// Finish times in nanoseconds, by id.
fn finishes(
    core: &mut Core,
    device: &mut SimDevice,
    sims: &[SimRequest],
    script: &Script,
) -> Vec<u64> {
    let mut ended = run(core, device, sims, script, &mut (), &mut untimed);
    ended.sort_by_key(|e| e.id);
    ended.iter().map(|e| e.finish.0).collect()
}

/// Stops at `at`, puts what is in flight and what waits into a new core, and runs that: by id, when
/// it ended, and how many were in flight. Nothing if somebody's loop stops with the launch that ends
/// at `at`, which the first core does not know then.
fn resumed(world: &World, sims: &[SimRequest], at: Time) -> Option<(Vec<(usize, u64)>, usize)> {
    let (mut core, mut device) = begin(world);
    let script = Script {
        stop_at: Some(at),
        ..Script::default()
    };
    finishes(&mut core, &mut device, sims, &script);
    let view = core.view();
    let mut ids = Vec::new();
    let mut rest = Vec::new();
    let mut again = |state: &RequestState| -> Request {
        let of = &sims[state.request.id.index()];
        let mut sim = of.clone();
        sim.request.id = RequestId(rest.len() as u64);
        sim.request.arrival = Time::ZERO;
        ids.push(of.request.id.index());
        rest.push(sim.clone());
        sim.request
    };
    let mut entries = Vec::new();
    for entry in view.table().iter() {
        let members: Vec<_> = view.members(entry).map(|s| (again(s), s.step)).collect();
        entries.push((entry.block, entry.segment, members));
    }
    let num_placed = entries.iter().map(|e| e.2.len()).sum();
    for key in view.queue(ModelId(0)).iter() {
        again(view.request(key));
    }
    let blocks = &world.models[0].blocks;
    let stops = |(block, _, members): &(u32, u32, Vec<(Request, u32)>)| {
        let passes = |r: &Request| {
            let sim = &rest[r.id.index()];
            blocks[*block as usize].passes(r.input_len, sim.output_len)
        };
        members.iter().any(|(r, step)| *step >= passes(r))
    };
    if entries.iter().any(stops) {
        return None;
    }
    let (mut core, mut device) = begin(world);
    for (block, segment, members) in entries {
        core.place(Time::ZERO, block, segment, members);
    }
    let script = Script {
        num_placed,
        ..Script::default()
    };
    let ends = finishes(&mut core, &mut device, &rest, &script);
    assert_eq!(core.num_open(), 0);
    Some((ids.into_iter().zip(ends).collect(), num_placed))
}

#[test]
fn a_core_that_begins_in_the_midst_of_work_goes_on_as_the_other() {
    let shape = Shape {
        max_models: 1,
        ..Shape::default()
    };
    let (mut num_placed, mut num_resumed) = (0, 0);
    for seed in 0..num_cases(100) {
        let mut rng = rng(seed);
        let world = random_world(&mut rng, shape);
        let mut arrivals = random_arrivals(&mut rng, &world, 24);
        for arrival in &mut arrivals {
            arrival.sequence = None;
            arrival.delay = None;
        }
        let options = Options {
            record: true,
            ..Options::default()
        };
        let whole = simulate(&world, "front", &arrivals, &options);
        let last = arrivals.last().map_or(0, |a| a.at);
        let sims = sim_requests(&arrivals, false);
        // The device is busy from the last arrival on: one launch ends where the next begins.
        let mut stops: Vec<Time> = whole
            .launches()
            .map(|l| l.0)
            .filter(|t| t.0 > last)
            .collect();
        stops.dedup();
        for &at in stops.iter().step_by(1 + stops.len() / 8) {
            let Some((ends, placed)) = resumed(&world, &sims, at) else {
                continue;
            };
            num_resumed += 1;
            num_placed += placed;
            for (id, finish) in ends {
                let expected = whole.ended[id].finish;
                assert_eq!(
                    at + Nanos(finish),
                    expected,
                    "seed {seed}, at {at}: request {id}"
                );
            }
        }
    }
    assert!(
        num_resumed > 50 && num_placed > 200,
        "{num_resumed}, {num_placed}"
    );
}
