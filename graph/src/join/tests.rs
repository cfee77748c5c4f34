//! Joined programs: their blocks and nodes, and wiring that is refused.

use std::collections::BTreeMap;

use super::{Step, join};
use crate::builder::{Greedy, ProgramBuilder};
use crate::dtype::DType;
use crate::error::Error;
use crate::op::{Act, At, Op};
use crate::program::{Program, Repeat, StateKind};

fn dense(name: &str, from: usize, to: usize) -> Program {
    let mut b = ProgramBuilder::new(name);
    let x = b.input("x", DType::F32, &[from]);
    let y = b.output("y", DType::F32, &[to]);
    b.begin_block("main", Repeat::Once);
    let v = b.read_input("x", x);
    let v = b.dense("fc", v, to, Some(Act::Relu));
    b.emit("y", y, v);
    b.finish().unwrap()
}

/// Rows to rows, in a loop of this stride.
fn recurrent(stride: u32, max_len: usize) -> Program {
    let mut b = ProgramBuilder::new("recurrent");
    let x = b.sequence("x", DType::F32, &[4], max_len);
    let y = b.output_sequence("y", DType::F32, &[4]);
    let last = b.output("last", DType::F32, &[4]);
    b.begin_block("steps", Repeat::PerInputStep { stride });
    let v = b.read_input("x", x);
    let v = b.lstm("lstm", v, 4);
    b.emit("y", y, v);
    b.emit("last", last, v);
    b.finish().unwrap()
}

/// Rows to ids of rows, at once.
fn tagger() -> Program {
    let mut b = ProgramBuilder::new("tagger");
    let x = b.sequence("x", DType::F32, &[4], 9);
    let tags = b.output_sequence("tags", DType::I32, &[]);
    let first = b.output("first", DType::F32, &[6]);
    b.begin_block("main", Repeat::Once);
    let v = b.read_input("x", x);
    let v = b.dense("fc", v, 6, None);
    let id = b.arg_max("best", v);
    b.emit("tags", tags, id);
    let v = b.first_row("first_row", v);
    b.emit("first", first, v);
    b.finish().unwrap()
}

fn embed(bound: usize) -> Program {
    let mut b = ProgramBuilder::new("embed");
    let ids = b.sequence_ids("ids", 20, bound);
    let y = b.output("y", DType::F32, &[3]);
    b.begin_block("main", Repeat::Once);
    let v = b.read_input("ids", ids);
    let v = b.embed("table", v, bound, 3);
    let v = b.mean_rows("mean", v);
    b.emit("y", y, v);
    b.finish().unwrap()
}

fn decoder() -> Program {
    let mut b = ProgramBuilder::new("decoder");
    let x = b.input("x", DType::F32, &[4]);
    let h = b.vector_state("h", DType::F32, &[4], 0.0);
    let greedy = Greedy::new(&mut b, 1, 2);
    b.begin_block("start", Repeat::Once);
    let v = b.read_input("x", x);
    b.vec_write("h0", h, v);
    b.begin_block("loop", Repeat::UntilStop { max: 5 });
    let token = greedy.read(&mut b);
    let v = b.embed("table", token, 6, 4);
    let v = b.gru("gru", v, 4, h);
    let v = b.dense("scores", v, 6, None);
    greedy.choose(&mut b, v);
    b.finish().unwrap()
}

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let own = |&(a, b): &(&str, &str)| (a.to_owned(), b.to_owned());
    pairs.iter().map(own).collect()
}

fn step<'a>(
    name: &str,
    program: &'a Program,
    inputs: &[(&str, &str)],
    outputs: &[(&str, &str)],
) -> Step<'a> {
    Step {
        name: name.into(),
        program,
        inputs: map(inputs),
        outputs: map(outputs),
    }
}

fn names(of: &[&str]) -> Vec<String> {
    of.iter().map(ToString::to_string).collect()
}

