//! Models of one server: what they share, and what their configurations ask for.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs;
use std::sync::atomic::Ordering::SeqCst;

use lazybatch_graph::{Bin, DType, Program, ProgramBuilder, Repeat};
use lazybatch_serve::Control;

use super::common::{Running, add, add_samples, call, is_sum, start, until};

const INFER: &str = "/v2/models/add/infer";

async fn explicit() -> Running {
    start(|o| o.control = Control::Explicit(Vec::new())).await
}

/// Loads `model` with that configuration.
async fn load(server: &Running, model: &str, config: &str) -> (u16, String) {
    let folder = server.models.path().join(model);
    fs::write(folder.join("config.pbtxt"), config).unwrap();
    let path = format!("/v2/repository/models/{model}/load");
    call(server.http(), "POST", &path, "").await
}

async fn end(mut server: Running) {
    server.end();
    server.ended().await;
}

fn lstm(params: &str) -> String {
    let zeros = vec!["0"; 16].join(",");
    format!(
        r#"{{"parameters":{{{params}}},"inputs":[{{"name":"x","datatype":"FP32","shape":[1,1,16],
        "data":[{zeros}]}}]}}"#
    )
}

#[tokio::test]
async fn priority_levels_span_models() {
    let server = start(|o| o.policy = "front".into()).await;
    let at = server.http();
    server.gate.shut();
    let first = tokio::spawn(async move { call(at, "POST", INFER, &add(1)).await });
    until(|| server.gate.holding() == 1).await;
    let of = |model: &str| server.state.repository.get(model, "").unwrap();
    let (adding, reading) = (of("add"), of("lstm"));
    let pending = |n: i64| adding.stats.pending.load(SeqCst) >= n;
    let second = tokio::spawn(async move { call(at, "POST", INFER, &add(2)).await });
    until(|| pending(2)).await;
    let path = "/v2/models/lstm/infer";
    let body = lstm(r#""priority":1"#);
    let urgent = tokio::spawn(async move { call(at, "POST", path, &body).await });
    until(|| reading.stats.pending.load(SeqCst) == 1).await;
    server.gate.open();
    for call in [urgent, first, second] {
        assert_eq!(call.await.unwrap().0, 200);
    }
    // Who came last and is urgent goes before the other one that waits.
    let order = server.gate.order().into_iter();
    let mut order: Vec<_> = order.map(|(model, _)| model).collect();
    order.dedup();
    let id = |m: &lazybatch_serve::model::Served| m.engine().unwrap().id();
    assert_eq!(order, [id(&adding), id(&reading), id(&adding)]);
    drop((adding, reading));
    end(server).await;
}

const LEVELS: &str = "max_batch_size: 4
dynamic_batching { priority_levels: 2 default_priority_level: 2
  default_queue_policy { max_queue_size: 2 }
  priority_queue_policy { key: 1 value { max_queue_size: 1 } } }
parameters { key: \"classes\" value { string_value: \"gold:priority=1; plain\" } }";

#[tokio::test]
async fn each_priority_level_refuses_beyond_its_own_queue() {
    let server = explicit().await;
    let at = server.http();
    let (status, text) = load(&server, "add", LEVELS).await;
    assert_eq!(status, 200, "{text}");
    let served = server.state.repository.get("add", "").unwrap();
    let body = |value: u8, priority: u8| {
        let params = format!(r#"{{"parameters":{{"priority":{priority}}},"#);
        add(value).replacen('{', &params, 1)
    };
    let of_class = |class: &str| {
        let params = format!(r#"{{"parameters":{{"sla_class":"{class}"}},"#);
        add(9).replacen('{', &params, 1)
    };
    server.gate.shut();
    let mut taken = Vec::new();
    // One runs; then one of level 1 waits, and two of level 2, which is also that of who states none.
    for (value, priority) in [(0, 1), (1, 1), (2, 2), (3, 0)] {
        let body = body(value, priority);
        taken.push(tokio::spawn(
            async move { call(at, "POST", INFER, &body).await },
        ));
        until(|| served.stats.pending.load(SeqCst) > i64::from(value)).await;
        if value == 0 {
            until(|| server.gate.holding() == 1).await;
        }
    }
    let told = [
        "the queue of 1 requests of priority level 1 is full",
        "the queue of 2 requests of priority level 2 is full",
    ];
    // The level of a class comes before the default one, and behind what the request states.
    for (body, told) in [
        (body(9, 1), told[0]),
        (body(9, 2), told[1]),
        (body(9, 0), told[1]),
        (of_class("gold"), told[0]),
        (
            of_class("gold").replacen("\"sla", "\"priority\":2,\"sla", 1),
            told[1],
        ),
        (of_class("plain"), told[1]),
    ] {
        let (status, text) = call(at, "POST", INFER, &body).await;
        assert!(status == 503 && text.contains(told), "{told}: {text}");
        assert!(text.contains("Exceeds maximum queue size"), "{text}");
    }
    server.gate.open();
    for (value, one) in taken.into_iter().enumerate() {
        let (status, text) = one.await.unwrap();
        assert!(status == 200 && is_sum(&text, value as u8), "{text}");
    }
    drop(served);
    end(server).await;
}

const DELAYS: &str = "max_batch_size: 4
dynamic_batching { priority_levels: 2 default_priority_level: 2
  priority_queue_policy { key: 1 value {
    timeout_action: DELAY default_timeout_microseconds: 1 } } }";

#[tokio::test]
async fn more_samples_than_ever_find_room_are_wrong_and_not_refused_for_now() {
    let server = explicit().await;
    let at = server.http();
    let own = "max_batch_size: 8
        parameters { key: \"max_queue\" value { string_value: \"4\" } }";
    let of_level =
        "max_batch_size: 8 dynamic_batching { priority_levels: 1 default_priority_level: 1
        priority_queue_policy { key: 1 value { max_queue_size: 4 } } }";
    for config in [own, of_level] {
        let (status, text) = load(&server, "lstm", config).await;
        assert_eq!(status, 200, "{text}");
        let body = |samples: usize| {
            let zeros = vec!["0"; 16 * samples].join(",");
            format!(
                r#"{{"inputs":[{{"name":"x","datatype":"FP32","shape":[{samples},1,16],
                "data":[{zeros}]}}]}}"#
            )
        };
        let path = "/v2/models/lstm/infer";
        let (status, text) = call(at, "POST", path, &body(8)).await;
        let told = "expected samples for at most 4 places in the queue, got samples for 8";
        assert!(status == 400 && text.contains(told), "{status} {text}");
        let (status, text) = call(at, "POST", path, &body(4)).await;
        assert_eq!(status, 200, "{text}");
    }
    end(server).await;
}

