//! The forms in which exporters write attention.

use lazybatch_graph::onnx::{Array, Attr, Data, Dim, Model, Node};
use lazybatch_graph::{Op, Program, Seen};
use lazybatch_kernels::import::{Options, import_model};

use super::refusals::{model, named, node, refusal};

fn number(v: f32) -> Array {
    Array::scalar(Data::F32(vec![v]))
}

fn whole(v: i64) -> Array {
    Array::scalar(Data::I64(vec![v]))
}

/// Nodes that make `later`, true where a position looks at a later one.
fn later() -> Vec<Node> {
    vec![
        node("Shape", &["x"], "shape", &[]),
        node("Gather", &["shape", "one"], "len", &[]),
        node("Range", &["zero", "len", "one"], "row", &[]),
        node("Unsqueeze", &["row", "axis"], "column", &[]),
        node("Less", &["column", "row"], "later", &[]),
        node("Not", &["later"], "seen", &[]),
    ]
}

/// Attention of `x` over itself: `scores` makes `scores` of `raw`, `weights` makes `weights` of
/// `normal`, their softmax.
fn attention(scores: Vec<Node>, weights: Vec<Node>, constants: &[(&str, f32)]) -> Model {
    let turn = [("perm", Attr::Ints(vec![0, 2, 1]))];
    let mut nodes = later();
    nodes.push(node("Transpose", &["x"], "k", &turn));
    nodes.push(node("MatMul", &["x", "k"], "raw", &[]));
    nodes.extend(scores);
    let last = [("axis", Attr::Int(-1))];
    nodes.push(node("Softmax", &["scores"], "normal", &last));
    nodes.extend(weights);
    nodes.push(node("MatMul", &["weights", "x"], "y", &[]));
    let dims = [named("batch"), named("seq"), Dim::Fixed(4)];
    let mut model = model(&dims, nodes, &["y"]);
    let all = &mut model.graph.initializers;
    all.insert("zero".into(), whole(0));
    all.insert("one".into(), whole(1));
    all.insert("axis".into(), Array::vector(vec![1]));
    for (name, v) in constants {
        all.insert((*name).to_owned(), number(*v));
    }
    model
}

/// Attentions of a program, and how many of them are causal.
fn attentions(program: &Program) -> (usize, usize) {
    let causal =
        |op: &Op| matches!(op, Op::Attention { seen, bias: false, .. } if *seen == Seen::CAUSAL);
    let all = super::count(program, |op| matches!(op, Op::Attention { .. }));
    (all, super::count(program, causal))
}

fn same(from: &str, to: &str) -> Node {
    node("Identity", &[from], to, &[])
}

fn causal_scores() -> Vec<Node> {
    vec![
        node("Where", &["later", "hidden", "shown"], "mask", &[]),
        node("Add", &["raw", "mask"], "scores", &[]),
    ]
}

#[test]
fn weights_that_are_no_numbers_become_zero_where_there_are_none() {
    let without = |of: &str| {
        vec![
            node("IsNaN", &[of], "none", &[]),
            node("Where", &["none", "shown", "normal"], "weights", &[]),
        ]
    };
    let constants = [("hidden", f32::NEG_INFINITY), ("shown", 0.0)];
    let m = attention(causal_scores(), without("normal"), &constants);
    let program = import_model(&m, &Options::default()).unwrap();
    assert_eq!(attentions(&program), (1, 1));
    super::check_bits(program, 3, 9);
    let m = attention(vec![same("raw", "scores")], without("normal"), &constants);
    let program = import_model(&m, &Options::default()).unwrap();
    assert_eq!(attentions(&program), (1, 0));
    // Zeros alone stand for what is no number, and the weights themselves are asked.
    let m = attention(
        vec![same("raw", "scores")],
        without("normal"),
        &[("hidden", f32::NEG_INFINITY), ("shown", 1.0)],
    );
    let e = refusal(&m, &Options::default());
    assert!(e.contains("form is not recognised"), "{e}");
    let e = refusal(
        &attention(causal_scores(), without("scores"), &constants),
        &Options::default(),
    );
    assert!(e.contains("form is not recognised"), "{e}");
}

/// The model, imported, and what the import notes.
fn imported(model: &Model) -> (Program, String) {
    let program = import_model(model, &Options::default()).unwrap();
    let notes = program.notes().collect::<Vec<_>>().join("\n");
    (program, notes)
}