fn joined(inputs: &[&str], steps: &[Step<'_>], outputs: &[&str]) -> Result<Program, String> {
    let program = join("whole", &names(inputs), steps, &names(outputs));
    program.map_err(|e| e.to_string())
}

/// Why sound wiring is none of one program.
fn apart(steps: &[Step<'_>]) -> String {
    let error = join("whole", &names(&["in"]), steps, &names(&["out"])).unwrap_err();
    assert!(matches!(error, Error::Apart { .. }), "{error}");
    error.to_string()
}

fn nodes(program: &Program, block: usize) -> Vec<&str> {
    let nodes = program.blocks[block].nodes.iter();
    nodes.map(|&n| program.node(n).name.as_str()).collect()
}

#[test]
fn steps_that_run_once_become_one_block_whatever_their_order() {
    let (a, b) = (dense("a", 4, 3), dense("b", 3, 2));
    let first = step("a", &a, &[("x", "in")], &[("y", "mid")]);
    let second = step("b", &b, &[("x", "mid")], &[("y", "out")]);
    for steps in [
        [first.clone(), second.clone()],
        [second.clone(), first.clone()],
    ] {
        let program = joined(&["in"], &steps, &["out"]).unwrap();
        assert_eq!(program.blocks.len(), 1);
        assert_eq!(program.blocks[0].name, "a/main+b/main");
        assert_eq!(nodes(&program, 0), ["a/x", "a/fc", "b/fc", "b/y"]);
        assert!(program.states.is_empty() && program.length_input.is_none());
        assert_eq!(program.weights[0].name, "a/fc.weight");
    }
    // What is handed on may be an output too.
    let program = joined(&["in"], &[first, second], &["out", "mid"]).unwrap();
    assert_eq!(nodes(&program, 0), ["a/x", "a/fc", "a/y", "b/fc", "b/y"]);
    assert_eq!(program.outputs[1].name, "mid");
}

#[test]
fn steps_that_sample_share_one_input() {
    let sampled = || {
        let mut b = ProgramBuilder::new("sampled");
        let x = b.input("x", DType::F32, &[4]);
        let how = b.sampling();
        let y = b.output("y", DType::I32, &[]);
        b.begin_block("main", Repeat::Once);
        let scores = b.read_input("x", x);
        let how = b.read_input("how", how);
        let token = b.sample("token", scores, how);
        b.emit("emit", y, token);
        b.finish().unwrap()
    };
    let (one, two) = (sampled(), sampled());
    let steps = [
        step("a", &one, &[("x", "in")], &[("y", "a")]),
        step("b", &two, &[("x", "in")], &[("y", "b")]),
    ];
    let program = joined(&["in"], &steps, &["a", "b"]).unwrap();
    let inputs: Vec<_> = program
        .inputs
        .iter()
        .map(|d| (&*d.name, d.is_sampling))
        .collect();
    assert_eq!(inputs, [("in", false), ("sampling", true)]);
    let reads = |name: &str| &program.nodes.iter().find(|n| n.name == name).unwrap().op;
    for how in ["a/how", "b/how"] {
        assert!(matches!(reads(how), Op::Input { input, .. } if input.index() == 1));
    }
}

#[test]
fn from_block_to_block_tensors_go_through_states() {
    let (a, b) = (recurrent(1, 12), recurrent(1, 7));
    let (c, d) = (tagger(), embed(6));
    let steps = [
        step("a", &a, &[("x", "in")], &[("y", "rows")]),
        step(
            "b",
            &b,
            &[("x", "rows")],
            &[("y", "more"), ("last", "last")],
        ),
        step("c", &c, &[("x", "more")], &[("tags", "tags")]),
        step("d", &d, &[("ids", "tags")], &[("y", "out")]),
    ];
    let program = joined(&["in"], &steps, &["out", "last"]).unwrap();
    assert_eq!(program.inputs[0].max_len, Some(7), "the least of all");
    let blocks: Vec<_> = program.blocks.iter().map(|b| b.name.as_str()).collect();
    assert_eq!(blocks, ["a/steps", "b/steps", "c/main+d/main"]);
    assert_eq!(nodes(&program, 0), ["a/x", "a/lstm", "a/y.hand_on"]);
    assert_eq!(
        nodes(&program, 1),
        ["b/x", "b/lstm", "b/y.hand_on", "b/last"]
    );
    let read = |name: &str| &program.nodes.iter().find(|n| n.name == name).unwrap().op;
    assert!(matches!(read("b/x"), Op::SeqRead { at: At::Step, .. }));
    assert!(matches!(read("c/x"), Op::SeqRead { at: At::All, .. }));
    let handed = program.states.iter().filter(|s| s.name.starts_with(':'));
    let kinds: Vec<_> = handed.map(|s| &s.kind).collect();
    let rows = StateKind::Sequence {
        features: 4,
        max_len: 7,
    };
    assert_eq!(kinds, [&rows, &rows]);
    // The tags are read in the block that made them.
    assert!(nodes(&program, 2).contains(&"d/table"));
    assert!(!nodes(&program, 2).contains(&"c/first_row"), "nobody asks");
}

#[test]
fn ids_of_one_number_go_through_states_of_one_feature() {
    let (a, b, c) = (tagger(), recurrent(1, 9), embed(6));
    let steps = [
        step("a", &a, &[("x", "in")], &[("tags", "tags")]),
        step("b", &b, &[("x", "in")], &[("last", "last")]),
        step("c", &c, &[("ids", "tags")], &[("y", "out")]),
    ];
    let program = joined(&["in"], &steps, &["last", "out"]).unwrap();
    assert_eq!(
        nodes(&program, 0),
        ["a/x", "a/fc", "a/best", "a/tags.rows", "a/tags.hand_on"]
    );
    assert_eq!(nodes(&program, 2)[..2], ["c/ids", "c/ids.shaped"]);
}

#[test]
fn a_decoder_starts_from_what_a_step_left() {
    let (a, b) = (recurrent(1, 9), decoder());
    let steps = [
        step("a", &a, &[("x", "in")], &[("last", "state")]),
        step("b", &b, &[("x", "state")], &[("tokens", "tokens")]),
    ];
    let program = joined(&["in"], &steps, &["tokens"]).unwrap();
    let repeats: Vec<_> = program.blocks.iter().map(|b| b.repeat).collect();
    let expected = [
        Repeat::PerInputStep { stride: 1 },
        Repeat::Once,
        Repeat::UntilStop { max: 5 },
    ];
    assert_eq!(repeats, expected);
    assert_eq!(nodes(&program, 1), ["b/x", "b/h0"]);
}

#[test]
fn steps_of_one_program_share_its_weights() {
    let a = dense("a", 4, 4);
    let steps = [
        step("one", &a, &[("x", "left")], &[("y", "l")]),
        step("two", &a, &[("x", "right")], &[("y", "r")]),
    ];
    let program = joined(&["left", "right"], &steps, &["l", "r"]).unwrap();
    let weights: Vec<_> = program.weights.iter().map(|w| w.name.as_str()).collect();
    assert_eq!(weights, ["one/fc.weight", "one/fc.bias"]);
}

#[test]
fn wiring_that_is_not_sound_is_refused() {
    let (a, b) = (dense("a", 4, 3), dense("b", 3, 4));
    let told = |inputs: &[&str], steps: &[Step<'_>], outputs: &[&str]| {
        let error = join("whole", &names(inputs), steps, &names(outputs)).unwrap_err();
        assert!(matches!(error, Error::Join { .. }), "{error}");
        error.to_string()
    };
    let sa = |x: &str, y: &str| step("a", &a, &[("x", x)], &[("y", y)]);
    let sb = |x: &str, y: &str| step("b", &b, &[("x", x)], &[("y", y)]);
    assert_eq!(
        told(&["in"], &[sa("in", "m"), sb("n", "out")], &["out"]),
        "ensemble whole: step b: input x: expected an input of the ensemble or a tensor that a step \
         makes, got tensor n"
    );
    assert_eq!(
        told(&["in"], &[sa("in", "m"), sb("m", "m")], &["m"]),
        "ensemble whole: tensor m: expected one place that it comes from, got output y of step a and \
         output y of step b"
    );
    assert_eq!(
        told(&[], &[sa("n", "m"), sb("m", "n")], &["n"]),
        "ensemble whole: steps a, b: expected an order in which each reads from those before it, got \
         a cycle"
    );
    assert_eq!(
        told(&["in"], &[sa("in", "m"), sb("in", "out")], &["out"]),
        "ensemble whole: tensor m: expected a step that reads it, or it among the outputs, got \
         output y of step a, unused"
    );
    assert_eq!(
        told(&["in"], &[sa("in", "m"), sb("in", "o")], &["m", "o"]),
        "ensemble whole: step b: input x: tensor in: expected f32[3], got f32[4] for input x of step a"
    );
    let c = dense("c", 5, 1);
    let sc = step("c", &c, &[("x", "m")], &[("y", "out")]);
    assert_eq!(
        told(&["in"], &[sa("in", "m"), sc], &["out"]),
        "ensemble whole: step c: input x: tensor m: expected f32[5], got f32[3] output y of step a"
    );
    let other = step("a", &a, &[("x", "in"), ("z", "in")], &[("y", "out")]);
    let message = told(&["in"], &[other], &["out"]);
    assert!(message.contains("tensor in: expected one of the inputs x, got z"));
    let other = step("a", &a, &[], &[("y", "out")]);
    let message = told(&["in"], &[other], &["out"]);
    assert!(message.contains("step a: input x: expected a tensor for it, got none"));
    let message = told(&["in"], &[sa("in", "m")], &["in"]);
    assert!(message.contains("output in: expected a tensor that a step makes"));
    let message = told(&["in"], &[sa("in", "m"), sa("in", "n")], &["m", "n"]);
    assert!(message.contains("step 1: expected a name of its own, got a"));
}

#[test]
fn what_one_length_cannot_express_is_refused() {
    let (rows, tags, dec) = (recurrent(1, 9), tagger(), decoder());
    let (strided, ids) = (recurrent(2, 9), embed(5));
    let told = |first: Step<'_>, second: Step<'_>| apart(&[first, second]);
    let a = step("a", &dec, &[("x", "in")], &[("tokens", "m")]);
    let wide = embed(6);
    let b = step("b", &wide, &[("ids", "m")], &[("y", "out")]);
    assert_eq!(
        told(a, b),
        "ensemble whole: step b: input ids: tensor m: expected a row for each position of the \
         request, got output tokens of step a, which has a row for each pass of a loop until it stops"
    );
    let a = step("a", &strided, &[("x", "in")], &[("y", "m")]);
    let b = step("b", &rows, &[("x", "m")], &[("y", "out")]);
    assert!(told(a, b).contains("which has a row for every 2 positions"));
    let a = step("a", &rows, &[("x", "in")], &[("y", "m")]);
    let b = step("b", &strided, &[("x", "m")], &[("y", "out")]);
    assert!(told(a, b).contains("got one that reads every position at a multiple of 2"));
    let a = step("a", &tags, &[("x", "in")], &[("tags", "m")]);
    let b = step("b", &ids, &[("ids", "m")], &[("y", "out")]);
    assert!(
        told(a, b)
            .contains("expected ids below 5, got output tags of step a, whose ids are below 6")
    );
    let mut carried = dense("s", 4, 4);
    carried.carries.push(crate::program::Carry {
        output: crate::ids::OutputId::new(0),
        input: crate::ids::InputId::new(0),
    });
    let a = step("a", &carried, &[("x", "in")], &[("y", "m")]);
    let b = step("b", &carried, &[("x", "m")], &[("y", "out")]);
    assert!(
        told(a, b).contains("step a: expected no state between requests, got y handed on to x")
    );
}

#[test]
fn what_is_not_sound_is_told_before_what_one_program_cannot_express() {
    let (dec, ids, other) = (decoder(), embed(6), dense("c", 5, 1));
    let steps = [
        step("a", &dec, &[("x", "in")], &[("tokens", "m")]),
        step("b", &ids, &[("ids", "m")], &[("y", "n")]),
    ];
    let last = step("c", &other, &[("x", "n")], &[("y", "out")]);
    let error = joined(&["in"], &[&steps[..], &[last]].concat(), &["out"]).unwrap_err();
    assert!(
        error.contains("tensor n: expected f32[5], got f32[3] output y of step b"),
        "{error}"
    );
}
