//! Tokens drawn as a request's `temperature`, `top_k` and `seed` say.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;

use lazybatch_graph::{DType, Greedy, Program, ProgramBuilder, Repeat, folder};

use super::common::{Running, call, start};

/// A decoder that says twelve of seven letters, each about as likely as the others, as it is asked to.
fn decoder() -> Program {
    let mut b = ProgramBuilder::new("speaker").with_seed(3);
    let x = b.input("x", DType::F32, &[2]);
    let h = b.vector_state("h", DType::F32, &[2], 0.0);
    // No score is that of the token that stops.
    let tokens = Greedy::sampled(&mut b, 1, 9);
    b.begin_block("start", Repeat::Once);
    let v = b.read_input("read", x);
    b.vec_write("h0", h, v);
    b.begin_block("loop", Repeat::UntilStop { max: 12 });
    let token = tokens.read(&mut b);
    let v = b.embed("table", token, 7, 4);
    let v = b.gru("gru", v, 2, h);
    let v = b.dense("scores", v, 7, None);
    tokens.choose(&mut b, v);
    b.finish().unwrap()
}

fn write(models: &Path, name: &str, program: &Program, config: &str) {
    let model = models.join(name);
    folder::save(program, &model.join("1")).unwrap();
    std::fs::write(model.join("config.pbtxt"), config).unwrap();
}

