//! Errors that the emulator gives on demand: no memory, a refused launch, a lost device, a launch
//! that takes long. What fails says why, what does not goes on with the right bits, nothing hangs.

use std::sync::Arc;

use lazybatch_cuda::{CudaDevice, CudaOptions};
use lazybatch_engine::{Engine, ModelOptions, Options};
use lazybatch_graph::{DType, Program, ProgramBuilder, Repeat, Tensor};
use lazybatch_kernels::{Device, Error};
use lazybatch_sla::ModelId;

use crate::process::{Libraries, Outcome, outcome, seeds};
use crate::{device, options};

/// What the emulator reads.
const FAIL: &str = "LAZYBATCH_EMULATOR_FAIL";
/// Whether launches run by graphs.
const GRAPHS: &str = "LAZYBATCH_TEST_GRAPHS";
const MODEL: ModelId = ModelId(0);
const REQUESTS: usize = 6;

/// A loop over a state that ends behind some passes, and a product.
fn program() -> Program {
    let mut b = ProgramBuilder::new("small").with_seed(1);
    let x = b.input("x", DType::F32, &[4]);
    let y = b.output_sequence("y", DType::F32, &[8]);
    let state = b.vector_state("s", DType::F32, &[4], 0.0);
    let given = b.vector_state("given", DType::F32, &[4], 0.0);
    b.begin_block("start", Repeat::Once);
    let x = b.read_input("x", x);
    b.vec_write("give", given, x);
    b.begin_block("loop", Repeat::UntilStop { max: 6 });
    let v = b.vec_read("take", given);
    let s = b.vec_read("old", state);
    let s = b.add("sum", s, v);
    b.vec_write("new", state, s);
    let v = b.dense("dense", s, 8, None);
    b.emit("y", y, v);
    let best = b.arg_max("best", v);
    b.stop("stop", best, 100);
    b.finish().unwrap()
}

fn input(i: usize) -> Vec<Tensor> {
    vec![Tensor::from_f32(&[1, 4], &[i as f32 + 1.0; 4])]
}

/// Runs `body` where calls fail by `rule`.
fn with_rule(name: &str, seed: u64, rule: &str, body: impl FnOnce()) -> Outcome {
    with_vars(name, seed, &[(FAIL, rule)], body)
}

/// Runs `body`, which passes, in a process with these variables.
fn with_vars(name: &str, seed: u64, vars: &[(&str, &str)], body: impl FnOnce()) -> Outcome {
    let ran = outcome(name, seed, Libraries::All, vars, body);
    let Outcome { stdout, stderr, .. } = &ran;
    assert!(ran.passed, "seed {seed}, {vars:?}:\n{stdout}{stderr}");
    ran
}

/// Loads a model, and once more where that failed.
fn load_twice() {
    let device = CudaDevice::new(options());
    let mut device = match device {
        Err(error) => return println!("no device: {error}"),
        Ok(device) => device,
    };
    let program = Arc::new(program());
    match device.load(MODEL, Arc::clone(&program)) {
        Err(Error::OutOfMemory { what, .. }) => println!("no model: {what}"),
        Err(error) => println!("no model: {error}"),
        Ok(()) => return println!("all had room"),
    }
    // There is room the next time.
    device.load(MODEL, program).unwrap();
}

#[test]
fn memory_that_the_driver_refuses_is_named() {
    let name = "injected::memory_that_the_driver_refuses_is_named";
    for seed in seeds(0, 2) {
        refuses_each_allocation(name, seed, load_twice);
    }
}

#[test]
fn kernels_that_had_no_room_are_loaded_the_next_time() {
    let name = "injected::kernels_that_had_no_room_are_loaded_the_next_time";
    for seed in seeds(0, 2) {
        let mut num_refused = 0;
        for n in 1..=4 {
            let rule = format!("cuModuleLoadData:{n}:CUDA_ERROR_OUT_OF_MEMORY");
            let ran = with_rule(name, seed, &rule, load_twice);
            num_refused += usize::from(ran.stdout.contains("no model: "));
        }
        assert!(num_refused > 0, "no load of a kernel was refused");
    }
}

#[test]
fn what_the_driver_says_of_a_kernel_is_passed_on() {
    let name = "injected::what_the_driver_says_of_a_kernel_is_passed_on";
    for (code, said) in [
        (
            "CUDA_ERROR_OUT_OF_MEMORY",
            "cuModuleGetFunction failed: CUDA_ERROR_OUT_OF_MEMORY",
        ),
        ("CUDA_ERROR_NOT_FOUND", " has no kernel "),
    ] {
        let rule = format!("cuModuleGetFunction:3:{code}");
        let ran = with_rule(name, 0, &rule, load_twice);
        assert!(ran.stdout.contains(said), "{said}: {}", ran.stdout);
    }
}

