//! A launch that the device refuses while another is in flight ends behind that one.

#![allow(clippy::unwrap_used, reason = "a test says by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};

use lazybatch_engine::{Engine, ModelOptions, Options, RequestError};
use lazybatch_graph::{At, DType, Program, ProgramBuilder, Repeat, Tensor};
use lazybatch_kernels::cpu::{CpuDevice, CpuOptions};
use lazybatch_kernels::{Completion, Device, Error, OpenRequest, Plan, Wrapper};
use lazybatch_sla::{Launch, Outcome, RequestId, Time};

/// How often a launch is asked for before it is over, unless another is refused.
const LONG: u32 = 100_000;
/// How often from the refusal of another on.
const BEHIND: u32 = 8;
/// The cause of a refusal.
const WHY: &str = "a test wants it so";
const WIDTH: usize = 16;

/// What of the second request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refuses {
    Open,
    Issue,
}

/// The embedded device as one that runs beside the thread, and long.
struct Late {
    inner: CpuDevice,
    refuses: Refuses,
    /// Told of each launch that was issued.
    issued: Sender<()>,
    /// Whether a launch was in flight when another was refused.
    was_busy: Arc<AtomicBool>,
    num_opened: u32,
    num_asked: u32,
    in_flight: u32,
    /// How often it is asked before a launch is over.
    left: u32,
}

impl Late {
    fn refuse(&mut self) -> Error {
        self.was_busy.store(self.in_flight > 0, Ordering::SeqCst);
        self.left = BEHIND;
        Error::Launch {
            device: "late".into(),
            segment: "all of it".into(),
            why: WHY.into(),
        }
    }
}

impl Wrapper for Late {
    fn inner(&self) -> &dyn Device {
        &self.inner
    }

    fn inner_mut(&mut self) -> &mut dyn Device {
        &mut self.inner
    }

    fn is_asynchronous(&self) -> bool {
        true
    }

    fn works_in_place(&self) -> bool {
        false
    }

    fn max_depth(&self) -> u32 {
        u32::MAX
    }

    fn open(&mut self, request: &OpenRequest<'_>) -> Result<(), Error> {
        self.num_opened += 1;
        if self.refuses == Refuses::Open && self.num_opened == 2 {
            return Err(self.refuse());
        }
        self.inner.open(request)
    }

    fn enqueue(&mut self, now: Time, plan: Plan, launch: &Launch) -> Result<(), Error> {
        self.num_asked += 1;
        if self.refuses == Refuses::Issue && self.num_asked == 2 {
            return Err(self.refuse());
        }
        self.inner.enqueue(now, plan, launch)?;
        self.in_flight += 1;
        let _ = self.issued.send(());
        Ok(())
    }

    fn poll(&mut self, now: Time) -> Option<Completion> {
        self.left = self.left.saturating_sub(1);
        if self.left > 0 {
            return None;
        }
        let done = self.inner.poll(now)?;
        self.in_flight -= 1;
        Some(done)
    }

    fn next_completion(&self) -> Option<Time> {
        None
    }
}

fn program() -> Program {
    let mut b = ProgramBuilder::new("layers").with_seed(3);
    let x = b.input("x", DType::F32, &[WIDTH]);
    let y = b.output("y", DType::F32, &[WIDTH]);
    b.begin_block("all", Repeat::Once);
    let h = b.read_input("x", x);
    let h = b.dense("a", h, WIDTH, None);
    b.emit("emit", y, h);
    b.finish().unwrap()
}

/// One launch for each request.
fn whole(program: &Program) -> ModelOptions {
    let nodes = 0..program.blocks[0].nodes.len() as u32;
    ModelOptions {
        segments: Some(vec![vec![nodes]]),
        ..ModelOptions::default()
    }
}

#[test]
fn what_is_refused_ends_behind_what_runs() {
    for refuses in [Refuses::Open, Refuses::Issue] {
        let (issued, is_issued) = channel();
        let was_busy = Arc::new(AtomicBool::new(false));
        let inner = CpuDevice::new(CpuOptions {
            threads: 1,
            ..CpuOptions::default()
        });
        let late = Late {
            inner,
            refuses,
            issued,
            was_busy: was_busy.clone(),
            num_opened: 0,
            num_asked: 0,
            in_flight: 0,
            left: LONG,
        };
        let program = program();
        let options = whole(&program);
        let engine = Engine::builder()
            .device(late)
            .model("layers", program, options)
            .policy("serial")
            .depth(2)
            .build()
            .unwrap();
        let submit = || {
            let inputs = vec![Tensor::from_f32(&[1, WIDTH], &[0.5; WIDTH])];
            let handle = engine.try_submit("layers", inputs, Options::default());
            handle.unwrap()
        };
        let first = submit();
        is_issued.recv().unwrap();
        let second = submit();
        let first = first.wait().unwrap();
        match second.wait() {
            Err(RequestError::Failed(cause)) => assert!(cause.contains(WHY), "{cause}"),
            other => panic!("{refuses:?}: {other:?}"),
        }
        assert!(was_busy.load(Ordering::SeqCst), "{refuses:?}");
        let third = submit().wait().unwrap();
        assert_eq!(first.outputs[0].to_f32(), third.outputs[0].to_f32());
        let account = &engine.stats().accounts[0];
        assert_eq!((account.count(Outcome::Failed), account.total()), (1, 3));
    }
}

