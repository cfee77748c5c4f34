//! Sub-batches of several models that take turns: what is alive in one stands aside while the other runs.
//! Answers have the bits of those that each model gives when it is served alone.

use std::sync::Arc;

use lazybatch_engine::{Engine, ModelOptions, Options};
use lazybatch_graph::{Program, Tensor};
use lazybatch_kernels::conformance::{problems, requests};

use crate::process::runs_clean;
use crate::{device, options};

/// Programs with the inputs of requests.
type Asked = [(Arc<Program>, Vec<Vec<Tensor>>)];

/// Serves all requests of all models, in turns, a node to a segment; answers by model and request, and
/// how often a sub-batch ran before another that it found had ended.
fn serve(asked: &Asked, policy: &str, depth: u32) -> (Vec<Vec<Vec<u8>>>, u64) {
    let mut options = options();
    options.poison = true;
    let mut builder = Engine::builder()
        .device(device(options))
        .policy(policy)
        .depth(depth);
    let name = |m: usize| format!("m{m}");
    for (m, (program, _)) in asked.iter().enumerate() {
        builder = builder.model(&name(m), Arc::clone(program), ModelOptions::default());
    }
    let engine = builder.build().unwrap();
    let most = asked.iter().map(|(_, inputs)| inputs.len()).max().unwrap();
    let mut handles: Vec<Vec<_>> = asked.iter().map(|_| Vec::new()).collect();
    for i in 0..most {
        for (m, (_, inputs)) in asked.iter().enumerate() {
            if let Some(inputs) = inputs.get(i) {
                let handle = engine.try_submit(&name(m), inputs.clone(), Options::default());
                handles[m].push(handle.unwrap());
            }
        }
    }
    let bits = |outputs: Vec<Tensor>| -> Vec<u8> {
        let data = outputs.iter().flat_map(|t| t.data.as_slice().to_vec());
        data.collect()
    };
    let answers = handles.into_iter().map(|own| {
        let own = own.into_iter().map(|h| bits(h.wait().unwrap().outputs));
        own.collect()
    });
    let answers = answers.collect();
    let preemptions = engine.stats().counters.preemptions;
    engine.drain_blocking().unwrap();
    (answers, preemptions)
}

#[test]
fn models_that_take_turns_answer_as_alone() {
    runs_clean("aside::models_that_take_turns_answer_as_alone", || {
        let all: Vec<_> = problems();
        let one = |name: &str| {
            let problem = all.iter().find(|p| p.name == name).unwrap();
            let program = Arc::new((problem.build)());
            let inputs = requests(problem, &program).into_iter().map(|r| r.inputs);
            (Arc::clone(&program), inputs.collect::<Vec<_>>())
        };
        let asked = ["model-decoder", "model-transformer", "model-recurrent"].map(one);
        let alone: Vec<_> = asked
            .iter()
            .map(|own| serve(std::slice::from_ref(own), "greedy", 1).0.remove(0))
            .collect();
        let mut preempted = 0;
        for (policy, depth) in [("lazy", 1), ("cellular", 1)] {
            let (answers, preemptions) = serve(&asked, policy, depth);
            assert!(answers == alone, "{policy}, depth {depth}");
            preempted += preemptions;
        }
        assert!(preempted > 0, "nobody stood aside");
    });
}
