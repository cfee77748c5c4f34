//! What the cpu device does besides computing: threads, memory, failures, refusals.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;

use lazybatch_graph::{
    Act, CustomOp, DType, Fused, MultiHead, OutputId, ProgramBuilder, Repeat, SharedProgram,
    Tensor, Window,
};
use lazybatch_kernels::conformance::{
    Outcome, Request, Schedule, check, custom_means, custom_problem, run,
};
use lazybatch_kernels::synthetic::random_inputs;
use lazybatch_kernels::{
    CpuDevice, CpuOptions, CustomCall, CustomKernel, CustomNode, Device, Error, FaultPlan, Faulty,
    KernelRegistry, OpenRequest, ReferenceDevice,
};
use lazybatch_sla::{LaneId, Launch, Member, ModelId, RequestId, Slot, SubBatchId, Ticket, Time};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

fn cpu(threads: usize) -> CpuDevice {
    CpuDevice::new(CpuOptions {
        threads,
        max_open: 32,
        ..CpuOptions::default()
    })
}

/// A transformer large enough that its nodes are spread over threads.
fn wide() -> SharedProgram {
    let mut b = ProgramBuilder::new("wide").with_seed(1);
    let ids = b.sequence_ids("ids", 48, 100);
    let each = b.output_sequence("each", DType::F32, &[192]);
    let pooled = b.output("pooled", DType::F32, &[50]);
    b.begin_block("encoder", Repeat::Once);
    let i = b.read_input("ids", ids);
    let x = b.embed("embed", i, 100, 192);
    let x = b.self_attention("attention", x, MultiHead::new(6), Some(x));
    let n = b.norm("norm", x, 1e-5);
    let x = b.ffn("ffn", n, 512, Act::Gelu, Some(x));
    b.emit("emit.each", each, x);
    let mean = b.mean_rows("mean", x);
    let y = b.dense("head", mean, 50, Some(Act::Tanh));
    b.emit("emit", pooled, y);
    Arc::new(b.finish().unwrap())
}

fn requests(program: &SharedProgram, lens: &[usize]) -> Vec<Request> {
    let mut rng = ChaCha8Rng::seed_from_u64(9);
    let one = |&len| Request {
        inputs: random_inputs(program, len, 1, &mut rng),
        len,
        samples: 1,
    };
    lens.iter().map(one).collect()
}

fn bits(results: &[Vec<Option<Tensor>>]) -> Vec<Vec<u8>> {
    let all = results.iter().flatten().flatten();
    all.map(|t| t.data.as_slice().to_vec()).collect()
}

#[test]
fn what_is_packed_on_another_thread_is_as_what_is_loaded() {
    let program = wide();
    let requests = requests(&program, &[7, 30]);
    let outputs = |device: &mut CpuDevice| {
        bits(&run(device, &program, &requests, Schedule::Together).unwrap())
    };
    let mut loaded = cpu(2);
    loaded.load(ModelId(0), program.clone()).unwrap();
    let mut attached = cpu(2);
    let packer = attached.packer().unwrap();
    let pack = || packer.pack(program.clone(), 1).unwrap();
    let packed = std::thread::scope(|scope| scope.spawn(pack).join().unwrap());
    attached.attach(ModelId(0), packed).unwrap();
    assert_eq!(outputs(&mut attached), outputs(&mut loaded));
    let bytes = |device: &CpuDevice| device.weight_bytes(ModelId(0));
    assert!(bytes(&attached) > Some(0) && bytes(&attached) == bytes(&loaded));

    // Another device may hold weights in another form.
    let refused = cpu(1).attach(ModelId(0), pack()).unwrap_err().to_string();
    let name = |device: &dyn Device| device.info().name;
    let parts = [name(&cpu(1)), name(&cpu(2)), "packed model".into()];
    assert!(parts.iter().all(|p| refused.contains(p)), "{refused}");
    let other = lazybatch_kernels::Packed(Box::new(5));
    let refused = cpu(1).attach(ModelId(0), other).unwrap_err().to_string();
    assert!(refused.contains("another kind of device"), "{refused}");
    let mut reference = lazybatch_kernels::ReferenceDevice::default();
    assert!(reference.packer().is_none());
    assert!(reference.attach(ModelId(0), pack()).is_err());
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let program = wide();
    let requests = requests(&program, &[48, 3, 31, 1, 17]);
    let mut results = Vec::new();
    for threads in [1, 2, 3] {
        for schedule in [Schedule::Alone, Schedule::Together, Schedule::Padded] {
            let mut device = cpu(threads);
            device.load(ModelId(0), Arc::clone(&program)).unwrap();
            results.push(bits(
                &run(&mut device, &program, &requests, schedule).unwrap(),
            ));
        }
    }
    assert!(results.windows(2).all(|w| w[0] == w[1]));
}

