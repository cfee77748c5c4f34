//! Joined programs compute what their steps compute one after another, bit for bit: random ensembles
//! of small programs, and models of the zoo, alone, batched and under several policies.

use std::collections::BTreeMap;
use std::sync::Arc;

use lazybatch_engine::{Engine, ModelOptions, Options};
use lazybatch_graph::{
    Act, At, DType, Greedy, MultiHead, Program, ProgramBuilder, Repeat, Step, Tensor, join,
    optimize,
};
use lazybatch_kernels::conformance::{Request, Schedule, run};
use lazybatch_kernels::cpu::{CpuDevice, CpuOptions};
use lazybatch_kernels::custom::KernelRegistry;
use lazybatch_kernels::reference::ReferenceDevice;
use lazybatch_kernels::synthetic::random_inputs;
use lazybatch_kernels::{Device, validate};
use lazybatch_sla::ModelId;
use lazybatch_workloads::zoo;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

const MAX_LEN: usize = 9;
const POLICIES: [&str; 5] = ["serial", "graph:0.1", "greedy", "lazy", "adaptive"];

/// What a tensor between steps holds.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// So many features for each position.
    Rows(usize),
    /// An id below this for each position.
    Ids(usize),
    /// So many features.
    Vector(usize),
    /// What a decoder wrote: as long as it likes, for no step to read.
    Tokens,
}

/// A step before it has a place.
struct Stage {
    program: Program,
    inputs: BTreeMap<String, String>,
    outputs: Vec<(&'static str, Kind)>,
}

/// Tensors by inputs or outputs.
type Map = BTreeMap<String, String>;
/// A step: name, program, what it reads, what it makes.
type Placed = (String, Program, Map, Map);

/// An ensemble.
struct Ensemble {
    inputs: Vec<String>,
    outputs: Vec<String>,
    steps: Vec<Placed>,
}

impl Ensemble {
    fn steps(&self) -> Vec<Step<'_>> {
        self.steps
            .iter()
            .map(|(name, program, inputs, outputs)| Step {
                name: name.clone(),
                program,
                inputs: inputs.clone(),
                outputs: outputs.clone(),
            })
            .collect()
    }

    /// The joined program; its steps stand in an order of `rng`'s.
    fn joined(&self, rng: &mut impl Rng) -> Program {
        use rand::seq::SliceRandom;
        let mut steps = self.steps();
        steps.shuffle(rng);
        join("joined", &self.inputs, &steps, &self.outputs).expect("it can be joined")
    }

    /// The outputs of a request, step by step, on devices that `make` gives.
    fn by_steps(
        &self,
        inputs: &[Tensor],
        len: usize,
        make: &dyn Fn(&Arc<Program>) -> Box<dyn Device>,
    ) -> Vec<Tensor> {
        let named = self.inputs.iter().cloned().zip(inputs.iter().cloned());
        let mut tensors: BTreeMap<String, Tensor> = named.collect();
        for (_, program, from, to) in &self.steps {
            let program = Arc::new(program.clone());
            let has_len = program.length_input.is_some();
            let inputs = program
                .inputs
                .iter()
                .map(|d| tensors[&from[&d.name]].clone());
            let request = Request {
                inputs: inputs.collect(),
                len: if has_len { len } else { 0 },
                samples: samples(&program, inputs_of(&tensors, &program, from)),
            };
            let mut device = make(&program);
            let results = run(&mut *device, &program, &[request], Schedule::Alone);
            let results = results.expect("it runs").remove(0);
            for (decl, result) in program.outputs.iter().zip(results) {
                if let (Some(tensor), Some(result)) = (to.get(&decl.name), result) {
                    tensors.insert(tensor.clone(), result);
                }
            }
        }
        self.outputs.iter().map(|o| tensors[o].clone()).collect()
    }
}

fn inputs_of<'a>(
    tensors: &'a BTreeMap<String, Tensor>,
    program: &Program,
    from: &BTreeMap<String, String>,
) -> Option<&'a Tensor> {
    program.inputs.first().map(|d| &tensors[&from[&d.name]])
}

/// Samples of a request to a program without sequences; others have one.
fn samples(program: &Program, first: Option<&Tensor>) -> usize {
    match first {
        Some(tensor) if validate::is_static(program) => tensor.dims[0],
        _ => 1,
    }
}

