//! stories260K, a language model of small stories, writes what llama2.c writes, whatever it is
//! batched with.
//!
//! The files lie outside of the repository; without them the tests say so and pass.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use lazybatch_engine::core::checker::Checker;
use lazybatch_engine::core::{Core, CoreConfig};
use lazybatch_engine::driver::virtual_time::{self, Script, SimRequest, untimed};
use lazybatch_engine::driver::{Judge, Observer};
use lazybatch_engine::{Engine, ModelOptions, Options, policy};
use lazybatch_graph::{Manifest, SharedProgram, optimize};
use lazybatch_kernels::cpu::{CpuDevice, CpuOptions};
use lazybatch_sla::{ModelId, Nanos, RequestId, Time};
use lazybatch_workloads::experiment::inputs::Item;
use lazybatch_workloads::text::{Pieces, Text};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::Value;

use crate::shadow::{Shadow, spec};

const MANIFEST: &str = include_str!("../../models/stories260K/model.toml");

/// The folder of the model, if it is there.
fn folder() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folder = root.join("../shared/models/stories260K");
    if folder.join("stories260K.bin").is_file() {
        return Some(folder);
    }
    println!("not run: {} has no stories260K.bin", folder.display());
    None
}

/// The optimized program with `steps` decoder passes at the most, and its text.
fn model(folder: &Path, steps: usize) -> (SharedProgram, Text) {
    let text = MANIFEST.replace("max_steps = 256", &format!("max_steps = {steps}"));
    let manifest = Manifest::parse("model.toml", folder, &text).unwrap();
    let program = optimize(manifest.program().unwrap()).unwrap();
    let text = Text::of(&program, folder).unwrap().unwrap();
    (Arc::new(program), text)
}

fn golden(folder: &Path) -> (Vec<i32>, String) {
    let text = std::fs::read_to_string(folder.join("golden.json")).unwrap();
    let golden: Value = serde_json::from_str(&text).unwrap();
    let ids = golden["greedy_ids"].as_array().unwrap();
    let ids = ids.iter().map(|id| id.as_i64().unwrap() as i32).collect();
    (ids, golden["text"].as_str().unwrap().to_owned())
}

#[test]
fn the_golden_story_is_told() {
    let Some(folder) = folder() else { return };
    let (program, text) = model(&folder, 256);
    let (ids, story) = golden(&folder);
    assert_eq!(ids.len(), 257);
    let engine = Engine::builder()
        .device(CpuDevice::new(CpuOptions {
            max_open: 4,
            ..CpuOptions::default()
        }))
        .model("stories", program, ModelOptions::default())
        .policy("greedy")
        .build()
        .unwrap();
    // An empty text is the start token alone.
    let inputs = text.item("").unwrap().inputs;
    assert_eq!(inputs[0].to_i32(), ids[..1]);
    let handle = engine
        .try_submit("stories", inputs, Options::default())
        .unwrap();
    let outputs = handle.wait().unwrap().outputs;
    assert_eq!(outputs[0].to_i32(), ids[1..]);
    let told = text.answer(&outputs).unwrap().unwrap();
    assert_eq!(told, story.replace("<0x0A>", "\n"));
}

#[test]
fn text_goes_through_pieces_and_back() {
    let Some(folder) = folder() else { return };
    let pieces = Pieces::open(&folder.join("tok512.bin")).unwrap();
    assert_eq!(pieces.vocab(), 512);
    let (ids, story) = golden(&folder);
    let story = story.replace("<0x0A>", "\n");
    // The golden text starts with the space that goes before every text.
    assert_eq!(pieces.decode(&ids), story);
    assert_eq!(pieces.encode(&story[1..]), ids[1..]);
    for text in ["Tom and his dog", "héllo 東京\n\t…", "x"] {
        assert_eq!(pieces.decode(&pieces.encode(text)), format!(" {text}"));
    }
}

/// Decoder passes in the runs below.
const STEPS: usize = 24;

/// The ids after a prompt.
type Tokens = Vec<i32>;