#[test]
fn nothing_is_allocated_once_warm_and_nothing_is_left_behind() {
    let program = wide();
    let requests = requests(&program, &[40, 3, 31, 1]);
    let mut device = cpu(1);
    device.load(ModelId(0), Arc::clone(&program)).unwrap();
    run(&mut device, &program, &requests, Schedule::Random(3)).unwrap();
    let warm = device.num_buffers();
    for _ in 0..3 {
        run(&mut device, &program, &requests, Schedule::Random(3)).unwrap();
    }
    assert_eq!(device.num_buffers(), warm);
    assert_eq!(device.num_frames(), 0);
}

#[test]
fn first_launches_find_memory_that_was_made_ready_at_load() {
    let program = wide();
    let requests = requests(&program, &[48, 3, 31, 1]);
    let mut arenas = Vec::new();
    for (samples, packed) in [(0, false), (4, false), (4, true)] {
        let mut device = cpu(1);
        if packed {
            let packer = device.packer().unwrap();
            let packed = packer.pack(Arc::clone(&program), samples).unwrap();
            device.attach(ModelId(0), packed).unwrap();
        } else {
            device.load(ModelId(0), Arc::clone(&program)).unwrap();
            device.warm(ModelId(0), samples);
        }
        let ready = device.arena_bytes();
        run(&mut device, &program, &requests, Schedule::Together).unwrap();
        arenas.push((ready, device.arena_bytes()));
        device.warm(ModelId(0), samples);
        assert_eq!(device.arena_bytes(), arenas[arenas.len() - 1].1, "once");
    }
    let [without, loaded, attached] = arenas[..] else {
        panic!("{arenas:?}");
    };
    assert!(without.0 == 0 && without.1 > 0, "{without:?}");
    assert!(loaded.0 > 0 && loaded.0 == loaded.1, "{loaded:?}");
    assert_eq!(loaded, attached);
    let mut device = CpuDevice::new(CpuOptions {
        warm_bytes: 4096,
        ..CpuOptions::default()
    });
    device.load(ModelId(0), Arc::clone(&program)).unwrap();
    device.warm(ModelId(0), u32::MAX);
    assert_eq!(device.arena_bytes(), 4096, "as far as the bound allows");
}

#[test]
fn pools_of_states_are_bounded_and_come_back() {
    let mut b = ProgramBuilder::new("cache");
    let x = b.sequence("x", DType::F32, &[4], 40);
    let y = b.output_sequence("y", DType::F32, &[4]);
    b.begin_block("steps", Repeat::PerInputStep { stride: 1 });
    let v = b.read_input("x", x);
    let v = b.cached_self_attention("self", v, 1, 40, None);
    b.emit("emit", y, v);
    let program: SharedProgram = Arc::new(b.finish().unwrap());
    let mut device = CpuDevice::new(CpuOptions {
        max_open: 2,
        ..CpuOptions::default()
    });
    device.load(ModelId(0), Arc::clone(&program)).unwrap();
    let requests = requests(&program, &[40, 33, 17]);
    let open = |device: &mut CpuDevice, i: usize| {
        device.open(&OpenRequest {
            slot: Slot(i as u32),
            request: RequestId(i as u64),
            model: ModelId(0),
            inputs: &requests[i].inputs,
            input_len: requests[i].len as u32,
            samples: 1,
            output_len: None,
        })
    };
    for _ in 0..5 {
        open(&mut device, 0).unwrap();
        open(&mut device, 1).unwrap();
        assert!(matches!(
            open(&mut device, 2),
            Err(Error::OutOfMemory { .. })
        ));
        device.close(Slot(0));
        open(&mut device, 2).unwrap();
        device.close(Slot(1));
        device.close(Slot(2));
    }
    let mut small = CpuDevice::new(CpuOptions {
        state_bytes: 100,
        ..CpuOptions::default()
    });
    assert!(matches!(
        small.load(ModelId(0), program),
        Err(Error::OutOfMemory { .. })
    ));
}