async fn server() -> Running {
    start(|o| {
        o.policy = "lazy".into();
        let many = "max_batch_size: 8";
        write(&o.models, "speaker", &decoder(), many);
        let kept = format!("{many} response_cache {{ enable: true }}");
        write(&o.models, "kept", &decoder(), &kept);
        let likeliest = super::common::speaker(1, 4);
        write(&o.models, "likeliest", &likeliest, many);
        let text = |way: &str, name: &str| {
            format!("{way} {{ name: \"{name}\" data_type: TYPE_STRING dims: 1 }}")
        };
        let map =
            |way: &str, name: &str| format!("{way}_map {{ key: \"{name}\" value: \"{name}\" }}");
        let chat = format!(
            "platform: \"ensemble\" {many} {} {} ensemble_scheduling {{
            step {{ model_name: \"speaker\" {} {} }} }}",
            text("input", "text_input"),
            text("output", "text_output"),
            map("input", "text_input"),
            map("output", "text_output"),
        );
        std::fs::create_dir_all(o.models.join("chat/1")).unwrap();
        std::fs::write(o.models.join("chat/config.pbtxt"), chat).unwrap();
    })
    .await
}

/// What a model says to `word` with these parameters, by `generate` or `generate_stream`.
pub async fn said(at: SocketAddr, model: &str, how: &str, word: &str, params: &str) -> String {
    let body = format!(r#"{{"text_input":"{word}","parameters":{{{params}}}}}"#);
    let (status, text) = call(at, "POST", &format!("/v2/models/{model}/{how}"), &body).await;
    assert_eq!(status, 200, "{text}");
    let said = text.split("\"text_output\":\"").skip(1);
    said.map(|rest| rest.split_once('"').unwrap().0).collect()
}

pub async fn end(mut server: Running) {
    server.end();
    server.ended().await;
}

fn seeded(seed: u64) -> String {
    format!(r#""temperature":1.5,"top_k":5,"seed":{seed}"#)
}

#[tokio::test]
async fn a_seed_gives_its_text_alone_among_others_as_a_stream_and_in_an_ensemble() {
    let server = server().await;
    let at = server.http();
    let mut alone = Vec::new();
    for seed in 0..8 {
        let text = said(at, "speaker", "generate", "four", &seeded(seed)).await;
        assert_eq!(text.len(), 12, "{text}");
        alone.push(text);
    }
    let different: BTreeSet<_> = alone.iter().collect();
    assert_eq!(different.len(), 8, "{alone:?}");
    // All at once; half of them are streams.
    let calls = (0..16).map(|i| async move {
        let how = ["generate", "generate_stream"][usize::from(i % 16 < 8)];
        said(at, "speaker", how, "four", &seeded(i % 8)).await
    });
    let together = futures_util::future::join_all(calls).await;
    for (i, text) in together.iter().enumerate() {
        assert_eq!(*text, alone[i % 8], "request {i}");
    }
    assert_eq!(
        said(at, "chat", "generate", "four", &seeded(3)).await,
        alone[3]
    );
    // Tokens in, tokens out: each sample as it would be alone.
    let infer = |samples: &str| {
        format!(
            r#"{{"inputs":[{{"name":"x","datatype":"FP32","shape":{samples}}}],
            "outputs":[{{"name":"tokens"}}],"parameters":{{{}}}}}"#,
            seeded(3)
        )
    };
    let (status, text) = call(
        at,
        "POST",
        "/v2/models/speaker/infer",
        &infer(r#"[3,2],"data":[4,1,7,1,4,1]"#),
    )
    .await;
    assert_eq!(status, 200, "{text}");
    let (_, data) = text.split_once("\"data\":[").unwrap();
    let ids = data.split_once(']').unwrap().0.split(',');
    let letters: String = ids
        .map(|id| char::from(b'a' + id.parse::<u8>().unwrap()))
        .collect();
    let seventh = said(at, "speaker", "generate", "seventh", &seeded(3)).await;
    assert_eq!(letters, [&*alone[3], &*seventh, &*alone[3]].concat());
    end(server).await;
}

#[tokio::test]
async fn the_likeliest_tokens_are_those_without_parameters() {
    let server = server().await;
    let at = server.http();
    let plain = said(at, "speaker", "generate", "four", "").await;
    for params in [
        r#""temperature":0"#,
        r#""temperature":0.0,"top_k":5,"seed":7"#,
        r#""temperature":2,"top_k":1"#,
    ] {
        assert_eq!(said(at, "speaker", "generate", "four", params).await, plain);
    }
    // Without a seed every request has one of its own.
    let mut drawn = BTreeSet::new();
    for _ in 0..4 {
        drawn.insert(said(at, "speaker", "generate", "four", r#""temperature":1"#).await);
    }
    assert!(drawn.len() > 1, "{drawn:?}");
    end(server).await;
}

#[tokio::test]
async fn answers_are_kept_by_how_they_were_chosen() {
    let server = server().await;
    let at = server.http();
    for _ in 0..2 {
        for seed in [1, 2] {
            let kept = said(at, "kept", "generate", "four", &seeded(seed)).await;
            let own = said(at, "speaker", "generate", "four", &seeded(seed)).await;
            assert_eq!(kept, own);
        }
    }
    let mut drawn = BTreeSet::new();
    for _ in 0..4 {
        drawn.insert(said(at, "kept", "generate", "four", r#""temperature":1"#).await);
    }
    assert!(drawn.len() > 1, "{drawn:?}");
    end(server).await;
}

#[tokio::test]
async fn what_cannot_be_done_is_refused() {
    let server = server().await;
    let at = server.http();
    let refused = async |model: &str, params: &str| {
        let body = format!(r#"{{"text_input":"four","parameters":{{{params}}}}}"#);
        let path = format!("/v2/models/{model}/generate");
        let (status, text) = call(at, "POST", &path, &body).await;
        assert_eq!(status, 400, "{text}");
        text
    };
    for (params, told) in [
        (
            r#""temperature":-1"#,
            "'temperature': expected a number of 0 to 100",
        ),
        (
            r#""temperature":"hot""#,
            "'temperature': expected a number of 0 to 100",
        ),
        (r#""top_k":1025"#, "'top_k': expected 0 to 1024"),
        (
            r#""seed":-1"#,
            "'seed': expected a whole number of 0 or more",
        ),
    ] {
        let text = refused("speaker", params).await;
        assert!(text.contains(told), "{text}");
    }
    let text = refused("likeliest", r#""top_k":3"#).await;
    assert!(text.contains("model 'likeliest': expected 0"), "{text}");
    let body = r#"{"text_input":"four","temperature":0}"#;
    let (status, _) = call(at, "POST", "/v2/models/likeliest/generate", body).await;
    assert_eq!(status, 200);
    end(server).await;
}
