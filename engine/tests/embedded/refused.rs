//! A launch that the device refuses while another is in flight ends behind that one.

#![allow(clippy::unwrap_used, reason = "a test says by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};

use lazybatch_engine::{Engine, ModelOptions, Options, RequestError};
use lazybatch_graph::{DType, Program, ProgramBuilder, Repeat, Tensor};
use lazybatch_kernels::cpu::{CpuDevice, CpuOptions};
use lazybatch_kernels::{Completion, Device, Error, OpenRequest, Plan, Wrapper};
use lazybatch_sla::{Launch, Outcome, Time};

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