/// Adds a weight; fails or panics on a row that starts with a magic number.
struct Shift;

impl CustomKernel for Shift {
    fn validate(&self, node: &CustomNode<'_>) -> Result<(), String> {
        if node.operands.len() == 2 {
            Ok(())
        } else {
            Err("two operands".into())
        }
    }

    fn run(&self, call: &mut CustomCall<'_>) -> Result<(), String> {
        let (x, bias) = (call.operands[0], call.operands[1].data);
        for row in 0..call.num_rows() {
            assert!(x.row(row)[0] != 77.0, "a row of 77");
            if x.row(row)[0] == 66.0 {
                return Err("a row of 66".into());
            }
            let to = &mut call.output[row * bias.len()..][..bias.len()];
            (0..bias.len()).for_each(|i| to[i] = x.row(row)[i] + bias[i]);
        }
        Ok(())
    }
}

/// Refuses calls for several members.
struct Single;

impl CustomKernel for Single {
    fn validate(&self, _: &CustomNode<'_>) -> Result<(), String> {
        Ok(())
    }

    fn run(&self, call: &mut CustomCall<'_>) -> Result<(), String> {
        call.output.fill(0.0);
        match call.offsets.len() {
            2 => Ok(()),
            _ => Err("several members".into()),
        }
    }
}

/// Refuses ids of 4.
struct Below4;

impl CustomKernel for Below4 {
    fn validate(&self, _: &CustomNode<'_>) -> Result<(), String> {
        Ok(())
    }

    fn run(&self, call: &mut CustomCall<'_>) -> Result<(), String> {
        call.output.fill(0.0);
        match call.operands[0].ids().contains(&4) {
            true => Err("a token of 4".into()),
            false => Ok(()),
        }
    }
}

fn registry() -> KernelRegistry {
    let mut registry = KernelRegistry::new();
    registry.register("single", Arc::new(Single));
    registry.register("below 4", Arc::new(Below4));
    registry.register("shift", Arc::new(Shift));
    registry
}

#[test]
fn custom_nodes_conform_batchable_or_not() {
    for batchable in [true, false] {
        let problem = custom_problem(registry(), batchable);
        let mut make = || -> Box<dyn Device> {
            Box::new(CpuDevice::new(CpuOptions {
                registry: registry(),
                ..CpuOptions::default()
            }))
        };
        assert_eq!(check(&problem, &mut make, true), Ok(Outcome::Passed));
    }
    // These look at all rows of a member: padding must not be among them.
    for batchable in [true, false] {
        let problem = custom_means(batchable);
        let mut make = || -> Box<dyn Device> {
            Box::new(CpuDevice::new(CpuOptions {
                registry: problem.registry.clone(),
                poison: true,
                ..CpuOptions::default()
            }))
        };
        assert_eq!(check(&problem, &mut make, true), Ok(Outcome::Passed));
    }
    let problem = custom_problem(registry(), true);
    let mut bare = || -> Box<dyn Device> { Box::new(cpu(1)) };
    let outcome = check(&problem, &mut bare, true).unwrap();
    assert!(matches!(outcome, Outcome::Unsupported(why) if why.contains("registry")));
}

