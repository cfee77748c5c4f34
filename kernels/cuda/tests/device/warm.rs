//! Launches whose graphs are there before they come.

use std::ops::Range;
use std::sync::Arc;

use lazybatch_cuda::{CudaDevice, CudaOptions, GraphCounts};
use lazybatch_graph::{Act, DType, Program, ProgramBuilder, Repeat, Tensor};
use lazybatch_kernels::{Device, OpenRequest, Plan};
use lazybatch_sla::{LaneId, Launch, Member, ModelId, RequestId, Slot, SubBatchId, Ticket, Time};

use crate::process::runs_clean;
use crate::{device, options};

const MODEL: ModelId = ModelId(0);
/// Most members that are captured ahead here.
const MOST: usize = 4;

/// Two layers, then a loop over what they left.
fn program() -> Program {
    let mut b = ProgramBuilder::new("loop").with_seed(3);
    let x = b.input("x", DType::F32, &[6]);
    let y = b.output_sequence("y", DType::F32, &[5]);
    let sum = b.vector_state("sum", DType::F32, &[6], 0.5);
    b.begin_block("start", Repeat::Once);
    let v = b.read_input("x", x);
    let v = b.dense("first", v, 6, Some(Act::Relu));
    let v = b.dense("second", v, 6, None);
    b.vec_write("give", sum, v);
    b.begin_block("loop", Repeat::UntilStop { max: 8 });
    let s = b.vec_read("take", sum);
    let s = b.dense("step", s, 6, Some(Act::Tanh));
    b.vec_write("keep", sum, s);
    let v = b.dense("head", s, 5, None);
    b.emit("y", y, v);
    let best = b.arg_max("best", v);
    b.stop("stop", best, 100);
    b.finish().unwrap()
}

/// Layers over the positions of a sequence, whose mean is the answer.
fn sequences() -> Program {
    let mut b = ProgramBuilder::new("sequences").with_seed(4);
    let x = b.sequence("x", DType::F32, &[6], 32);
    let y = b.output("y", DType::F32, &[4]);
    b.begin_block("main", Repeat::Once);
    let v = b.read_input("x", x);
    let v = b.dense("first", v, 4, Some(Act::Relu));
    let v = b.mean_rows("mean", v);
    b.emit("y", y, v);
    b.finish().unwrap()
}

/// Segments of a program, two nodes each, with their plans.
fn prepare(device: &mut CudaDevice, program: &Program) -> Vec<Vec<(Range<u32>, Plan)>> {
    let blocks = program.blocks.iter().enumerate().map(|(b, block)| {
        let end = block.nodes.len() as u32;
        let starts = (0..end).step_by(2);
        let mut of = |start: u32| {
            let nodes = start..(start + 2).min(end);
            let plan = device.prepare(MODEL, b as u32, nodes.start, nodes.end, u32::MAX);
            (nodes, plan.unwrap())
        };
        starts.map(&mut of).collect()
    });
    blocks.collect()
}

/// Opens requests of these lengths, in slots from the first on.
fn open(device: &mut CudaDevice, lens: &[u32]) {
    for (i, &len) in (0..).zip(lens) {
        let rows = len.max(1);
        let values = (0..rows * 6).map(|k| (i * 5 + k) as f32 / 7.0 - 1.0);
        let input = Tensor::from_f32(&[rows as usize, 6], &values.collect::<Vec<_>>());
        let opened = device.open(&OpenRequest {
            slot: Slot(i),
            request: RequestId(u64::from(i)),
            model: MODEL,
            inputs: &[input],
            input_len: len,
            samples: 1,
            output_len: None,
        });
        opened.unwrap();
    }
}

/// Runs a segment of `(block, segment, pass)` to its end, in a sub-batch of that id, for those of the
/// requests of these lengths that are its members.
fn run(
    device: &mut CudaDevice,
    (plan, nodes): (Plan, &Range<u32>),
    (block, segment, step): (u32, u32, u32),
    (sub_batch, members): (u64, Range<u32>),
    lens: &[u32],
) {
    let member = |i: u32| Member {
        request: RequestId(u64::from(i)),
        slot: Slot(i),
        step,
        input_len: lens[i as usize],
        samples: 1,
        idle: false,
    };
    let launch = Launch {
        ticket: Ticket(0),
        lane: LaneId(0),
        model: MODEL,
        block,
        segment,
        first_node: nodes.start,
        end_node: nodes.end,
        sub_batch: SubBatchId(sub_batch),
        members: members.map(member).collect(),
        padded_len: None,
        merged_members: 0,
    };
    device.enqueue(Time::ZERO, plan, &launch).unwrap();
    let done = loop {
        if let Some(done) = device.poll(Time::ZERO) {
            break done;
        }
    };
    done.whole().unwrap();
}

/// Closes so many requests; their answers.
fn close(device: &mut CudaDevice, num: usize) -> Vec<Vec<f32>> {
    let answers = (0..num as u32).map(|i| {
        let outputs = device.close(Slot(i));
        outputs[0].as_ref().unwrap().to_f32()
    });
    answers.collect()
}

/// Runs so many requests of these lengths together through `passes` passes of each block; returns
/// their answers and the launches.
fn serve(
    device: &mut CudaDevice,
    plans: &[Vec<(Range<u32>, Plan)>],
    lens: &[u32],
    passes: &[u32],
) -> (Vec<Vec<f32>>, u64) {
    open(device, lens);
    let mut launches = 0;
    for (b, (segments, passes)) in (0..).zip(plans.iter().zip(passes)) {
        for step in 0..*passes {
            for (s, (nodes, plan)) in (0..).zip(segments) {
                let all = (1, 0..lens.len() as u32);
                run(device, (*plan, nodes), (b, s, step), all, lens);
                launches += 1;
            }
        }
    }
    (close(device, lens.len()), launches)
}