/// A device beside the thread that says that launches are over as far as it may, and refuses one that is
/// of the second request alone.
struct Stepwise {
    inner: CpuDevice,
    second: Option<RequestId>,
    num_opened: u32,
    /// Told of each launch that was issued.
    issued: Sender<()>,
    /// How many more may be said to be over.
    may_end: Arc<AtomicU32>,
    in_flight: u32,
    /// How many were in flight when one was refused.
    beside: Arc<AtomicU32>,
}

impl Wrapper for Stepwise {
    fn inner(&self) -> &dyn Device {
        &self.inner
    }

    fn inner_mut(&mut self) -> &mut dyn Device {
        &mut self.inner
    }

    fn is_asynchronous(&self) -> bool {
        true
    }

    fn works_in_place(&self) -> bool {
        false
    }

    fn max_depth(&self) -> u32 {
        u32::MAX
    }

    fn open(&mut self, request: &OpenRequest<'_>) -> Result<(), Error> {
        self.num_opened += 1;
        if self.num_opened == 2 {
            self.second = Some(request.request);
        }
        self.inner.open(request)
    }

    fn enqueue(&mut self, now: Time, plan: Plan, launch: &Launch) -> Result<(), Error> {
        let mut members = launch.members.iter().map(|m| m.request);
        if self.second.is_some() && members.all(|id| Some(id) == self.second) {
            self.beside.store(self.in_flight, Ordering::SeqCst);
            self.may_end.store(u32::MAX, Ordering::SeqCst);
            return Err(Error::Launch {
                device: "stepwise".into(),
                segment: "the first".into(),
                why: WHY.into(),
            });
        }
        self.inner.enqueue(now, plan, launch)?;
        self.in_flight += 1;
        let _ = self.issued.send(());
        Ok(())
    }

    fn poll(&mut self, now: Time) -> Option<Completion> {
        let left = self.may_end.load(Ordering::SeqCst);
        if left == 0 {
            return None;
        }
        let done = self.inner.poll(now)?;
        self.may_end.store(left - 1, Ordering::SeqCst);
        self.in_flight -= 1;
        Some(done)
    }

    fn next_completion(&self) -> Option<Time> {
        None
    }
}

/// Three segments for each of its steps.
fn reader() -> (Program, ModelOptions) {
    let mut b = ProgramBuilder::new("reader").with_seed(5);
    let letters = b.sequence_ids("letters", 16, 8);
    let y = b.output_sequence("y", DType::F32, &[WIDTH]);
    b.begin_block("all", Repeat::PerInputStep { stride: 1 });
    let x = b.read_input_at("letter", letters, At::Step);
    let x = b.embed("embed", x, 8, WIDTH);
    let memory = b.lstm_state("memory", WIDTH);
    let w = b.lstm_weights("read", WIDTH, WIDTH);
    let h = b.lstm_cell("lstm", x, w, None, memory.h, memory.c);
    let h = b.dense("a", h, WIDTH, None);
    b.emit("emit", y, h);
    let options = ModelOptions {
        segments: Some(vec![vec![0..2, 2..3, 3..5]]),
        ..ModelOptions::default()
    };
    (b.finish().unwrap(), options)
}

/// With two launches in flight, and with three of which one goes on.
#[test]
fn who_is_refused_takes_nobody_along_who_would_have_joined_it() {
    for depth in [2, 3] {
        let (issued, is_issued) = channel();
        let may_end = Arc::new(AtomicU32::new(0));
        let was_beside = Arc::new(AtomicU32::new(u32::MAX));
        let inner = CpuDevice::new(CpuOptions {
            threads: 1,
            ..CpuOptions::default()
        });
        let stepwise = Stepwise {
            inner,
            second: None,
            num_opened: 0,
            issued,
            may_end: may_end.clone(),
            in_flight: 0,
            beside: was_beside.clone(),
        };
        let (program, options) = reader();
        let engine = Engine::builder()
            .device(stepwise)
            .model("reader", program, options)
            .policy("lazy")
            .depth(depth)
            .build()
            .unwrap();
        let submit = || {
            let inputs = vec![Tensor::from_i32(&[4], &[5, 3, 1, 6])];
            let handle = engine.try_submit("reader", inputs, Options::default());
            handle.unwrap()
        };
        let first = submit();
        // The first segment of its second step is the last that is issued: at the next one stands it.
        may_end.store(4 - depth, Ordering::SeqCst);
        for _ in 0..4 {
            is_issued.recv().unwrap();
        }
        // It is there before two of those are over, and its own first segment takes it there.
        let second = submit();
        may_end.store(2, Ordering::SeqCst);
        let first = first.wait().unwrap();
        match second.wait() {
            Err(RequestError::Failed(cause)) => assert!(cause.contains(WHY), "{cause}"),
            other => panic!("{depth}: {other:?}"),
        }
        assert_eq!(was_beside.load(Ordering::SeqCst), depth - 2, "{depth}");
        let third = submit().wait().unwrap();
        assert_eq!(first.outputs[0].to_f32(), third.outputs[0].to_f32());
        let account = &engine.stats().accounts[0];
        assert_eq!((account.count(Outcome::Failed), account.total()), (1, 3));
    }
}