fn member(i: u32, len: u32) -> Member {
    Member {
        request: RequestId(u64::from(i)),
        slot: Slot(i),
        step: 0,
        input_len: len,
        samples: 1,
        idle: false,
    }
}

fn launch(ticket: u64, nodes: u32, members: Vec<Member>) -> Launch {
    Launch {
        ticket: Ticket(ticket),
        lane: LaneId(0),
        model: ModelId(0),
        block: 0,
        segment: 0,
        first_node: 0,
        end_node: nodes,
        sub_batch: SubBatchId(ticket),
        members,
        padded_len: None,
        merged_members: 0,
    }
}

fn custom_program(batchable: bool) -> SharedProgram {
    Arc::new((custom_problem(registry(), batchable).build)())
}

/// Emits its input before a node that fails in a batch alone.
fn refusing() -> SharedProgram {
    let mut b = ProgramBuilder::new("refusing");
    let x = b.sequence("x", DType::F32, &[6], 4);
    let y = b.output_sequence("y", DType::F32, &[6]);
    b.begin_block("block", Repeat::Once);
    let x = b.read_input("x", x);
    b.emit("emit", y, x);
    let op = CustomOp {
        name: "single".into(),
        output_dims: vec![6],
        flops_per_row: 6,
        batchable: true,
    };
    let refused = b.custom("custom", op, &[x]);
    b.emit("emit.refused", y, refused);
    Arc::new(b.finish().unwrap())
}

/// Opens one-row requests of a custom program, one per value.
fn open_custom(device: &mut dyn Device, program: SharedProgram, values: &[f32]) -> u32 {
    let nodes = program.blocks[0].nodes.len() as u32;
    device.load(ModelId(0), program).unwrap();
    for (i, &value) in values.iter().enumerate() {
        device
            .open(&OpenRequest {
                slot: Slot(i as u32),
                request: RequestId(i as u64),
                model: ModelId(0),
                inputs: &[Tensor::from_f32(&[1, 6], &[value; 6])],
                input_len: 1,
                samples: 1,
                output_len: None,
            })
            .unwrap();
    }
    nodes
}

#[test]
fn a_launch_fails_with_all_of_its_members_where_asked_to() {
    let mut device = CpuDevice::new(CpuOptions {
        registry: registry(),
        ..CpuOptions::default()
    });
    let nodes = open_custom(&mut device, custom_program(true), &[1.0]);
    let plan = device.prepare(ModelId(0), 0, 0, nodes, u32::MAX).unwrap();
    device.fail_next_launches(1);
    for fails in [true, false] {
        let launch = launch(u64::from(!fails), nodes, vec![member(0, 1)]);
        device.enqueue(Time::ZERO, plan, &launch).unwrap();
        let done = device.poll(Time::MAX).unwrap();
        assert_eq!(done.result.is_err(), fails);
        assert_eq!(
            device.emitted(Slot(0), OutputId::new(0), 0).is_none(),
            fails
        );
    }
}

#[test]
fn a_member_that_a_kernel_fails_for_takes_nobody_along() {
    for batchable in [true, false] {
        let run = |values: &[f32]| {
            let mut device = CpuDevice::new(CpuOptions {
                registry: registry(),
                poison: true,
                ..CpuOptions::default()
            });
            let nodes = open_custom(&mut device, custom_program(batchable), values);
            let plan = device.prepare(ModelId(0), 0, 0, nodes, u32::MAX).unwrap();
            let members = (0..values.len() as u32).map(|i| member(i, 1)).collect();
            let launch = launch(0, nodes, members);
            device.enqueue(Time::ZERO, plan, &launch).unwrap();
            let done = device.poll(Time::MAX).unwrap();
            assert!(done.result.is_ok(), "{:?}", done.result);
            let close = |i: usize| device.close(Slot(i as u32)).remove(0);
            let outputs: Vec<_> = (0..values.len()).map(close).collect();
            (outputs, done.faults)
        };
        let (outputs, faults) = run(&[1.0, 77.0, 66.0, 2.0]);
        let [(first, panic), (second, error)] = &faults[..] else {
            panic!("{faults:?}")
        };
        assert_eq!((*first, *second), (RequestId(1), RequestId(2)));
        assert!(!panic.is_of_request() && !error.is_of_request());
        let [panic, error] = [panic, error].map(Error::to_string);
        assert!(panic.contains("panic: a row of 77"), "{panic}");
        assert!(error.contains("a row of 66"), "{error}");
        assert!(outputs[1].is_none() && outputs[2].is_none());
        for (at, value) in [(0, 1.0), (3, 2.0)] {
            let (alone, faults) = run(&[value]);
            assert!(faults.is_empty());
            let [together, alone] = [&outputs[at], &alone[0]].map(|o| o.as_ref().unwrap());
            assert_eq!(together.data.as_slice(), alone.data.as_slice());
        }
    }
}