fn plain_weights() -> Vec<Node> {
    vec![same("normal", "weights")]
}

#[test]
fn a_finite_mask_hides_from_ten_thousand_on_and_is_told_of() {
    let hidden_by = |v: f32| {
        attention(
            causal_scores(),
            plain_weights(),
            &[("hidden", v), ("shown", 0.0)],
        )
    };
    for (v, told) in [
        (-1e4, true),
        (-65504.0, true),
        (f32::MIN, false),
        (f32::NEG_INFINITY, false),
    ] {
        let (program, notes) = imported(&hidden_by(v));
        assert_eq!(attentions(&program), (1, 1));
        assert_eq!(
            notes.contains(&format!("a mask adds {v} to scores")),
            told,
            "{v}: {notes}"
        );
    }
    // What hides less is a bias.
    let (program, _) = imported(&hidden_by(-20.0));
    let biased = |op: &Op| {
        matches!(
            op,
            Op::Attention {
                seen: Seen::ALL,
                bias: true,
                ..
            }
        )
    };
    assert_eq!(super::count(&program, biased), 1);
    super::check_bits(program, 3, 9);
}

#[test]
fn a_mask_is_subtracted_or_lets_through_what_is_seen() {
    let subtracted = vec![
        node("Where", &["later", "hidden", "shown"], "mask", &[]),
        node("Sub", &["raw", "mask"], "scores", &[]),
    ];
    let m = attention(
        subtracted,
        plain_weights(),
        &[("hidden", 1e4), ("shown", 0.0)],
    );
    assert_eq!(attentions(&imported(&m).0), (1, 1));
    // raw * seen - 1e4 * (1 - seen), as GPT-2 was written first.
    let gated = |hidden: f32| {
        let to_float = [("to", Attr::Int(1))];
        let scores = vec![
            node("Cast", &["seen"], "gate", &to_float),
            node("Mul", &["raw", "gate"], "gated", &[]),
            node("Sub", &["unit", "gate"], "rest", &[]),
            node("Mul", &["rest", "hidden"], "mask", &[]),
            node("Sub", &["gated", "mask"], "scores", &[]),
        ];
        attention(
            scores,
            plain_weights(),
            &[("hidden", hidden), ("unit", 1.0)],
        )
    };
    let (program, notes) = imported(&gated(1e4));
    assert_eq!(attentions(&program), (1, 1));
    assert!(notes.contains("a mask adds -10000"), "{notes}");
    super::check_bits(program, 3, 9);
    let e = refusal(&gated(0.0), &Options::default());
    assert!(e.contains("form is not recognised"), "{e}");
}

#[test]
fn attention_by_einsum_is_attention() {
    for (scores, answer) in [
        ("bid,bjd->bij", "bij,bjd->bid"),
        ("bid,bjd->bji", "bji,bid->bjd"),
    ] {
        let product = |equation: &str, a: &str, b: &str, y: &str| {
            node(
                "Einsum",
                &[a, b],
                y,
                &[("equation", Attr::Str(equation.into()))],
            )
        };
        let mut m = attention(
            causal_scores(),
            plain_weights(),
            &[("hidden", -1e9), ("shown", 0.0)],
        );
        for made in &mut m.graph.nodes {
            match made.outputs[0].as_str() {
                "raw" => *made = product(scores, "x", "x", "raw"),
                "y" => *made = product(answer, "weights", "x", "y"),
                _ => {}
            }
        }
        let (program, _) = imported(&m);
        assert_eq!(attentions(&program), (1, 1), "{scores}");
        assert!(super::general(&program).is_empty());
    }
}

#[test]
fn values_may_have_another_width_than_keys() {
    for width in [2, 7] {
        let mut m = attention(
            causal_scores(),
            plain_weights(),
            &[("hidden", -1e9), ("shown", 0.0)],
        );
        let all = &mut m.graph.initializers;
        let numbers = (0..4 * width).map(|v| v as f32 / 8.0 - 1.0);
        let project = Array::new(vec![4, width], Data::F32(numbers.collect()));
        all.insert("project".into(), project);
        let nodes = &mut m.graph.nodes;
        let last = nodes.len() - 1;
        nodes[last].inputs[1] = "values".into();
        nodes.insert(last, node("MatMul", &["x", "project"], "values", &[]));
        let (program, _) = imported(&m);
        assert_eq!(attentions(&program), (1, 1));
        super::check_bits(program, 3, 9);
    }
}