/// Serves requests that arrive at these nanoseconds, in virtual time, every launch computed.
fn serve(
    program: &SharedProgram,
    name: &str,
    calls: &[(u64, &Item)],
    (max_batch, every): (u32, usize),
) -> Vec<Tokens> {
    let config = CoreConfig::new(vec![spec(program, max_batch, every)]);
    let mut judge = Judge::new(Checker::new(&config, false));
    let knows = policy::find(name).unwrap().needs_output_len;
    let request = |(i, (at, item)): (usize, &(u64, &Item))| {
        let (id, sla) = (i as u64, Some(Nanos::from_ms(10)));
        let mut r = SimRequest::new(id, ModelId(0), Time(*at), sla, item.input_len, 1);
        r.request.known_output_len = knows.then_some(STEPS as u32);
        r
    };
    let requests: Vec<SimRequest> = calls.iter().enumerate().map(request).collect();
    let items: Vec<&Item> = calls.iter().map(|call| call.1).collect();
    let mut device = Shadow::new(program.clone(), &config, &items);
    let mut core = Core::new(config, policy::build(name).unwrap());
    virtual_time::run(
        &mut core,
        &mut device,
        &requests,
        &Script::default(),
        &mut judge as &mut dyn Observer,
        &mut untimed,
    );
    judge.finish().unwrap_or_else(|v| panic!("{name}: {v}"));
    (0..calls.len() as u64)
        .map(|id| {
            let outputs = device.outputs.remove(&RequestId(id)).unwrap();
            outputs[0].as_ref().unwrap().to_i32()
        })
        .collect()
}

#[test]
fn any_schedule_tells_the_same_stories() {
    let Some(folder) = folder() else { return };
    let (program, text) = model(&folder, STEPS);
    let (ids, story) = golden(&folder);
    let mut prompts: Vec<String> = ["", "Tom", "One day, a cat", "Lily's mom said, \"", "\n\n"]
        .map(str::to_owned)
        .to_vec();
    // Starts of the golden story of several lengths: they must go on as it does.
    let cuts = [2, 17, 40, 75];
    for cut in cuts {
        let pieces = Pieces::open(&folder.join("tok512.bin")).unwrap();
        prompts.push(pieces.decode(&ids[..cut])[1..].to_owned());
    }
    assert!(story.contains("Lily"));
    let items: Vec<Item> = prompts.iter().map(|p| text.item(p).unwrap()).collect();
    let alone: Vec<Tokens> = items
        .iter()
        .map(|item| serve(&program, "serial", &[(0, item)], (1, 1)).remove(0))
        .collect();
    assert_eq!(alone[0], ids[1..=STEPS]);
    for (item, tokens) in items[5..].iter().zip(&alone[5..]) {
        let from = item.input_len as usize;
        assert_eq!(item.inputs[0].to_i32(), ids[..from]);
        assert_eq!(*tokens, ids[from..from + STEPS]);
    }
    let policies: Vec<&str> = policy::examples().collect();
    for seed in 0..40 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let name = policies[seed as usize % policies.len()];
        let shape = (
            [2, 5, 16][rng.random_range(0..3)],
            [1, 3, 10, 1000][rng.random_range(0..4)],
        );
        let spread = 10u64.pow(rng.random_range(4..8));
        let num = rng.random_range(2..10);
        let mut ats: Vec<u64> = (0..num).map(|_| rng.random_range(0..spread)).collect();
        ats.sort_unstable();
        let picks: Vec<usize> = ats
            .iter()
            .map(|_| rng.random_range(0..items.len()))
            .collect();
        let calls: Vec<(u64, &Item)> = ats
            .iter()
            .zip(&picks)
            .map(|(&at, &pick)| (at, &items[pick]))
            .collect();
        for (i, tokens) in serve(&program, name, &calls, shape).iter().enumerate() {
            assert_eq!(*tokens, alone[picks[i]], "seed {seed}, {name}: request {i}");
        }
    }
}