/// From `x` on, token after token: emits it, ends at 4, and fails at 4.
fn counts() -> SharedProgram {
    let mut b = ProgramBuilder::new("counts").with_seed(3);
    let x = b.input_ids("x", &[], 5);
    let tokens = b.output_sequence("tokens", DType::I32, &[]);
    let latest = b.output("latest", DType::I32, &[]);
    let token = b.vector_state("token", DType::I32, &[], 0.0);
    b.begin_block("start", Repeat::Once);
    let x = b.read_input("x", x);
    b.vec_write("token.start", token, x);
    b.begin_block("loop", Repeat::UntilStop { max: 9 });
    let now = b.vec_read("token.read", token);
    b.emit("emit.now", tokens, now);
    b.emit("emit.again", tokens, now);
    b.emit("emit.latest", latest, now);
    b.stop("stop", now, 4);
    let op = CustomOp {
        name: "below 4".into(),
        output_dims: vec![1],
        flops_per_row: 1,
        batchable: true,
    };
    b.custom("custom", op, &[now]);
    let next = (0..25).map(|i| f32::from(i % 5 == i / 5 + 1));
    let next = Tensor::from_f32(&[5, 5], &next.collect::<Vec<_>>());
    let table = b.data("next", next);
    let scores = b.embedding("scores", now, table);
    let next = b.arg_max("next.best", scores);
    b.vec_write("token.write", token, next);
    Arc::new(b.finish().unwrap())
}

