//! What the face of an engine cannot be made to do from outside.

use lazybatch_graph::{DType, Program, ProgramBuilder, Repeat, Tensor};
use lazybatch_kernels::cpu::{CpuDevice, CpuOptions};

use super::*;
use crate::core::Event;
use crate::driver::Observer;

fn identity() -> Program {
    let mut b = ProgramBuilder::new("identity");
    let x = b.input("x", DType::F32, &[1]);
    let y = b.output("y", DType::F32, &[1]);
    b.begin_block("net", Repeat::Once);
    let v = b.read_input("read", x);
    b.emit("emit", y, v);
    b.finish().expect("a sound program")
}

/// Times of events, in order.
#[derive(Clone, Default)]
struct Times(Arc<Mutex<Vec<Time>>>);

impl Observer for Times {
    fn on_event(&mut self, now: Time, _event: &Event) {
        self.0.lock().expect("no holder panics").push(now);
    }
}

#[test]
fn a_clock_that_steps_back_stands_still_for_the_engine() {
    for policy in ["adaptive", "graph:0.1", "edf"] {
        let times = Times::default();
        let engine = Engine::builder()
            .device(CpuDevice::new(CpuOptions {
                threads: 1,
                ..CpuOptions::default()
            }))
            .model("identity", identity(), ModelOptions::default())
            .observer(times.clone(), false)
            .policy(policy)
            .build()
            .expect("an engine");
        let mut ends = Vec::new();
        for i in 0..20 {
            if i % 5 == 4 {
                // It begins anew, behind all that has been.
                let seat = engine.shared.seat.clone();
                seat.with(|driver| driver.clock = Clock::start());
            }
            let x = Tensor::from_f32(&[1, 1], &[i as f32]);
            let handle = engine.try_submit("identity", vec![x], Options::default());
            let answer = handle.and_then(Handle::wait).expect("an answer");
            assert_eq!(answer.outputs[0].to_f32(), [i as f32]);
            assert!(answer.arrival <= answer.finish);
            ends.push(answer.finish);
        }
        assert!(ends.is_sorted(), "{ends:?}");
        assert_eq!(engine.drain_blocking(), Ok(()));
        let times = times.0.lock().expect("no holder panics");
        assert!(times.is_sorted(), "{times:?}");
    }
}