fn cpu(program: &Arc<Program>) -> Box<dyn Device> {
    let options = CpuOptions {
        threads: 2,
        poison: true,
        max_open: 64,
        ..CpuOptions::default()
    };
    let mut device = CpuDevice::new(options);
    device.load(ModelId(0), program.clone()).expect("it loads");
    Box::new(device)
}

fn reference(program: &Arc<Program>) -> Box<dyn Device> {
    let mut device = ReferenceDevice::new(KernelRegistry::default());
    device.load(ModelId(0), program.clone()).expect("it loads");
    Box::new(device)
}

type Pool = Vec<(String, Kind)>;

/// A tensor of the pool that `fits`, and what it holds.
fn pick(pool: &Pool, rng: &mut impl Rng, fits: fn(Kind) -> bool) -> Option<(String, Kind)> {
    let all: Vec<_> = pool.iter().filter(|(_, k)| fits(*k)).cloned().collect();
    all.choose(rng).cloned()
}

fn rows(b: &mut ProgramBuilder, name: &str, d: usize) -> lazybatch_graph::InputId {
    b.sequence(name, DType::F32, &[d], MAX_LEN + d % 3)
}

/// A step of a random kind that reads from `pool`; `None` if that has nothing for it.
fn stage(pool: &Pool, rng: &mut impl Rng) -> Option<Stage> {
    let is_rows = |k| matches!(k, Kind::Rows(_));
    let is_vector = |k| matches!(k, Kind::Vector(_));
    let seed = rng.random();
    let mut b = ProgramBuilder::new("stage").with_seed(seed);
    let mut inputs = BTreeMap::new();
    let mut outputs = Vec::new();
    let d: usize = rng.random_range(2..6);
    match rng.random_range(0..11) {
        0 => {
            let (tensor, Kind::Rows(n)) = pick(pool, rng, is_rows)? else {
                return None;
            };
            let x = rows(&mut b, "x", n);
            let y = b.output_sequence("y", DType::F32, &[2 * d]);
            b.begin_block("main", Repeat::Once);
            let v = b.read_input("x", x);
            let v = b.dense("up", v, 2 * d, Some(Act::Gelu));
            let v = b.self_attention("attention", v, MultiHead::new(2), None);
            b.emit("y", y, v);
            inputs.insert("x".into(), tensor);
            outputs.push(("y", Kind::Rows(2 * d)));
        }
        1 | 2 => {
            let (tensor, Kind::Rows(n)) = pick(pool, rng, is_rows)? else {
                return None;
            };
            let x = rows(&mut b, "x", n);
            let y = b.output_sequence("y", DType::F32, &[d]);
            let last = b.output("last", DType::F32, &[d]);
            b.begin_block("steps", Repeat::PerInputStep { stride: 1 });
            let at = *[At::Step, At::Reverse].choose(rng)?;
            let v = b.read_input_at("x", x, at);
            let v = b.lstm("lstm", v, d);
            b.emit("y", y, v);
            b.emit("last", last, v);
            inputs.insert("x".into(), tensor);
            outputs.extend([("y", Kind::Rows(d)), ("last", Kind::Vector(d))]);
        }
        3 => {
            let (tensor, Kind::Rows(n)) = pick(pool, rng, is_rows)? else {
                return None;
            };
            let x = rows(&mut b, "x", n);
            let y = b.output_sequence("ids", DType::I32, &[]);
            b.begin_block("main", Repeat::Once);
            let v = b.read_input("x", x);
            let v = b.dense("scores", v, d + 3, None);
            let v = b.arg_max("best", v);
            b.emit("ids", y, v);
            inputs.insert("x".into(), tensor);
            outputs.push(("ids", Kind::Ids(d + 3)));
        }
        4 => {
            let is_ids = |k| matches!(k, Kind::Ids(_));
            let (tensor, Kind::Ids(n)) = pick(pool, rng, is_ids)? else {
                return None;
            };
            let x = b.sequence_ids("ids", MAX_LEN, n);
            let y = b.output_sequence("y", DType::F32, &[d]);
            let is_loop = rng.random();
            let repeat = if is_loop {
                Repeat::PerInputStep { stride: 1 }
            } else {
                Repeat::Once
            };
            b.begin_block("main", repeat);
            let v = b.read_input("ids", x);
            let v = b.embed("table", v, n, d);
            b.emit("y", y, v);
            inputs.insert("ids".into(), tensor);
            outputs.push(("y", Kind::Rows(d)));
        }
        5 => {
            let (tensor, Kind::Rows(n)) = pick(pool, rng, is_rows)? else {
                return None;
            };
            let x = rows(&mut b, "x", n);
            let y = b.output("y", DType::F32, &[n]);
            b.begin_block("main", Repeat::Once);
            let v = b.read_input("x", x);
            let v = if rng.random() {
                b.mean_rows("mean", v)
            } else {
                b.last_row("last", v)
            };
            b.emit("y", y, v);
            inputs.insert("x".into(), tensor);
            outputs.push(("y", Kind::Vector(n)));
        }
        6 | 7 => {
            let (tensor, Kind::Vector(n)) = pick(pool, rng, is_vector)? else {
                return None;
            };
            let (other, Kind::Vector(m)) = pick(pool, rng, is_vector)? else {
                return None;
            };
            let (x, z) = (
                b.input("x", DType::F32, &[n]),
                b.input("z", DType::F32, &[m]),
            );
            let y = b.output("y", DType::F32, &[d]);
            b.begin_block("main", Repeat::Once);
            let (v, w) = (b.read_input("x", x), b.read_input("z", z));
            let v = b.concat("both", &[v, w]);
            let v = b.dense("fc", v, d, Some(Act::Tanh));
            b.emit("y", y, v);
            inputs.extend([("x".into(), tensor), ("z".into(), other)]);
            outputs.push(("y", Kind::Vector(d)));
        }
        8 => {
            let (tensor, Kind::Vector(n)) = pick(pool, rng, is_vector)? else {
                return None;
            };
            let x = b.input("x", DType::F32, &[n]);
            let h = b.vector_state("h", DType::F32, &[n], 0.0);
            let greedy = Greedy::new(&mut b, 1, 2);
            let scores = b.output("scores", DType::F32, &[5]);
            b.begin_block("start", Repeat::Once);
            let v = b.read_input("x", x);
            b.vec_write("h0", h, v);
            b.begin_block("loop", Repeat::UntilStop { max: 6 });
            let token = greedy.read(&mut b);
            let v = b.embed("table", token, 5, 3);
            let v = b.gru("gru", v, n, h);
            let v = b.dense("scores", v, 5, None);
            b.emit("scores_now", scores, v);
            greedy.choose(&mut b, v);
            inputs.insert("x".into(), tensor);
            outputs.extend([("tokens", Kind::Tokens), ("scores", Kind::Vector(5))]);
        }
        9 => {
            let (tensor, Kind::Rows(n)) = pick(pool, rng, is_rows)? else {
                return None;
            };
            let (other, Kind::Rows(m)) = pick(pool, rng, is_rows)? else {
                return None;
            };
            let x = b.sequence("x", DType::F32, &[n], MAX_LEN);
            let z = b.sequence("z", DType::F32, &[m], MAX_LEN);
            let y = b.output_sequence("y", DType::F32, &[d]);
            b.begin_block("main", Repeat::Once);
            let (v, w) = (b.read_input("x", x), b.read_input("z", z));
            let v = b.concat("both", &[v, w]);
            let v = b.dense("fc", v, d, None);
            b.emit("y", y, v);
            inputs.extend([("x".into(), tensor), ("z".into(), other)]);
            outputs.push(("y", Kind::Rows(d)));
        }
        _ => {
            // Reads its input in three blocks, and what it makes comes from two.
            let (tensor, Kind::Rows(n)) = pick(pool, rng, is_rows)? else {
                return None;
            };
            let x = b.sequence("x", DType::F32, &[n], MAX_LEN);
            let mean = b.output("mean", DType::F32, &[n]);
            let y = b.output_sequence("y", DType::F32, &[n]);
            let kept = b.sequence_state("kept", n, MAX_LEN);
            b.begin_block("before", Repeat::Once);
            let v = b.read_input("x.before", x);
            let v = b.mean_rows("mean", v);
            b.emit("mean.emit", mean, v);
            b.begin_block("steps", Repeat::PerInputStep { stride: 1 });
            let v = b.read_input("x.steps", x);
            let v = b.lstm("lstm", v, n);
            b.seq_write("keep", kept, At::Step, v);
            b.begin_block("behind", Repeat::Once);
            let v = b.read_input("x.behind", x);
            let w = b.seq_read("kept", kept, At::All);
            let v = b.add("sum", v, w);
            b.emit("y", y, v);
            inputs.insert("x".into(), tensor);
            outputs.extend([("mean", Kind::Vector(n)), ("y", Kind::Rows(n))]);
        }
    }
    let program = b.finish().and_then(optimize).expect("it is sound");
    Some(Stage {
        program,
        inputs,
        outputs,
    })
}