#[test]
fn of_a_launch_that_a_member_fails_in_nothing_is_left_of_it() {
    let cpu = |part_bytes| {
        CpuDevice::new(CpuOptions {
            part_bytes,
            registry: registry(),
            ..CpuOptions::default()
        })
    };
    let devices: [Box<dyn Device>; 3] = [
        Box::new(cpu(usize::MAX)),
        Box::new(cpu(0)),
        Box::new(ReferenceDevice::new(registry())),
    ];
    for mut device in devices {
        let program = counts();
        device.load(ModelId(0), program.clone()).unwrap();
        for (i, x) in [3, 1, 4].into_iter().enumerate() {
            let opened = device.open(&OpenRequest {
                slot: Slot(i as u32),
                request: RequestId(i as u64),
                model: ModelId(0),
                inputs: &[Tensor::from_i32(&[1], &[x])],
                input_len: 0,
                samples: 1,
                output_len: None,
            });
            opened.unwrap();
        }
        let mut ticket = 0;
        let mut run = |device: &mut dyn Device, block: usize, members: &[u32]| {
            let nodes = program.blocks[block].nodes.len() as u32;
            let block = block as u32;
            let plan = device.prepare(ModelId(0), block, 0, nodes, u32::MAX);
            let members = members.iter().map(|&i| member(i, 0)).collect();
            let launch = Launch {
                block,
                ..launch(ticket, nodes, members)
            };
            ticket += 1;
            device.enqueue(Time::ZERO, plan.unwrap(), &launch).unwrap();
            let done = device.poll(Time::MAX).unwrap();
            assert_eq!(done.result, Ok(()));
            let failed: Vec<u64> = done.faults.iter().map(|(id, _)| id.0).collect();
            (failed, done.stopped.len())
        };
        let emitted = |device: &dyn Device, i: u32| {
            let output = |o| device.emitted(Slot(i), OutputId::new(o), 0);
            [0, 1].map(|o| output(o).map(|t| t.to_i32()))
        };
        assert_eq!(run(&mut *device, 0, &[0, 1, 2]), (vec![], 0));
        assert_eq!(run(&mut *device, 1, &[0, 1]), (vec![], 0));
        assert_eq!(run(&mut *device, 1, &[0, 1, 2]), (vec![0, 2], 0));
        // What came before stays, of an output that does not grow its size.
        let [tokens, latest] = emitted(&*device, 0);
        assert_eq!(
            (tokens, latest.map(|l| l.len())),
            (Some(vec![3, 3]), Some(1))
        );
        let good = [Some(vec![1, 1, 2, 2]), Some(vec![2])];
        assert_eq!(emitted(&*device, 1), good);
        assert_eq!(emitted(&*device, 2), [None, None]);
    }
    // All members of a launch that fails as a whole have failed.
    let mut device = CpuDevice::new(CpuOptions {
        registry: registry(),
        ..CpuOptions::default()
    });
    let nodes = open_custom(&mut device, refusing(), &[1.0, 2.0]);
    let plan = device.prepare(ModelId(0), 0, 0, nodes, u32::MAX).unwrap();
    let launch = launch(0, nodes, vec![member(0, 1), member(1, 1)]);
    device.enqueue(Time::ZERO, plan, &launch).unwrap();
    let done = device.poll(Time::MAX).unwrap();
    assert!(done.result.is_err(), "{:?}", done.faults);
    let output = OutputId::new(0);
    let emitted = [0, 1].map(|i| device.emitted(Slot(i), output, 0));
    assert!(emitted.iter().all(Option::is_none), "{emitted:?}");
}

#[test]
fn planned_faults_fail_the_launches_they_name() {
    let inner = CpuDevice::new(CpuOptions {
        registry: registry(),
        ..CpuOptions::default()
    });
    let mut device = Faulty::new(inner, FaultPlan::tickets([Ticket(1)]));
    let nodes = open_custom(&mut device, custom_program(true), &[1.0, 2.0, 3.0]);
    let plan = device.prepare(ModelId(0), 0, 0, nodes, u32::MAX).unwrap();
    for i in 0..3 {
        device
            .enqueue(
                Time::ZERO,
                plan,
                &launch(u64::from(i), nodes, vec![member(i, 1)]),
            )
            .unwrap();
    }
    let done: Vec<(u64, bool)> = std::iter::from_fn(|| device.poll(Time::MAX))
        .map(|c| (c.ticket.0, c.result.is_ok()))
        .collect();
    assert_eq!(done, [(0, true), (1, false), (2, true)]);
    assert_eq!(device.num_failed(), 1);
}

#[test]
fn launches_that_do_not_fit_are_refused_or_fail() {
    let mut device = CpuDevice::new(CpuOptions {
        registry: registry(),
        ..CpuOptions::default()
    });
    let nodes = open_custom(&mut device, custom_program(true), &[1.0, 2.0]);
    let plan = device.prepare(ModelId(0), 0, 0, nodes, u32::MAX).unwrap();
    assert!(
        device
            .prepare(ModelId(0), 0, 0, nodes + 1, u32::MAX)
            .is_err()
    );
    let mut wrong = launch(0, nodes, vec![member(0, 1)]);
    wrong.members[0].request = RequestId(5);
    assert!(device.enqueue(Time::ZERO, plan, &wrong).is_err());
    // A request that never passed the head cannot stand in the middle of a block.
    let rest = device.prepare(ModelId(0), 0, 1, nodes, u32::MAX).unwrap();
    let mut middle = launch(1, nodes, vec![member(0, 1)]);
    middle.first_node = 1;
    device.enqueue(Time::ZERO, rest, &middle).unwrap();
    assert!(device.poll(Time::MAX).unwrap().result.is_err());
    device
        .enqueue(Time::ZERO, plan, &launch(2, nodes, vec![member(0, 1)]))
        .unwrap();
    assert!(device.poll(Time::MAX).unwrap().result.is_ok());
}

