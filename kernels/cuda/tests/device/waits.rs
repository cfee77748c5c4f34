//! Waits that the device relies on: the emulator lets one after another answer that all is over
//! when nothing is, and what comes of it has to differ or to be reported.
//!
//! Waits that change nothing are named too: [`HARMLESS`].

use std::sync::Arc;

use lazybatch_cuda::{CudaDevice, CudaOptions};
use lazybatch_graph::{CustomOp, DType, Program, ProgramBuilder, Repeat, Tensor};
use lazybatch_kernels::{
    CustomCall, CustomKernel, CustomNode, Device, KernelRegistry, OpenRequest,
};
use lazybatch_sla::{LaneId, Launch, Member, ModelId, RequestId, Slot, SubBatchId, Ticket, Time};

use crate::process::{Libraries, Outcome, outcome};
use crate::{device, options};

/// What the emulator reads.
const FAIL: &str = "LAZYBATCH_EMULATOR_FAIL";
/// What it says when a rule comes to its first call.
const FIRED: &str = "CUDA emulator: LAZYBATCH_EMULATOR_FAIL: ";
/// What it says of what its checks find.
const REPORT: &str = "CUDA emulator (CPU): ";
/// Printed in front of each part of a body.
const PHASE: &str = "phase: ";
/// All calls of the driver that wait or ask.
const WAITS: [&str; 5] = [
    "cuCtxSynchronize",
    "cuEventQuery",
    "cuEventSynchronize",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
];
/// Parts of the body in which some waits change nothing; others in them do.
const HARMLESS: [&str; 4] = [
    // The last piece of weights: giving back the buffer behind it waits too. The same holds for
    // rows of initial states.
    "load",
    // Behind a node's results: what comes next in the stream comes after their copy.
    "host nodes",
    // In front of a pass whose predecessor has ended no loop.
    "loop",
    // Nothing runs when a device is dropped that was polled to the end, and giving back its memory
    // waits.
    "end",
];
const MODEL: ModelId = ModelId(0);
const REQUESTS: u32 = 3;
/// Most passes of the loop.
const PASSES: u32 = 16;

fn phase(name: &str) {
    eprintln!("{PHASE}{name}");
}

/// Doubles.
struct Twice;

impl CustomKernel for Twice {
    fn validate(&self, _node: &CustomNode<'_>) -> Result<(), String> {
        Ok(())
    }

    fn run(&self, call: &mut CustomCall<'_>) -> Result<(), String> {
        for (out, x) in call.output.iter_mut().zip(call.operands[0].data) {
            *out = 2.0 * x;
        }
        Ok(())
    }
}

/// Nodes on the host, a loop that adds what they gave until a token comes, and a block behind it
/// that reads what the last pass left.
fn program() -> Program {
    let mut b = ProgramBuilder::new("counted").with_seed(5);
    let x = b.input("x", DType::F32, &[6]);
    let tokens = b.output_sequence("tokens", DType::I32, &[]);
    let total = b.output("total", DType::F32, &[6]);
    let sum = b.vector_state("sum", DType::F32, &[6], 0.25);
    let given = b.vector_state("given", DType::F32, &[6], 0.0);
    b.begin_block("host", Repeat::Once);
    let mut x = b.read_input("x", x);
    for name in ["first", "second"] {
        let op = CustomOp {
            name: "twice".into(),
            output_dims: vec![6],
            flops_per_row: 1,
            batchable: true,
        };
        x = b.custom(name, op, &[x]);
        x = b.dense(&format!("{name}.dense"), x, 6, None);
    }
    b.vec_write("give", given, x);
    b.begin_block("loop", Repeat::UntilStop { max: PASSES });
    let x = b.vec_read("take", given);
    let s = b.vec_read("sum", sum);
    let s = b.add("add", s, x);
    b.vec_write("keep", sum, s);
    let logits = b.dense("head", s, 4, None);
    let token = b.arg_max("argmax", logits);
    b.emit("emit", tokens, token);
    b.stop("stop", token, 2);
    b.begin_block("behind", Repeat::Once);
    let s = b.vec_read("left", sum);
    b.emit("emit.total", total, s);
    b.finish().unwrap()
}