/// Prepares a block, and says how launches ran.
fn prepare_and_remark() {
    let mut device = device(CudaOptions {
        warm_members: 2,
        ..options()
    });
    let program = Arc::new(program());
    let end = program.blocks[0].nodes.len() as u32;
    device.load(MODEL, program).unwrap();
    device.prepare(MODEL, 0, 0, end, u32::MAX).unwrap();
    println!("{:?}", device.remarks());
}

#[test]
fn why_a_graph_was_not_captured_is_told() {
    let name = "injected::why_a_graph_was_not_captured_is_told";
    let none = with_rule(name, 0, "", prepare_and_remark);
    let all = "[\"0 launches by graphs, 0 kernel by kernel (0 new), 2 graphs captured\"]";
    assert!(none.stdout.contains(all), "{}", none.stdout);
    for call in [
        "cuStreamBeginCapture",
        "cuGraphInstantiateWithFlags",
        "cuGraphUpload",
    ] {
        let rule = format!("{call}:1:CUDA_ERROR_OUT_OF_MEMORY");
        let ran = with_rule(name, 0, &rule, prepare_and_remark);
        let counted = "1 graphs captured\", \"a graph was not captured: ";
        let is_told =
            ran.stdout.contains(counted) && ran.stdout.contains("failed: CUDA_ERROR_OUT_OF_MEMORY");
        assert!(is_told, "{call}: {}", ran.stdout);
    }
}

/// Lets each of the first allocations fail in turn.
fn refuses_each_allocation(name: &str, seed: u64, body: impl Fn()) {
    let mut said = Vec::new();
    for call in ["cuMemAlloc", "cuMemHostAlloc"] {
        for n in 1..=8 {
            let rule = format!("{call}:{n}:CUDA_ERROR_OUT_OF_MEMORY");
            let ran = with_rule(name, seed, &rule, &body);
            let words = ["no device: ", "no model: ", "all had room"];
            let lines = ran.stdout.lines().filter_map(|line| {
                let at = words.iter().find_map(|w| line.find(w))?;
                Some(line[at..].to_owned())
            });
            said.extend(lines);
        }
    }
    assert_eq!(said.len(), 16, "{said:#?}");
    for words in [
        "no device: out of device memory: the tables of launches needs",
        "no device: out of device memory: the arena needs",
        "no device: cuMemHostAlloc failed: CUDA_ERROR_OUT_OF_MEMORY",
        "no model: device memory for the weights of small",
        "no model: device memory for the states of small",
        "no model: ",
        "all had room",
    ] {
        assert!(said.iter().any(|s| s.contains(words)), "{words}: {said:#?}");
    }
}

/// Serves some requests, two in flight at a time, and prints what came of each.
fn serve(graphs: bool) {
    let device = device(CudaOptions {
        graphs,
        eager_first: 0,
        ..options()
    });
    let of_model = ModelOptions {
        max_batch: Some(2),
        ..ModelOptions::default()
    };
    let engine = Engine::builder()
        .device(device)
        .model("m", program(), of_model)
        .policy("greedy")
        .depth(2)
        .build()
        .unwrap();
    let submit = |i| {
        let handle = engine.try_submit("m", input(i), Options::default());
        handle.unwrap()
    };
    let handles: Vec<_> = (0..REQUESTS).map(submit).collect();
    for (i, handle) in handles.into_iter().enumerate() {
        match handle.wait() {
            Ok(answer) => println!("answer {i}: {:?}", answer.outputs[0].to_f32()),
            Err(error) => println!("error {i}: {error}"),
        }
    }
    match submit(0).wait() {
        Ok(_) => println!("served: yes"),
        Err(error) => println!("served: {error}"),
    }
    engine.drain_blocking().unwrap();
}

/// What came of the requests, and of the one behind them.
fn lines(ran: &Outcome) -> (Vec<String>, String) {
    let of = |word: &str| {
        let found = ran
            .stdout
            .lines()
            .filter_map(|l| Some(l[l.find(word)?..].to_owned()));
        found.collect::<Vec<_>>()
    };
    let mut all = of("answer ");
    all.extend(of("error "));
    all.sort_by_key(|line| line.split([' ', ':']).nth(1).map(str::to_owned));
    (all, of("served: ").concat())
}

/// Each case under each seed.
fn under_all_seeds<T: Copy>(cases: &[T]) -> impl Iterator<Item = (u64, T)> {
    seeds(0, 2).flat_map(move |seed| cases.iter().map(move |case| (seed, *case)))
}