#[test]
fn bad_inputs_are_refused_at_open() {
    let program = wide();
    let mut device = cpu(1);
    device.load(ModelId(0), program).unwrap();
    let mut open = |tensor: Tensor, len: u32| {
        let result = device.open(&OpenRequest {
            slot: Slot(0),
            request: RequestId(0),
            model: ModelId(0),
            inputs: &[tensor],
            input_len: len,
            samples: 1,
            output_len: None,
        });
        device.close(Slot(0));
        result
    };
    let bytes = |ids: &[i64]| {
        ids.iter()
            .flat_map(|i| i.to_le_bytes())
            .collect::<Vec<u8>>()
    };
    let i64s = Tensor::from_bytes(DType::I64, vec![2], bytes(&[5, 99])).unwrap();
    assert_eq!(open(i64s, 2), Ok(()));
    for (tensor, len) in [
        (Tensor::from_i32(&[2], &[1, 100]), 2),
        (Tensor::from_i32(&[2], &[1, -1]), 2),
        (Tensor::from_i32(&[0], &[]), 0),
        (Tensor::from_i32(&[49], &[0; 49]), 49),
        (Tensor::from_i32(&[2], &[1, 1]), 3),
        (Tensor::from_f32(&[2], &[1.0, 1.0]), 2),
        (Tensor::from_i32(&[2, 1], &[1, 1]), 2),
    ] {
        let refused = open(tensor.clone(), len);
        assert!(
            matches!(refused, Err(Error::Input { .. })),
            "{tensor:?}: {refused:?}"
        );
    }
}

/// A skip over a chain of convolutions whose results become smaller, then a product.
fn images() -> SharedProgram {
    let mut b = ProgramBuilder::new("images").with_seed(3);
    let image = b.input("image", DType::F32, &[3, 16, 16]);
    let y = b.output("y", DType::F32, &[5]);
    b.begin_block("main", Repeat::Once);
    let x = b.read_input("image", image);
    let window = |stride| Window::square(3, stride, 1);
    let x = b.conv("a", x, 24, window(1), 1, Fused::default());
    let skip = b.conv("skip", x, 20, window(2), 1, Fused::default());
    let x = b.conv("b", x, 16, window(1), 1, Fused::default());
    let x = b.conv("c", x, 20, window(2), 1, Fused::default());
    let x = b.add("add", x, skip);
    let x = b.conv("d", x, 8, window(2), 1, Fused::default());
    let x = b.reshape("flat", x, &[8 * 4 * 4]);
    let x = b.dense("e", x, 5, None);
    b.emit("y", y, x);
    Arc::new(b.finish().unwrap())
}