/// Serves some batches, the first of their sizes, with graphs made ahead and without: the same
/// bits, and with them all launches are replays and none is captured.
fn first_are_replays(program: &Arc<Program>, batches: &[&[u32]], passes: &[u32]) {
    let mut answers = Vec::new();
    for warm_members in [MOST, 0] {
        let mut device = device(CudaOptions {
            warm_members,
            ..options()
        });
        device.load(MODEL, Arc::clone(program)).unwrap();
        let plans = prepare(&mut device, program);
        let loaded = device.graph_counts();
        assert_eq!((loaded.replayed, loaded.eager), (0, 0), "nothing has run");
        assert_eq!(loaded.captured > 0, warm_members > 0);
        assert_eq!(device.num_frames(), 0, "guests have left");
        let mut launches = 0;
        let mut all = Vec::new();
        for lens in batches {
            let (answers, num) = serve(&mut device, &plans, lens, passes);
            all.extend(answers);
            launches += num;
        }
        let counts = device.graph_counts();
        if warm_members > 0 {
            let want = GraphCounts {
                replayed: launches,
                ..loaded
            };
            assert_eq!(counts, want, "{}", program.name);
        } else {
            assert!(counts.eager > 0, "{counts:?}");
        }
        // It is prepared once.
        let captured = device.graph_counts().captured;
        prepare(&mut device, program);
        assert_eq!(device.graph_counts().captured, captured);
        answers.push(all);
    }
    assert!(answers[0].iter().flatten().all(|x| x.is_finite()));
    assert!(answers[0] == answers[1], "{}", program.name);
}

#[test]
fn first_launches_are_replays() {
    runs_clean("warm::first_launches_are_replays", || {
        let batches: [&[u32]; 4] = [&[0], &[0; 3], &[0; 2], &[0; 4]];
        first_are_replays(&Arc::new(program()), &batches, &[1, 5]);
        // At any lengths that are no more than a guest's, if they are not all far below the longest.
        let batches: [&[u32]; 9] = [
            &[5],
            &[12],
            &[1; 3],
            &[1; 4],
            &[9, 20],
            &[31, 2],
            &[5, 32, 17],
            &[7, 14, 9],
            &[32, 4, 8, 20],
        ];
        first_are_replays(&Arc::new(sequences()), &batches, &[1]);
    });
}

#[test]
fn sizes_that_no_guest_had_are_captured_when_they_come_again() {
    let name = "warm::sizes_that_no_guest_had_are_captured_when_they_come_again";
    runs_clean(name, || {
        let program = Arc::new(program());
        let mut device = device(CudaOptions {
            warm_members: MOST,
            ..options()
        });
        device.load(MODEL, Arc::clone(&program)).unwrap();
        let plans = prepare(&mut device, &program);
        let loaded = device.graph_counts();
        let many = [0; MOST + 1];
        let first = serve(&mut device, &plans, &many, &[1, 1]);
        let eager = device.graph_counts();
        assert_eq!((eager.eager, eager.captured), (first.1, loaded.captured));
        let again = serve(&mut device, &plans, &many, &[1, 1]);
        let counts = device.graph_counts();
        assert_eq!((counts.eager, counts.replayed), (first.1, first.1));
        assert_eq!(first, again);
    });
}

/// Runs a request and two together, one sub-batch behind the other, or a node each in turn until they
/// merge in front of the last two. Returns answers and launches.
fn in_turns(
    device: &mut CudaDevice,
    plans: &[(Range<u32>, Plan)],
    takes_turns: bool,
) -> (Vec<Vec<f32>>, u64) {
    let lens = [5, 12, 7];
    open(device, &lens);
    let num = plans.len();
    let mut steps: Vec<(usize, u64, Range<u32>)> = Vec::new();
    if takes_turns {
        steps.extend((0..num - 2).flat_map(|node| [(node, 1, 0..1), (node, 2, 1..3)]));
        steps.extend((num - 2..num).map(|node| (node, 3, 0..3)));
    } else {
        steps.extend((0..num).map(|node| (node, 1, 0..1)));
        steps.extend((0..num).map(|node| (node, 2, 1..3)));
    }
    let launches = steps.len() as u64;
    for (node, sub_batch, members) in steps {
        let (nodes, plan) = &plans[node];
        let at = (0, node as u32, 0);
        run(device, (*plan, nodes), at, (sub_batch, members), &lens);
    }
    (close(device, lens.len()), launches)
}

#[test]
fn launches_find_their_graphs_whatever_stands_aside() {
    let name = "warm::launches_find_their_graphs_whatever_stands_aside";
    runs_clean(name, || {
        let program = Arc::new(sequences());
        let answers = [false, true].map(|takes_turns| {
            let mut device = device(CudaOptions {
                warm_members: MOST,
                ..options()
            });
            device.load(MODEL, Arc::clone(&program)).unwrap();
            let nodes = 0..program.blocks[0].nodes.len() as u32;
            let plans = nodes.map(|node| {
                let plan = device.prepare(MODEL, 0, node, node + 1, u32::MAX);
                (node..node + 1, plan.unwrap())
            });
            let plans: Vec<_> = plans.collect();
            let (answers, launches) = in_turns(&mut device, &plans, takes_turns);
            let counts = device.graph_counts();
            assert_eq!((counts.replayed, counts.eager), (launches, 0));
            assert_eq!(device.num_frames(), 0);
            answers
        });
        assert!(answers[0] == answers[1]);
        assert!(answers[0].iter().flatten().all(|x| x.is_finite()));
    });
}