#[test]
fn what_fails_fails_alone_and_says_why() {
    let name = "injected::what_fails_fails_alone_and_says_why";
    let refused = "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES";
    // Which call, whether by graphs, and whether some requests fail.
    let cases = [
        ("cuLaunchKernel:30", refused, false, true),
        ("cuLaunchKernel:77", refused, false, true),
        (
            "cuMemcpyHtoDAsync:12",
            "CUDA_ERROR_OUT_OF_MEMORY",
            false,
            true,
        ),
        (
            "cuMemcpyHtoDAsync:25",
            "CUDA_ERROR_OUT_OF_MEMORY",
            true,
            true,
        ),
        ("cuGraphLaunch:9", "CUDA_ERROR_OUT_OF_MEMORY", true, true),
        ("cuEventRecord:7", "CUDA_ERROR_OUT_OF_MEMORY", true, true),
        ("cuEventQuery:11", "CUDA_ERROR_INVALID_VALUE", true, true),
        (
            "cuStreamBeginCapture:2",
            "CUDA_ERROR_ILLEGAL_STATE",
            true,
            false,
        ),
        (
            "cuGraphInstantiateWithFlags:4",
            "CUDA_ERROR_OUT_OF_MEMORY",
            true,
            false,
        ),
        ("cuEventQuery:1-700", "CUDA_ERROR_NOT_READY", true, false),
    ];
    // The process of a case knows by its environment alone how to run.
    let body = || serve(std::env::var(GRAPHS).is_ok_and(|v| v == "true"));
    let want = lines(&with_rule(name, 0, "", body));
    assert!(
        want.0.len() == REQUESTS && want.1 == "served: yes",
        "{want:?}"
    );
    for (seed, (call, code, graphs, fails)) in under_all_seeds(&cases) {
        let rule = format!("{call}:{code}");
        let by_graphs = graphs.to_string();
        let vars = [(FAIL, rule.as_str()), (GRAPHS, by_graphs.as_str())];
        let ran = with_vars(name, seed, &vars, body);
        let (got, served) = lines(&ran);
        assert_eq!(
            (got.len(), served.as_str()),
            (REQUESTS, "served: yes"),
            "{rule}: {got:#?}"
        );
        let mut failed = 0;
        for (got, want) in got.iter().zip(&want.0) {
            if got.starts_with("error ") {
                assert!(got.contains(code), "{rule}: {got}");
                failed += 1;
            } else {
                assert_eq!(got, want, "{rule}");
            }
        }
        assert_eq!(failed > 0, fails, "{rule}: {got:#?}");
        assert!(failed < REQUESTS, "{rule}: {got:#?}");
    }
}

/// A device that is lost is out of service: what ran on it and what was queued for it fails with
/// the cause, what comes is refused, what was answered before is right, and the engine still ends.
#[test]
fn a_lost_device_is_out_of_service() {
    let name = "injected::a_lost_device_is_out_of_service";
    let body = || serve(std::env::var(GRAPHS).is_ok_and(|v| v == "true"));
    let want = lines(&with_rule(name, 0, "", body));
    assert!(
        want.0.len() == REQUESTS && want.1 == "served: yes",
        "{want:?}"
    );
    // A fault inside of a kernel, or any call that a lost device answers.
    let cases = [
        ("kernel:5", "CUDA_ERROR_ILLEGAL_ADDRESS", false),
        ("kernel:40", "CUDA_ERROR_ILLEGAL_ADDRESS", true),
        ("kernel:90", "CUDA_ERROR_ILLEGAL_ADDRESS", true),
        ("cuLaunchKernel:60", "CUDA_ERROR_MISALIGNED_ADDRESS", false),
        ("cuGraphLaunch:9", "CUDA_ERROR_LAUNCH_TIMEOUT", true),
        ("cuMemcpyHtoDAsync:25", "CUDA_ERROR_ILLEGAL_ADDRESS", true),
        ("cuEventQuery:11", "CUDA_ERROR_ILLEGAL_ADDRESS", true),
        ("cuCtxSetCurrent:80", "CUDA_ERROR_MISALIGNED_ADDRESS", true),
    ];
    for (seed, (call, code, graphs)) in under_all_seeds(&cases) {
        let rule = format!("{call}:{code}");
        let by_graphs = graphs.to_string();
        let vars = [(FAIL, rule.as_str()), (GRAPHS, by_graphs.as_str())];
        let ran = with_vars(name, seed, &vars, body);
        let (got, served) = lines(&ran);
        assert_eq!(got.len(), REQUESTS, "{rule}: {got:#?}");
        let mut lost = 0;
        for (got, want) in got.iter().zip(&want.0) {
            if got.starts_with("error ") {
                assert!(got.contains(code), "{rule}: {got}");
                lost += 1;
            } else {
                assert_eq!(got, want, "{rule}");
            }
        }
        // Two run at a time, so most were queued.
        assert!(lost > 0, "{rule}: {got:#?}");
        let is_refused = served.contains("is lost") && served.contains(code);
        assert!(is_refused, "{rule}: {served}");
    }
}