/// An ensemble of up to six steps; what no step reads is an output, and some of the rest.
fn random(rng: &mut impl Rng) -> Ensemble {
    let mut pool: Pool = vec![("vector".into(), Kind::Vector(3))];
    // Without sequences, requests may have several samples.
    if rng.random_range(0..4) > 0 {
        pool.extend([("rows".into(), Kind::Rows(4)), ("ids".into(), Kind::Ids(7))]);
    }
    let given: Vec<String> = pool.iter().map(|(name, _)| name.clone()).collect();
    let mut steps: Vec<Placed> = Vec::new();
    let num = rng.random_range(2..7);
    while steps.len() < num {
        // Newer tensors are likelier, so that there are chains.
        let from = if rng.random() {
            pool.len().saturating_sub(3)
        } else {
            0
        };
        let Some(stage) = stage(&pool[from..].to_vec(), rng) else {
            continue;
        };
        let mut outputs = BTreeMap::new();
        for (output, kind) in stage.outputs {
            let tensor = format!("t{}.{output}", steps.len());
            outputs.insert(output.to_owned(), tensor.clone());
            pool.push((tensor, kind));
        }
        let name = format!("s{}", steps.len());
        steps.push((name, stage.program, stage.inputs, outputs));
    }
    let read = |tensor: &String| steps.iter().any(|s| s.2.values().any(|t| t == tensor));
    let inputs = given.iter().filter(|t| read(t)).cloned().collect();
    let made = pool
        .iter()
        .map(|(name, _)| name)
        .filter(|n| !given.contains(n));
    let made: Vec<String> = made.cloned().collect();
    let outputs = made
        .into_iter()
        .filter(|t| !read(t) || rng.random_range(0..4) == 0);
    Ensemble {
        inputs,
        outputs: outputs.collect(),
        steps,
    }
}