#[test]
fn launches_in_parts_have_the_same_bits_and_take_what_a_merge_takes() {
    let program = images();
    // One with many samples among others: halves by members would be far from halves.
    let mut requests = requests(&program, &[0; 11]);
    let mut rng = ChaCha8Rng::seed_from_u64(10);
    for (at, samples) in [(3, 2), (10, 12)] {
        requests[at].samples = samples;
        requests[at].inputs = random_inputs(&program, 0, samples, &mut rng);
    }
    let mut results = Vec::new();
    // All at once, each node for as many as a bound allows, and every request alone.
    for (part_bytes, schedule) in [
        (usize::MAX, Schedule::Together),
        (100_000, Schedule::Together),
        (30_000, Schedule::Together),
        (0, Schedule::Together),
        (0, Schedule::Random(5)),
    ] {
        for threads in [1, 3] {
            let mut device = CpuDevice::new(CpuOptions {
                threads,
                part_bytes,
                parallel_flops: 0,
                poison: true,
                ..CpuOptions::default()
            });
            device.load(ModelId(0), program.clone()).unwrap();
            let got = bits(&run(&mut device, &program, &requests, schedule).unwrap());
            let warm = (device.num_buffers(), device.arena_bytes());
            let again = bits(&run(&mut device, &program, &requests, schedule).unwrap());
            assert_eq!((device.num_buffers(), device.arena_bytes()), warm);
            assert_eq!((device.num_frames(), &again), (0, &got));
            results.push((part_bytes, schedule, device.needed_arena_bytes()[1], got));
        }
    }
    let distinct = results[0].3.windows(2).all(|w| w[0] != w[1]);
    assert!(distinct, "every request has outputs of its own");
    let whole = results[0].2;
    for (part_bytes, schedule, needed, got) in &results {
        assert_eq!(got, &results[0].3, "parts of {part_bytes} bytes");
        if *schedule != Schedule::Together {
            continue;
        }
        assert!(
            *part_bytes == usize::MAX || *needed > whole,
            "{part_bytes}: none"
        );
        assert!(
            *needed <= 2 * whole,
            "{part_bytes}: {needed} bytes of {whole}"
        );
    }
}

#[test]
fn a_part_that_fails_or_panics_leaves_nothing_behind() {
    let mut b = ProgramBuilder::new("parts").with_seed(3);
    let x = b.input("x", DType::F32, &[6]);
    let y = b.output("y", DType::F32, &[6]);
    b.begin_block("main", Repeat::Once);
    let x = b.read_input("read", x);
    let op = CustomOp {
        name: "shift".into(),
        output_dims: vec![6],
        flops_per_row: 6,
        batchable: true,
    };
    let bias = b.seeded_within("bias", &[6], 1.0);
    let shifted = b.custom("custom", op, &[x, bias]);
    b.emit("emit", y, shifted);
    let program: SharedProgram = Arc::new(b.finish().unwrap());
    let nodes = program.blocks[0].nodes.len() as u32;
    let mut device = CpuDevice::new(CpuOptions {
        registry: registry(),
        part_bytes: 0,
        ..CpuOptions::default()
    });
    device.load(ModelId(0), program).unwrap();
    let plan = device.prepare(ModelId(0), 0, 0, nodes, u32::MAX).unwrap();
    for (ticket, third, told) in [
        (0, 77.0, Some("a row of 77")),
        (1, 66.0, Some("a row of 66")),
        (2, 3.0, None),
    ] {
        for (i, value) in [1.0, 2.0, third, 4.0].into_iter().enumerate() {
            let opened = device.open(&OpenRequest {
                slot: Slot(i as u32),
                request: RequestId(i as u64),
                model: ModelId(0),
                inputs: &[Tensor::from_f32(&[1, 6], &[value; 6])],
                input_len: 0,
                samples: 1,
                output_len: None,
            });
            opened.unwrap();
        }
        let members = (0..4).map(|i| member(i, 0)).collect();
        let launch = launch(ticket, nodes, members);
        device.enqueue(Time::ZERO, plan, &launch).unwrap();
        let done = device.poll(Time::MAX).unwrap();
        assert_eq!(done.result, Ok(()));
        let faults = done.faults.iter();
        let faults: Vec<_> = faults.map(|(id, e)| (id.0, e.to_string())).collect();
        let whys: Vec<_> = told.iter().map(|why| (2, *why)).collect();
        let is_told = |(fault, why): (&(u64, String), &(u64, &str))| {
            fault.0 == why.0 && fault.1.contains(why.1)
        };
        assert_eq!(faults.len(), whys.len(), "{faults:?}");
        assert!(faults.iter().zip(&whys).all(is_told), "{faults:?}");
        let [now, most] = device.needed_arena_bytes();
        assert!(now == 0 && most > 0, "{now} bytes of {most}");
        for i in 0..4 {
            let answer = device.close(Slot(i)).swap_remove(0);
            assert_eq!(answer.is_some(), told.is_none() || i != 2, "{i}");
        }
    }
}