/// The device with the model and open requests.
struct Run {
    device: CudaDevice,
    program: Arc<Program>,
    ticket: u64,
}

impl Run {
    fn new() -> Self {
        phase("start");
        let mut registry = KernelRegistry::new();
        registry.register("twice", Arc::new(Twice));
        let mut device = device(CudaOptions {
            registry,
            graphs: false,
            ..options()
        });
        let program = Arc::new(program());
        phase("load");
        device.load(MODEL, Arc::clone(&program)).unwrap();
        phase("open");
        for i in 0..REQUESTS {
            let values: Vec<f32> = (0..6)
                .map(|j| ((i * 7 + j * 5) % 11) as f32 - 5.0)
                .collect();
            let request = OpenRequest {
                slot: Slot(i),
                request: RequestId(u64::from(i)),
                model: MODEL,
                inputs: &[Tensor::from_f32(&[1, 6], &values)],
                input_len: 0,
                samples: 1,
                output_len: None,
            };
            device.open(&request).unwrap();
        }
        Self {
            device,
            program,
            ticket: 0,
        }
    }

    /// Issues a block for requests, in a pass.
    fn issue(&mut self, block: u32, step: u32, slots: &[u32]) {
        let end = self.program.blocks[block as usize].nodes.len() as u32;
        let plan = self.device.prepare(MODEL, block, 0, end, u32::MAX).unwrap();
        let members = slots.iter().map(|s| Member {
            request: RequestId(u64::from(*s)),
            slot: Slot(*s),
            step,
            input_len: 0,
            samples: 1,
            idle: false,
        });
        let launch = Launch {
            ticket: Ticket(self.ticket),
            lane: LaneId(0),
            model: MODEL,
            block,
            segment: 0,
            first_node: 0,
            end_node: end,
            sub_batch: SubBatchId(0),
            members: members.collect(),
            padded_len: None,
            merged_members: 0,
        };
        self.ticket += 1;
        self.device.enqueue(Time::ZERO, plan, &launch).unwrap();
    }

    /// Waits for the oldest launch in flight; requests whose loop it ended.
    fn finish(&mut self) -> Vec<u32> {
        loop {
            if let Some(done) = self.device.poll(Time::ZERO) {
                if let Err(error) = done.whole() {
                    println!("failed: {error}");
                }
                return done.stopped.iter().map(|r| r.0 as u32).collect();
            }
        }
    }

    /// All blocks behind the first for these requests, two passes in flight; then their answers.
    fn loop_and_end(&mut self, mut slots: Vec<u32>) {
        phase("loop");
        let all = slots.clone();
        self.issue(1, 0, &slots);
        for step in 1..PASSES {
            self.issue(1, step, &slots);
            let stopped = self.finish();
            slots.retain(|s| !stopped.contains(s));
            if slots.is_empty() {
                break;
            }
        }
        self.finish();
        phase("behind");
        self.issue(2, 0, &all);
        self.finish();
        self.close(&all);
    }

    fn close(&mut self, slots: &[u32]) {
        for slot in slots {
            for output in self.device.close(Slot(*slot)) {
                println!("answer {slot}: {output:?}");
            }
        }
    }
}

/// A whole run; where the emulator is told to, the launch of a pass fails, and what it was given is
/// used again.
fn body() {
    let mut run = Run::new();
    phase("host nodes");
    run.issue(0, 0, &[0, 1, 2]);
    run.finish();
    phase("a pass");
    run.issue(1, 0, &[0]);
    run.finish();
    run.close(&[0]);
    run.loop_and_end(vec![1, 2]);
    phase("end");
    drop(run);
}

/// The same with all requests in the loop.
fn body_of_loop() {
    let mut run = Run::new();
    phase("host nodes");
    run.issue(0, 0, &[0, 1, 2]);
    run.finish();
    run.loop_and_end(vec![0, 1, 2]);
    phase("end");
    drop(run);
}

/// What a run printed about its answers.
fn answers(ran: &Outcome) -> Vec<String> {
    let words = ["answer ", "failed: "];
    let line = |line: &str| {
        let at = words.iter().find_map(|w| line.find(w))?;
        Some(line[at..].to_owned())
    };
    ran.stdout.lines().filter_map(line).collect()
}

