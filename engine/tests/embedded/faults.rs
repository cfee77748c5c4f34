//! Requests that fail by what is computed from them: they fail alone, whoever they run with.

#![allow(clippy::unwrap_used, reason = "a test says by panicking")]

use std::sync::Arc;

use lazybatch_engine::RequestError::{Data, Failed};
use lazybatch_engine::{Engine, ModelOptions, Options, Step};
use lazybatch_graph::onnx::Elem;
use lazybatch_graph::tensor_op::{Layout, Operand, Part, Produced, TensorOp};
use lazybatch_graph::{At, Block, CustomOp, DType, Program, ProgramBuilder, Repeat, Tensor};
use lazybatch_kernels::cpu::{CpuDevice, CpuOptions};
use lazybatch_kernels::{
    CustomCall, CustomKernel, CustomNode, Device, KernelRegistry, ReferenceDevice,
};
use lazybatch_sla::Outcome;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Position by position, `x` looks up row `100 / x` of a table of 30 rows and sums them: a position of 0
/// divides by it, and one of 1 to 3 is outside of the table.
fn model() -> Program {
    let mut b = ProgramBuilder::new("quotients");
    let x = b.sequence_ids("x", 16, 101);
    let sums = b.output_sequence("sums", DType::F32, &[8]);
    let last = b.output("last", DType::F32, &[8]);
    let sum = b.vector_state("sum", DType::F32, &[8], 0.0);
    b.begin_block("loop", Repeat::PerInputStep { stride: 1 });
    let id = b.read_input_at("read", x, At::Step);
    let row = Layout(vec![vec![Part::Batch]]);
    let divide = TensorOp {
        op: "Div".into(),
        opset: 14,
        attrs: Default::default(),
        operands: vec![
            Operand::Numbers {
                dims: Vec::new(),
                elem: Elem::I64,
                base: vec![100],
                per_len: Vec::new(),
            },
            Operand::Next {
                layout: row.clone(),
                elem: Elem::I64,
            },
        ],
        outputs: vec![Produced {
            layout: row,
            elem: Elem::I64,
        }],
        flops_per_row: 1,
    };
    let id = b.tensor("divide", divide, &[id])[0];
    let found = b.embed("look_up", id, 30, 8);
    let before = b.vec_read("sum.read", sum);
    let after = b.add("sum.add", before, found);
    b.vec_write("sum.write", sum, after);
    b.emit("emit", sums, after);
    b.begin_block("end", Repeat::Once);
    let all = b.vec_read("sum.last", sum);
    b.emit("last.emit", last, all);
    b.finish().unwrap()
}

fn engine(device: impl Device + 'static, policy: &str) -> Engine {
    engine_of(device, policy, 1)
}

/// Where several launches are in flight, each is of a whole pass.
fn engine_of(device: impl Device + 'static, policy: &str, depth: u32) -> Engine {
    let model = model();
    let whole = |b: &Block| std::iter::once(0..b.nodes.len() as u32).collect();
    let whole = model.blocks.iter().map(whole).collect();
    let options = ModelOptions {
        segments: (depth > 1).then_some(whole),
        ..ModelOptions::default()
    };
    Engine::builder()
        .device(device)
        .depth(depth)
        .model("m", model, options)
        .policy(policy)
        .build()
        .unwrap()
}

fn cpu() -> CpuDevice {
    CpuDevice::new(CpuOptions {
        threads: 1,
        poison: true,
        ..CpuOptions::default()
    })
}

fn bits(outputs: &[Tensor]) -> Vec<Vec<u8>> {
    let bytes = outputs.iter().map(|t| t.data.as_slice().to_vec());
    bytes.collect()
}

/// What the first bad position of a request says.
fn fault(xs: &[i32]) -> Option<&'static str> {
    xs.iter().find_map(|x| match x {
        0 => Some("node divide: "),
        1..=3 => Some("node look_up: id "),
        _ => None,
    })
}

