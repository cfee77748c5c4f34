//! Requests that are held back from an engine that waits, until those beside them have come too.

use std::future::poll_fn;
use std::task::Poll;

use lazybatch_engine::Held;
use tokio::runtime::Handle;

/// Lets held requests go once everybody who is ready has had a turn: those who hand in requests then
/// have done so, and the engine takes them in together.
///
/// There may be more to read by then, which the runtime looks for before. A request that is alone does
/// not wait for that where one worker runs everything: at a low rate nothing comes of it, and all that
/// it runs and touches is cold. Of several workers another would be woken to take the turn.
pub async fn let_go(held: Held) {
    if is_only_worker() {
        turn().await;
        if held.is_alone() {
            return;
        }
    }
    tokio::task::yield_now().await;
}

fn is_only_worker() -> bool {
    Handle::try_current().is_ok_and(|runtime| runtime.metrics().num_workers() == 1)
}

/// Goes behind all that are ready, but before the runtime looks for others.
async fn turn() {
    let mut has_yielded = false;
    poll_fn(|context| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use lazybatch_engine::{Engine, Handle, ModelHandle, ModelOptions, Options};
    use lazybatch_graph::{DType, ProgramBuilder, Repeat, Tensor};
    use lazybatch_kernels::cpu::{CpuDevice, CpuOptions};

    use super::{Held, let_go, turn};

    fn submit(model: &ModelHandle) -> (Handle, Option<Held>) {
        let input = vec![Tensor::from_f32(&[1, 1], &[7.0])];
        model.try_submit_held(input, Options::default()).unwrap()
    }

    /// The first request that is held back, of those handed in one by one.
    fn first(model: &ModelHandle) -> (Handle, Held) {
        loop {
            match submit(model) {
                (handle, Some(held)) => return (handle, held),
                (handle, None) => drop(handle.wait().unwrap()),
            }
        }
    }

    /// Turns until it has let go.
    fn num_turns(held: Held) -> usize {
        let mut going = pin!(let_go(held));
        let mut context = Context::from_waker(Waker::noop());
        let turns = std::iter::from_fn(|| {
            let is_over = going.as_mut().poll(&mut context).is_ready();
            (!is_over).then_some(())
        });
        turns.count()
    }

    #[test]
    fn only_requests_that_are_not_alone_wait_for_what_there_is_to_read() {
        let mut b = ProgramBuilder::new("identity");
        let input = b.input("x", DType::F32, &[1]);
        let output = b.output("y", DType::F32, &[1]);
        b.begin_block("net", Repeat::Once);
        let x = b.read_input("read", input);
        b.emit("emit", output, x);
        let device = CpuDevice::new(CpuOptions {
            threads: 1,
            ..CpuOptions::default()
        });
        let engine = Engine::builder().device(device).build().unwrap();
        let program = b.finish().unwrap();
        let model = engine.load("m", program, ModelOptions::default()).unwrap();
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.build().unwrap();
        let within = runtime.enter();
        for _ in 0..20 {
            let (alone, held) = first(&model);
            assert_eq!(num_turns(held), 1);
            alone.wait().unwrap();
        }
        // The driver's thread may wake early by itself, and has then taken some in.
        let two = || {
            let (one, held) = first(&model);
            let (other, none) = submit(&model);
            drop(none);
            let turns = num_turns(held);
            one.wait().unwrap();
            other.wait().unwrap();
            turns
        };
        assert!((0..20).any(|_| two() == 2));
        drop(within);
        assert!((0..20).all(|_| two() == 1), "no turn among several workers");
    }

    #[tokio::test]
    async fn a_turn_is_behind_those_who_are_ready() {
        let order = RefCell::new(Vec::new());
        let first = async {
            turn().await;
            order.borrow_mut().push("first");
        };
        let second = async { order.borrow_mut().push("second") };
        tokio::join!(first, second);
        assert_eq!(*order.borrow(), ["second", "first"]);
    }
}