fn requests(program: &Program, num: usize, max_len: usize, rng: &mut impl Rng) -> Vec<Request> {
    let is_static = validate::is_static(program);
    let request = |_| {
        let has_len = program.length_input.is_some();
        let len = if has_len {
            rng.random_range(1..=max_len)
        } else {
            0
        };
        let samples = if is_static { rng.random_range(1..4) } else { 1 };
        Request {
            inputs: random_inputs(program, len, samples, rng),
            len,
            samples,
        }
    };
    (0..num).map(request).collect()
}

fn bits(tensors: &[Tensor]) -> Vec<(Vec<usize>, &[u8])> {
    let of = |t: &'_ Tensor| t.dims.clone();
    tensors.iter().map(|t| (of(t), t.data.as_slice())).collect()
}

fn whole(outputs: Vec<Option<Tensor>>) -> Vec<Tensor> {
    let all: Option<Vec<Tensor>> = outputs.into_iter().collect();
    all.expect("every output is emitted")
}

/// Whether results agree as far as those of double precision do that are rounded between steps.
fn close(a: &[Tensor], b: &[Tensor]) -> bool {
    let near = |(x, y): (&f32, &f32)| (x - y).abs() <= 1e-3 * (1.0 + y.abs());
    a.len() == b.len()
        && a.iter()
            .zip(b)
            .all(|(a, b)| a.dims == b.dims && a.to_f32().iter().zip(&b.to_f32()).all(near))
}