fn requests() -> Vec<Vec<i32>> {
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    let mut request = || {
        let len = rng.random_range(1..=16);
        let mut xs: Vec<i32> = (0..len).map(|_| rng.random_range(4..=100)).collect();
        if rng.random_bool(0.3) {
            xs[rng.random_range(0..len)] = rng.random_range(0..4);
        }
        xs
    };
    (0..60).map(|_| request()).collect()
}

/// The same requests one by one, and all at once under several policies.
fn check<D: Device + 'static>(device: impl Fn() -> D) {
    let requests = requests();
    let input = |xs: &[i32]| vec![Tensor::from_i32(&[xs.len()], xs)];
    let serial = engine(device(), "serial");
    let alone: Vec<_> = requests
        .iter()
        .map(|xs| serial.try_submit("m", input(xs), Options::default()))
        .map(|handle| handle.unwrap().wait())
        .collect();
    let bad = requests.iter().filter(|xs| fault(xs).is_some()).count();
    assert!(bad > 5, "{bad}");
    for policy in ["greedy", "graph:1", "continuous", "lazy", "adaptive"] {
        let together = engine(device(), policy);
        let handles: Vec<_> = requests
            .iter()
            .map(|xs| together.try_submit("m", input(xs), Options::default()))
            .collect();
        for ((handle, alone), xs) in handles.into_iter().zip(&alone).zip(&requests) {
            let answer = handle.unwrap().wait();
            match (fault(xs), answer, alone) {
                (None, Ok(answer), Ok(alone)) => {
                    let [answer, alone] = [&answer, alone].map(|a| bits(&a.outputs));
                    assert_eq!(answer, alone, "{xs:?} under {policy}");
                }
                (Some(why), Err(Data(cause)), Err(Data(alone))) => {
                    assert!(cause.contains(why), "{xs:?} under {policy}: {cause}");
                    assert!(alone.contains(why), "{xs:?} alone: {alone}");
                }
                (_, answer, alone) => panic!("{xs:?} under {policy}: {answer:?}, alone {alone:?}"),
            }
        }
        let account = &together.stats().accounts[0];
        let [failed, total] = [account.count(Outcome::Failed), account.total()];
        assert_eq!((failed, total), (bad as u64, 60));
    }
}

#[test]
fn who_fails_takes_nobody_along() {
    check(cpu);
}

#[test]
fn nor_on_the_reference() {
    check(|| ReferenceDevice::new(KernelRegistry::new()));
}

#[test]
fn a_stream_ends_with_its_fault_behind_what_came_before() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let depths = [("lazy", 1), ("adaptive", 1), ("lazy", 2), ("lazy", 3)];
    for (policy, depth) in depths {
        let engine = engine_of(cpu(), policy, depth);
        let submit = |xs: &[i32]| {
            let inputs = vec![Tensor::from_i32(&[xs.len()], xs)];
            engine.submit_stream("m", inputs, Options::default())
        };
        runtime.block_on(async {
            let mut bad = submit(&[50, 20, 10, 1, 5]).await.unwrap();
            let mut good = submit(&[50, 20, 10, 5, 5]).await.unwrap();
            let mut sent = 0;
            let cause = loop {
                match bad.next().await.unwrap() {
                    Ok(Step::Rows { rows, .. }) => sent += rows.dims[0],
                    Ok(Step::End(answer)) => panic!("{answer:?}"),
                    Err(cause) => break cause.to_string(),
                }
            };
            assert!(cause.contains("id 100 in a table of 30 rows"), "{cause}");
            assert_eq!(
                sent, 3,
                "the pass that failed gives none, nor those behind it"
            );
            while let Some(step) = good.next().await {
                step.unwrap();
            }
        });
    }
}

/// Refuses 5, panics at 6, and gives everything else as it is.
struct Picky;

impl CustomKernel for Picky {
    fn validate(&self, _: &CustomNode<'_>) -> Result<(), String> {
        Ok(())
    }

