//! An engine inside a front end: the shape of a server, without the network.
//!
//! Run with `cargo run --release -p lazybatch-engine --example embed`.
//!
//! It builds a small recurrent model, starts an engine on the embedded CPU device, which measures its
//! latencies with some examples, sends requests from several asynchronous tasks, streams the steps of
//! one, cancels another, sees one refused for its input, and drains.

use std::sync::Arc;
use std::time::Duration;

use lazybatch_engine::{Engine, ModelOptions, Options, RequestError, Step};
use lazybatch_graph::{At, DType, Error, Program, ProgramBuilder, Repeat, Tensor};
use lazybatch_kernels::cpu::{CpuDevice, CpuOptions};

/// Reads letters with an LSTM, whose state starts a second one that writes ids until it says
/// stop, at most 20.
fn model() -> Result<Program, Error> {
    let (vocab, hidden) = (30, 64);
    let mut b = ProgramBuilder::new("tiny");
    let letters = b.sequence_ids("letters", 32, vocab);
    let ids = b.output_sequence("ids", DType::I32, &[]);
    let token = b.vector_state("token", DType::I32, &[], 1.0);

    b.begin_block("reader", Repeat::PerInputStep { stride: 1 });
    let x = b.read_input_at("letter", letters, At::Step);
    let x = b.embed("embed", x, vocab, hidden);
    let (memory, w) = (
        b.lstm_state("memory", hidden),
        b.lstm_weights("read", hidden, hidden),
    );
    let _ = b.lstm_cell("reader.lstm", x, w, None, memory.h, memory.c);

    b.begin_block("writer", Repeat::UntilStop { max: 20 });
    let x = b.vec_read("last", token);
    let x = b.embed("embed_out", x, vocab, hidden);
    let w = b.lstm_weights("write", hidden, hidden);
    let h = b.lstm_cell("writer.lstm", x, w, None, memory.h, memory.c);
    let logits = b.dense("logits", h, vocab, None);
    let next = b.arg_max("next", logits);
    b.vec_write("remember", token, next);
    b.emit("emit", ids, next);
    b.stop("stop", next, 2);
    b.finish()
}

fn word(text: &str) -> Vec<Tensor> {
    let ids: Vec<i32> = text.bytes().map(|b| i32::from(b - b'a') + 3).collect();
    vec![Tensor::from_i32(&[ids.len()], &ids)]
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let options = ModelOptions {
        examples: ["of", "words", "to", "measure", "by"].map(word).to_vec(),
        ..ModelOptions::default()
    };
    let engine = Arc::new(
        Engine::builder()
            .device(CpuDevice::new(CpuOptions::default()))
            .model("tiny", model()?, options)
            .class("gold:sla=50,priority=1".parse()?)
            .max_queue(64)
            .build()?,
    );

    // Many clients at once: each awaits its own answer, the engine batches them node by node.
    let mut clients = Vec::new();
    for text in ["lazy", "batching", "merges", "at", "every", "node"] {
        let engine = engine.clone();
        clients.push(tokio::spawn(async move {
            let options = Options {
                class: Some("gold".into()),
                ..Options::default()
            };
            let answer = engine.submit("tiny", word(text), options).await;
            (text, answer)
        }));
    }
    for client in clients {
        let (text, answer) = client.await?;
        let answer = answer?;
        let latency = answer.finish.since(answer.arrival);
        println!(
            "{text}: {:?} {} in {latency}",
            answer.outputs[0].to_i32(),
            answer.outcome
        );
    }

    // Decoder steps as they come.
    let mut steps = engine
        .submit_stream("tiny", word("stream"), Options::default())
        .await?;
    while let Some(step) = steps.next().await {
        match step? {
            Step::Rows { rows, .. } => println!("step {:?}", rows.to_i32()),
            Step::End(answer) => println!("end after {} ids", answer.outputs[0].num_elems()),
        }
    }

    // A client that goes away cancels its request.
    let impatient = engine.submit("tiny", word("gone"), Options::default());
    let _ = tokio::time::timeout(Duration::from_nanos(1), impatient).await;

    // Bad input is refused at the edge, with what was expected.
    let refused: Result<_, RequestError> = engine
        .submit(
            "tiny",
            vec![Tensor::from_f32(&[1], &[0.5])],
            Options::default(),
        )
        .await;
    if let Err(error) = refused {
        println!("refused: {error}");
    }

    let stats = engine.stats();
    println!(
        "{} merges, {} node launches",
        stats.counters.merges, stats.counters.launches
    );
    if let Ok(engine) = Arc::try_unwrap(engine) {
        engine.drain().await?;
    }
    Ok(())
}