#[tokio::test]
async fn who_is_delayed_is_not_refused_and_lets_others_pass() {
    let server = explicit().await;
    let at = server.http();
    let (status, text) = load(&server, "add", DELAYS).await;
    assert_eq!(status, 200, "{text}");
    let served = server.state.repository.get("add", "").unwrap();
    server.gate.shut();
    let mut taken = Vec::new();
    // One of three samples runs; one of one sample comes, whose time is over at once, then one of two.
    for (number, (samples, priority)) in [(3, 2), (1, 1), (2, 2)].into_iter().enumerate() {
        let params = format!(r#"{{"parameters":{{"explain":true,"priority":{priority}}},"#);
        let body = add_samples(7, samples).replacen('{', &params, 1);
        taken.push(tokio::spawn(
            async move { call(at, "POST", INFER, &body).await },
        ));
        until(|| served.stats.pending.load(SeqCst) > number as i64).await;
        if number == 0 {
            until(|| server.gate.holding() == 1).await;
        }
    }
    // Its time is a microsecond of the engine's clock.
    let came = served.engine().unwrap().now();
    until(|| served.engine().unwrap().now().since(came).0 > 1000).await;
    server.gate.open();
    for (number, one) in taken.into_iter().enumerate() {
        let (status, text) = one.await.unwrap();
        assert!(status == 200, "{text}");
        let told = text.contains("it was delayed, for its time to wait had passed");
        assert_eq!(told, number == 1, "{text}");
    }
    let order = server.gate.order().into_iter();
    let mut order: Vec<_> = order.map(|(_, samples)| samples).collect();
    order.dedup();
    assert_eq!(order, [3, 2, 1]);
    assert_eq!(served.engine().unwrap().stats().counters.delayed, 1);
    drop(served);
    end(server).await;
}

#[tokio::test]
async fn a_policy_is_the_servers_or_that_of_an_engine_of_its_own() {
    let server = explicit().await;
    let lazy = "parameters { key: \"policy\" value { string_value: \"lazy\" } }\n";
    let (status, text) = load(&server, "add", lazy).await;
    assert!(status == 400 && text.contains("share one engine"), "{text}");
    let own = format!("{lazy}parameters {{ key: \"engine\" value {{ string_value: \"own\" }} }}");
    let (status, text) = load(&server, "add", &own).await;
    assert_eq!(status, 200, "{text}");
    let (status, text) = call(server.http(), "POST", INFER, &add(3)).await;
    assert!(status == 200 && is_sum(&text, 3), "{text}");
    end(server).await;
}

const BATCHES: &str = "max_batch_size: 4
dynamic_batching { preferred_batch_size: 3 max_queue_delay_microseconds: 3600000000 }
parameters { key: \"engine\" value { string_value: \"own\" } }
parameters { key: \"policy\" value { string_value: \"triton\" } }";

#[tokio::test]
async fn the_policy_triton_batches_as_the_configuration_says() {
    let server = explicit().await;
    let at = server.http();
    let (status, text) = load(&server, "add", BATCHES).await;
    assert_eq!(status, 200, "{text}");
    let served = server.state.repository.get("add", "").unwrap();
    let mut taken = Vec::new();
    for value in 0..3 {
        taken.push(tokio::spawn(async move {
            call(at, "POST", INFER, &add(value)).await
        }));
        // The third may be answered before anyone looks.
        if value < 2 {
            until(|| served.stats.pending.load(SeqCst) > i64::from(value)).await;
        }
    }
    for (value, one) in taken.into_iter().enumerate() {
        let (status, text) = one.await.unwrap();
        assert!(status == 200 && is_sum(&text, value as u8), "{text}");
    }
    // The first two waited for the third, not for their hour.
    let order = server.gate.order().into_iter();
    assert!(order.map(|(_, samples)| samples).all(|n| n == 3));
    drop(served);
    end(server).await;
}

const WARM: &str = "max_batch_size: 4
model_warmup {
  name: \"small\" batch_size: 2 count: 3
  inputs { key: \"INPUT0\" value { data_type: TYPE_FP32 dims: 16 random_data: true } }
  inputs { key: \"INPUT1\" value { data_type: TYPE_FP32 dims: 16 zero_data: true } }
}";

#[tokio::test]
async fn a_model_is_warmed_up_before_it_is_ready() {
    let server = explicit().await;
    let (status, text) = load(&server, "add", WARM).await;
    assert_eq!(status, 200, "{text}");
    let served = server.state.repository.get("add", "").unwrap();
    // One request for each time; figures are told a moment behind answers.
    until(|| served.engine().unwrap().stats().counters.finished == 3).await;
    assert_eq!(served.stats.success.count(), 0, "no client's");
    drop(served);
    end(server).await;
}

#[tokio::test]
async fn a_sample_that_fails_refuses_the_load_and_is_named() {
    let server = explicit().await;
    assert_eq!(load(&server, "add", WARM).await.0, 200);
    for (config, told) in [
        (WARM.replacen("dims: 16", "dims: 3", 1), "input 'INPUT0'"),
        (
            WARM.replace("batch_size: 2", "batch_size: 5"),
            "batch_size: expected at most 4, got 5",
        ),
        (
            WARM.replace("batch_size: 2", ""),
            "batch_size: expected 1 or more",
        ),
        (
            WARM.replace("INPUT1", "INPUT9"),
            "unexpected inference input 'INPUT9'",
        ),
        (
            WARM.replace("zero_data: true", "input_data_file: \"ones\""),
            "a file with the input",
        ),
        (
            WARM.replace("zero_data: true", "input_data_file: \"../x\""),
            "expected a name",
        ),
        (
            WARM.replace("zero_data: true", ""),
            "zero_data: true, random_data: true or",
        ),
    ] {
        let (status, text) = load(&server, "add", &config).await;
        assert_eq!(status, 400, "{text}");
        assert!(text.contains("model_warmup sample 'small'"), "{text}");
        assert!(text.contains(told), "{told}: {text}");
    }
    // What was there before is still served.
    let (status, text) = call(server.http(), "POST", INFER, &add(3)).await;
    assert!(status == 200 && is_sum(&text, 3), "{text}");
    let folder = server.models.path().join("add/warmup");
    fs::create_dir(&folder).unwrap();
    let config = WARM.replace("zero_data: true", "input_data_file: \"ones\"");
    fs::write(folder.join("ones"), [0; 63]).unwrap();
    let (status, text) = load(&server, "add", &config).await;
    assert!(
        status == 400 && text.contains("expected 64 bytes, got 63"),
        "{text}"
    );
    fs::write(folder.join("ones"), [0; 64]).unwrap();
    assert_eq!(load(&server, "add", &config).await.0, 200);
    end(server).await;
}

const CACHED: &str = "max_batch_size: 4 response_cache { enable: true }";

#[tokio::test]
async fn inputs_that_were_seen_before_are_answered_from_the_cache() {
    let server = explicit().await;
    assert_eq!(load(&server, "add", CACHED).await.0, 200);
    let at = server.http();
    for value in [1, 2, 1, 1] {
        let (status, text) = call(at, "POST", INFER, &add(value)).await;
        assert!(status == 200 && is_sum(&text, value), "{text}");
    }
    let served = server.state.repository.get("add", "").unwrap();
    let counts = || {
        let stats = &served.stats;
        let cache = (stats.cache_hit.count(), stats.cache_miss.count());
        (cache, stats.success.count(), stats.inferences.load(SeqCst))
    };
    assert_eq!(counts(), ((2, 2), 4, 2));
    until(|| served.engine().unwrap().stats().counters.finished == 2).await;
    // What is asked about the outputs is no part of what is kept.
    let one = add(2).replacen('{', r#"{"outputs":[{"name":"OUTPUT1"}],"#, 1);
    let (status, text) = call(at, "POST", INFER, &one).await;
    assert!(status == 200 && !text.contains("OUTPUT0"), "{text}");
    assert!(text.contains(r#""data":[1.0,"#), "{text}");
    assert_eq!(counts(), ((3, 2), 5, 2));
    let (_, stats) = call(at, "GET", "/v2/models/add/stats", "").await;
    assert!(stats.contains(r#""cache_hit":{"count":3,"#), "{stats}");
    let metrics = call(server.at.metrics.unwrap(), "GET", "/metrics", "")
        .await
        .1;
    let hits = r#"nv_cache_num_hits_per_model{model="add",version="1"} 3"#;
    assert!(metrics.contains(hits), "{metrics}");
    // A class that there is not is refused whether the answer is there or not, and not remembered.
    let mut told = Vec::new();
    for value in [1, 7] {
        let other = add(value).replacen('{', r#"{"parameters":{"sla_class":"gold"},"#, 1);
        let (status, text) = call(at, "POST", INFER, &other).await;
        assert!(status == 400 && text.contains("unknown class"), "{text}");
        told.push(text.split_once("\r\n\r\n").unwrap().1.to_owned());
    }
    assert_eq!(told[0], told[1]);
    assert_eq!(counts(), ((3, 2), 5, 2));
    let classes: Vec<_> = served.stats.latencies().into_keys().collect();
    assert_eq!(classes, ["default"]);
    assert!(served.stats.outcomes().keys().all(|(c, _)| c == "default"));
    drop(served);
    // Another load of it may answer otherwise.
    assert_eq!(load(&server, "add", CACHED).await.0, 200);
    assert!(is_sum(&call(at, "POST", INFER, &add(1)).await.1, 1));
    let served = server.state.repository.get("add", "").unwrap();
    assert_eq!(served.stats.cache_hit.count(), 0);
    drop(served);
    end(server).await;
}

#[tokio::test]
async fn answers_that_depend_on_more_than_inputs_are_not_kept() {
    let server = explicit().await;
    for (more, told) in [
        ("sequence_batching {}", "sequence_batching"),
        ("model_transaction_policy { decoupled: true }", "decoupled"),
    ] {
        let (status, text) = load(&server, "add", &format!("{CACHED} {more}")).await;
        assert_eq!(status, 400, "{text}");
        assert!(
            text.contains("response_cache: expected a model without it"),
            "{text}"
        );
        assert!(text.contains(told), "{text}");
    }
    end(server).await;
}

/// `y = S + E + R + h`, `c = C`; the state `h` grows by `x`.
fn controlled() -> Program {
    let mut b = ProgramBuilder::new("controlled");
    let names = ["x", "S", "E", "R", "h"];
    let inputs = names.map(|name| b.input(name, DType::F32, &[1]));
    let id = b.input("C", DType::I32, &[1]);
    let y_out = b.output("y", DType::F32, &[1]);
    let c_out = b.output("c", DType::I32, &[1]);
    let h_out = b.output("h_next", DType::F32, &[1]);
    b.carry(h_out, inputs[4]);
    b.begin_block("net", Repeat::Once);
    let [x, s, e, r, h] = inputs.map(|i| {
        let name = format!("read{}", i.index());
        b.read_input(&name, i)
    });
    let c = b.read_input("C.read", id);
    let se = b.binary("S+E", Bin::Add, s, e);
    let ser = b.binary("S+E+R", Bin::Add, se, r);
    let y = b.binary("y.add", Bin::Add, ser, h);
    let h = b.binary("h.add", Bin::Add, h, x);
    b.emit("y.emit", y_out, y);
    b.emit("c.emit", c_out, c);
    b.emit("h.emit", h_out, h);
    b.finish().unwrap()
}

const CONTROLLED: &str = "max_batch_size: 1
sequence_batching {
  direct { max_queue_delay_microseconds: 5 }
  control_input { name: \"S\" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [0, 2] } }
  control_input { name: \"E\" control { kind: CONTROL_SEQUENCE_END int32_false_true: [0, 10] } }
  control_input { name: \"R\" control { kind: CONTROL_SEQUENCE_READY
                                      bool_false_true: [false, true] } }
  control_input { name: \"C\" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }
  state { input_name: \"h\" output_name: \"h_next\" data_type: TYPE_FP32 dims: 1
          initial_state { name: \"i\" data_type: TYPE_FP32 dims: 1 data_file: \"h\" } }
}";

#[tokio::test]
async fn controls_tell_where_a_request_stands_and_sequences_start_with_their_state() {
    let server = explicit().await;
    let at = server.http();
    let folder = server.models.path().join("controlled");
    fs::create_dir_all(folder.join("initial_state")).unwrap();
    lazybatch_graph::folder::save(&controlled(), &folder.join("1")).unwrap();
    let (status, text) = load(&server, "controlled", CONTROLLED).await;
    assert!(
        status == 400 && text.contains("a file with the state"),
        "{text}"
    );
    fs::write(folder.join("initial_state/h"), 1000f32.to_le_bytes()).unwrap();
    let (status, text) = load(&server, "controlled", CONTROLLED).await;
    assert_eq!(status, 200, "{text}");
    let (_, text) = call(at, "GET", "/v2/models/controlled", "").await;
    assert!(
        text.contains(r#""inputs":[{"datatype":"FP32","name":"x","#),
        "{text}"
    );
    let infer = |params: &str, name: &str| {
        let body = format!(
            r#"{{"parameters":{{{params}}},"inputs":[{{"name":"{name}","datatype":"FP32",
            "shape":[1,1],"data":[1]}}]}}"#
        );
        async move { call(at, "POST", "/v2/models/controlled/infer", &body).await }
    };
    for (params, y) in [
        (r#""sequence_id":7,"sequence_start":true"#, "1003.0"),
        (r#""sequence_id":7"#, "1002.0"),
        (r#""sequence_id":7,"sequence_end":true"#, "1013.0"),
        (
            r#""sequence_id":7,"sequence_start":true,"sequence_end":true"#,
            "1013.0",
        ),
    ] {
        let (status, text) = infer(params, "x").await;
        assert_eq!(status, 200, "{text}");
        assert!(
            text.contains(&format!(r#""data":[{y}]"#)),
            "{params}: {text}"
        );
        assert!(text.contains(r#""data":[7]"#), "{params}: {text}");
    }
    let (status, text) = infer(r#""sequence_id":1,"sequence_start":true"#, "S").await;
    assert!(
        status == 400 && text.contains("unexpected inference input 'S'"),
        "{text}"
    );
    let (status, text) = infer(r#""sequence_id":5000000000,"sequence_start":true"#, "x").await;
    assert!(
        status == 400 && text.contains("a number up to 2147483647"),
        "{text}"
    );
    for (from, to, told) in [
        (
            "name: \"S\"",
            "name: \"Z\"",
            "expected one of the inputs x, S",
        ),
        (
            "name: \"E\"",
            "name: \"C\"",
            "expected a name and a kind of its own",
        ),
        (
            "dims: 1 data_file",
            "dims: 2 data_file",
            "initial_state i: dims",
        ),
    ] {
        let config = CONTROLLED.replacen(from, to, 1);
        let (status, text) = load(&server, "controlled", &config).await;
        assert_eq!(status, 400, "{text}");
        assert!(text.contains(told), "{told}: {text}");
    }
    end(server).await;
}

#[tokio::test]
async fn segments_are_as_the_configuration_cuts_them() {
    let server = explicit().await;
    let launches_of = async |segments: &str| {
        let config = format!(
            "parameters {{ key: \"segments\" value {{ string_value: \"{segments}\" }} }}
             parameters {{ key: \"residency\" value {{ string_value: \"device\" }} }}"
        );
        let (status, text) = load(&server, "lstm", &config).await;
        assert_eq!(status, 200, "{text}");
        let before = server.gate.order().len();
        let (status, text) = call(server.http(), "POST", "/v2/models/lstm/infer", &lstm("")).await;
        assert_eq!(status, 200, "{text}");
        let answer = text.split_once("\r\n\r\n").unwrap().1.to_owned();
        (server.gate.order().len() - before, answer)
    };
    let (each, alone) = launches_of("nodes=1").await;
    let (whole, together) = launches_of("nodes=100").await;
    // A launch is a node, or else a block.
    let served = server.state.repository.get("lstm", "").unwrap();
    assert_eq!(whole, served.program().unwrap().blocks.len());
    assert!(each > whole, "{each} {whole}");
    assert_eq!(alone, together, "the same bits");
    drop(served);
    for (params, told) in [
        (
            "segments\" value { string_value: \"4\" } }",
            "parameter segments: expected us=U",
        ),
        (
            "residency\" value { string_value: \"host\" } }",
            "parameter residency: expected device",
        ),
        (
            "segments\" value { string_value: \"us=5\" } }
             parameters { key: \"profile\" value { string_value: \"p.json\" } }",
            "parameter segments: expected none",
        ),
    ] {
        let config = format!("parameters {{ key: \"{params}");
        let (status, text) = load(&server, "lstm", &config).await;
        assert!(status == 400 && text.contains(told), "{text}");
    }
    end(server).await;
}