/// The parts in which rules came to their first calls, in order.
fn fired(ran: &Outcome) -> Vec<String> {
    let mut now = "";
    let mut all = Vec::new();
    for line in ran.stderr.lines() {
        if let Some(at) = line.find(PHASE) {
            now = &line[at + PHASE.len()..];
        } else if line.contains(FIRED) {
            all.push(now.to_owned());
        }
    }
    all
}

/// A run under rules of the emulator.
fn under(name: &str, rules: &str, body: fn()) -> Outcome {
    outcome(name, 1, Libraries::All, &[(FAIL, rules)], body)
}

/// Whether a run shows that something is wrong.
fn is_found(ran: &Outcome, want: &[String]) -> bool {
    !ran.passed || ran.stderr.contains(REPORT) || answers(ran) != want
}

/// Lets each call of `wait` in turn answer at once, behind `rules` and before the part `end`: the
/// part of the run it is in, and whether that is found.
fn each(
    name: &str,
    (rules, wait, end): (&str, &str, &str),
    want: &[String],
    body: fn(),
) -> Vec<(String, bool)> {
    let mut all = Vec::new();
    for call in 1.. {
        let rules = format!("{rules},{wait}:{call}:CUDA_SUCCESS");
        let ran = under(name, &rules, body);
        let was_skipped = ran
            .stderr
            .contains(&format!("{FIRED}call {call} of {wait} "));
        match fired(&ran).pop() {
            Some(part) if was_skipped && part != end => all.push((part, is_found(&ran, want))),
            _ => break,
        }
    }
    all
}

#[test]
fn waits_that_are_missing_are_found() {
    let name = "waits::waits_that_are_missing_are_found";
    let ran = under(name, "", body_of_loop);
    let want = answers(&ran);
    assert!(!is_found(&ran, &want) && want.len() == 2 * REQUESTS as usize);
    // Waits for a launch: all of them, as how often each is asked for differs.
    let ran = under(name, "cuEventQuery:1-1000000:CUDA_SUCCESS", body_of_loop);
    assert!(is_found(&ran, &want), "{}", ran.stdout);
    let mut missed = Vec::new();
    let mut found = Vec::new();
    for wait in WAITS.iter().filter(|w| **w != "cuEventQuery") {
        for (part, is_found) in each(name, ("", wait, ""), &want, body_of_loop) {
            match is_found {
                true => found.push(part),
                false => missed.push(part),
            }
        }
    }
    println!("found: {found:?}, missed: {missed:?}");
    for part in ["load", "host nodes", "loop"] {
        assert!(found.iter().any(|p| p == part), "{part}: {found:?}");
    }
    let harmful = missed.iter().filter(|p| !HARMLESS.contains(&p.as_str()));
    assert_eq!(harmful.count(), 0, "{missed:?}");
}

/// Where the driver does not tell when a launch is over, it is waited for before others get what it
/// uses.
#[test]
fn waits_behind_a_failure_that_are_missing_are_found() {
    let name = "waits::waits_behind_a_failure_that_are_missing_are_found";
    for (call, code) in [
        ("cuEventQuery", "CUDA_ERROR_INVALID_VALUE"),
        ("cuEventRecord", "CUDA_ERROR_OUT_OF_MEMORY"),
    ] {
        // The first call in that pass.
        let rules = (1..).map(|nth| format!("{call}:{nth}:{code}"));
        let mut runs = rules.map(|rule| (under(name, &rule, body), rule));
        let (ran, rule) = runs
            .find(|(ran, _)| fired(ran).first().is_none_or(|part| part == "a pass"))
            .unwrap();
        let want = answers(&ran);
        let has_failed = want.iter().any(|line| line.contains(code));
        assert!(ran.passed && has_failed, "{rule}: {want:?}");
        let all = each(name, (&rule, "cuStreamSynchronize", "loop"), &want, body);
        let mut behind = all.iter().filter(|(part, _)| part == "a pass");
        assert!(behind.any(|(_, is_found)| *is_found), "{rule}: {all:?}");
    }
}