fn check(ensemble: &Ensemble, what: &str, max_len: usize, num: usize, rng: &mut ChaCha8Rng) {
    let program = Arc::new(ensemble.joined(rng));
    let requests = requests(&program, num, max_len, rng);
    let want: Vec<Vec<Tensor>> = requests
        .iter()
        .map(|r| ensemble.by_steps(&r.inputs, r.len, &cpu))
        .collect();
    let schedules = [
        Schedule::Alone,
        Schedule::Together,
        Schedule::Random(rng.random()),
    ];
    for schedule in schedules {
        let got = run(&mut *cpu(&program), &program, &requests, schedule).expect("it runs");
        for (i, (got, want)) in got.into_iter().zip(&want).enumerate() {
            let got = whole(got);
            assert_eq!(bits(&got), bits(want), "{what}: {schedule:?}: request {i}");
        }
    }
    let got = run(
        &mut *reference(&program),
        &program,
        &requests[..1],
        Schedule::Alone,
    );
    let got = whole(got.expect("it runs").remove(0));
    let slow = ensemble.by_steps(&requests[0].inputs, requests[0].len, &reference);
    assert!(close(&got, &slow), "{what}: reference: {got:?} {slow:?}");
    let policy = *POLICIES.choose(rng).expect("there are some");
    let engine = Engine::builder()
        .device(CpuDevice::new(CpuOptions::default()))
        .model("joined", program.clone(), ModelOptions::default())
        .policy(policy)
        .build()
        .expect("it starts");
    let submit = |r: &Request| {
        let submitted = engine.try_submit("joined", r.inputs.clone(), Options::default());
        submitted.expect("there is room")
    };
    let handles: Vec<_> = requests.iter().map(submit).collect();
    for (i, (handle, want)) in handles.into_iter().zip(&want).enumerate() {
        let got = handle.wait().expect("it ends").outputs;
        assert_eq!(bits(&got), bits(want), "{what}: {policy}: request {i}");
    }
}

#[test]
fn random_ensembles_are_their_steps_one_after_another() {
    for seed in 0..60 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let ensemble = random(&mut rng);
        check(&ensemble, &format!("seed {seed}"), MAX_LEN, 7, &mut rng);
    }
}

/// Steps of the zoo's models, each reading its own inputs, all outputs handed out.
fn of_zoo(names: &[&str]) -> Ensemble {
    let mut whole = Ensemble {
        inputs: Vec::new(),
        outputs: Vec::new(),
        steps: Vec::new(),
    };
    for name in names {
        let program = zoo::find(name)
            .expect("in the zoo")
            .program()
            .expect("valid");
        let tensor = |kind: &str, own: &String| (own.clone(), format!("{name}.{kind}.{own}"));
        let inputs = program.inputs.iter().map(|d| tensor("in", &d.name));
        let inputs: BTreeMap<String, String> = inputs.collect();
        let outputs = program.outputs.iter().map(|d| tensor("out", &d.name));
        let outputs: BTreeMap<String, String> = outputs.collect();
        whole
            .inputs
            .extend(program.inputs.iter().map(|d| inputs[&d.name].clone()));
        whole
            .outputs
            .extend(program.outputs.iter().map(|d| outputs[&d.name].clone()));
        whole
            .steps
            .push(((*name).to_owned(), program, inputs, outputs));
    }
    whole
}

#[test]
fn models_of_the_zoo_run_behind_one_another() {
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    // Two decoders behind two encoders, over sequences of one length.
    let pair = of_zoo(&["phonemes", "gnmt-tiny"]);
    check(&pair, "phonemes and gnmt", 8, 6, &mut rng);
    // A classifier of images, and one over its scores.
    let mut images = of_zoo(&["cnn-tiny"]);
    let scores = images.outputs[0].clone();
    let decl = &images.steps[0].1.outputs[0];
    let n = decl.ty.row_elems();
    let mut b = ProgramBuilder::new("head");
    let x = b.input("x", DType::F32, &decl.ty.fixed_dims());
    let y = b.output("y", DType::F32, &[3]);
    b.begin_block("main", Repeat::Once);
    let v = b.read_input("x", x);
    let v = b.reshape("flat", v, &[n]);
    let v = b.dense("fc", v, 3, None);
    let v = b.softmax("softmax", v);
    b.emit("y", y, v);
    let head = b.finish().and_then(optimize).expect("it is sound");
    let (inputs, outputs) = (
        [("x".to_owned(), scores)],
        [("y".to_owned(), "y".to_owned())],
    );
    images
        .steps
        .push(("head".into(), head, inputs.into(), outputs.into()));
    images.outputs.push("y".into());
    check(&images, "cnn and head", 0, 5, &mut rng);
}