    fn run(&self, call: &mut CustomCall<'_>) -> Result<(), String> {
        for (to, from) in call.output.iter_mut().zip(call.operands[0].ids()) {
            match from {
                5 => return Err("no fives".into()),
                6 => panic!("a six"),
                other => *to = *other as f32,
            }
        }
        Ok(())
    }
}

/// `x` times 1,000,003 by a general node, and `x` through [`Picky`].
fn products() -> Program {
    let mut b = ProgramBuilder::new("products");
    let x = b.input("x", DType::I32, &[1]);
    let [product, same] =
        [("product", DType::I32), ("same", DType::F32)].map(|(name, ty)| b.output(name, ty, &[1]));
    b.begin_block("all", Repeat::Once);
    let x = b.read_input("read", x);
    let row = Layout(vec![vec![Part::Batch], vec![Part::Fixed(1)]]);
    let times = TensorOp {
        op: "Mul".into(),
        opset: 14,
        attrs: Default::default(),
        operands: vec![
            Operand::Next {
                layout: row.clone(),
                elem: Elem::I64,
            },
            Operand::Numbers {
                dims: Vec::new(),
                elem: Elem::I64,
                base: vec![1_000_003],
                per_len: Vec::new(),
            },
        ],
        outputs: vec![Produced {
            layout: row,
            elem: Elem::I64,
        }],
        flops_per_row: 1,
    };
    let v = b.tensor("times", times, &[x])[0];
    b.emit("product.emit", product, v);
    let op = CustomOp {
        name: "picky".into(),
        output_dims: vec![1],
        flops_per_row: 1,
        batchable: true,
    };
    let v = b.custom("picky", op, &[x]);
    b.emit("same.emit", same, v);
    b.finish().unwrap()
}

#[test]
fn a_fault_says_whose_it_is_and_is_nobody_elses() {
    let registry = || {
        let mut registry = KernelRegistry::new();
        registry.register("picky", Arc::new(Picky));
        registry
    };
    let cpu = CpuDevice::new(CpuOptions {
        threads: 1,
        registry: registry(),
        ..CpuOptions::default()
    });
    let devices: [Box<dyn Device>; 2] = [Box::new(cpu), Box::new(ReferenceDevice::new(registry()))];
    for device in devices {
        let name = device.info().name;
        let nodes = products().nodes.len() as u32;
        let options = ModelOptions {
            segments: Some(vec![std::iter::once(0..nodes).collect()]),
            ..ModelOptions::default()
        };
        let engine = Engine::builder()
            .boxed_device(device)
            .model("products", products(), options)
            .policy("graph:200")
            .build()
            .unwrap();
        let submit = |x: i32| {
            let inputs = vec![Tensor::from_i32(&[1, 1], &[x])];
            engine.try_submit("products", inputs, Options::default())
        };
        let xs = [2, 5000, 5, 3, 6, -5000, 4];
        let handles = xs.map(|x| submit(x).unwrap());
        for (x, handle) in xs.into_iter().zip(handles) {
            match (x, handle.wait()) {
                (5000 | -5000, Err(Data(cause))) => {
                    let wide = i64::from(x) * 1_000_003;
                    let told = format!("expected whole numbers of 32 bits, got {wide}");
                    let is_told = cause.contains("node times: ") && cause.contains(&told);
                    assert!(is_told, "{name}: {cause}");
                }
                // A kernel's own errors may be anybody's.
                (5 | 6, Err(Failed(cause))) => assert!(cause.contains("node picky: "), "{cause}"),
                (2..=4, Ok(answer)) => {
                    assert_eq!(answer.outputs[0].to_i32(), [x * 1_000_003]);
                    assert_eq!(answer.outputs[1].to_f32(), [x as f32]);
                }
                (x, other) => panic!("{name}: {x}: {other:?}"),
            }
        }
        let launches = engine.stats().counters.launches;
        assert_eq!(
            launches,
            u64::from(nodes),
            "{name}: they did not run together"
        );
    }
}
