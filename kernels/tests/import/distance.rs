//! Attention whose scores get a term by the distance of two positions, as exporters write it: buckets
//! of distances (MPNet, T5), slopes (BLOOM, MPT, Jina BERT), sliding windows (ModernBERT).

use std::collections::BTreeMap;

use lazybatch_graph::onnx::{Array, Attr, Data, Dim, Model, Node};
use lazybatch_graph::{Op, Program, Seen};
use lazybatch_kernels::import::{Options, import_model};

use super::refusals::{model, named, node, refusal};

const HEADS: usize = 2;
const DIM: usize = 4;

fn float(v: f32) -> Array {
    Array::scalar(Data::F32(vec![v]))
}

fn whole(v: i64) -> Array {
    Array::scalar(Data::I64(vec![v]))
}

fn wholes(v: &[i64]) -> Array {
    Array::vector(v.to_vec())
}

fn turned(perm: &[i64]) -> [(&'static str, Attr); 1] {
    [("perm", Attr::Ints(perm.to_vec()))]
}

fn to(elem: i64) -> [(&'static str, Attr); 1] {
    [("to", Attr::Int(elem))]
}

const F32: i64 = 1;
const I64: i64 = 7;

/// Nodes by op, operands and result, and the constants that they read.
#[derive(Clone, Default)]
struct Parts {
    nodes: Vec<Node>,
    constants: BTreeMap<String, Array>,
    /// With one, scores are `cap * tanh(scores / cap)` before anything is added to them.
    cap: Option<f32>,
}

impl Parts {
    fn add(&mut self, op: &str, inputs: &[&str], output: &str) {
        self.nodes.push(node(op, inputs, output, &[]));
    }

    fn add_with(&mut self, op: &str, inputs: &[&str], output: &str, attrs: &[(&str, Attr)]) {
        self.nodes.push(node(op, inputs, output, attrs));
    }

    fn constant(&mut self, name: &str, array: Array) {
        self.constants.insert(name.into(), array);
    }

    /// `len`, positions `at [len]`, `keys [1, len]` and `queries [len, 1]`, and `apart [len, len]`, by
    /// how much the key is behind the query.
    fn positions() -> Self {
        let mut p = Self::default();
        p.constant("zero", whole(0));
        p.constant("one", whole(1));
        p.constant("first", wholes(&[0]));
        p.constant("second", wholes(&[1]));
        p.constant("heads", wholes(&[0, 0, HEADS as i64, DIM as i64]));
        p.constant("joined", wholes(&[0, 0, (HEADS * DIM) as i64]));
        p.constant("hidden", float(f32::MIN));
        p.constant("shown", float(0.0));
        p.add("Shape", &["x"], "shape");
        p.add("Gather", &["shape", "one"], "len");
        p.add("Range", &["zero", "len", "one"], "at");
        p.add("Unsqueeze", &["at", "first"], "keys");
        p.add("Unsqueeze", &["at", "second"], "queries");
        p.add("Sub", &["keys", "queries"], "apart");
        p
    }

    /// `causal [len, len]`, which hides what is behind a query.
    fn causal(&mut self) {
        self.add("Greater", &["apart", "zero"], "later");
        self.add("Where", &["later", "hidden", "shown"], "causal");
    }

    /// `y` of `x`, two heads over it: each of `terms` is added to their scores. `turn` may change queries
    /// and keys before.
    fn attention(&mut self, x: &str, y: &str, terms: &[&str], turn: Option<&str>) {
        let name = |part: &str| format!("{y}.{part}");
        self.add("Reshape", &[x, "heads"], &name("split"));
        let turn_heads = turned(&[0, 2, 1, 3]);
        self.add_with("Transpose", &[&name("split")], &name("v"), &turn_heads);
        let q = match turn {
            None => name("v"),
            Some(angles) => self.rotary(&name("v"), angles),
        };
        self.add_with("Transpose", &[&q], &name("k"), &turned(&[0, 1, 3, 2]));
        let mut scores = name("raw");
        self.add("MatMul", &[&q, &name("k")], &scores);
        if let Some(cap) = self.cap {
            self.constant("cap", float(cap));
            self.add("Div", &[&scores, "cap"], &name("quotient"));
            self.add("Tanh", &[&name("quotient")], &name("tanh"));
            self.add("Mul", &[&name("tanh"), "cap"], &name("capped"));
            scores = name("capped");
        }
        for (i, term) in terms.iter().enumerate() {
            let sum = name(&format!("sum{i}"));
            self.add("Add", &[&scores, term], &sum);
            scores = sum;
        }
        let last = [("axis", Attr::Int(-1))];
        self.add_with("Softmax", &[&scores], &name("weights"), &last);
        self.add("MatMul", &[&name("weights"), &name("v")], &name("mixed"));
        self.add_with("Transpose", &[&name("mixed")], &name("back"), &turn_heads);
        self.add("Reshape", &[&name("back"), "joined"], y);
    }

    /// `cos` and `sin` of positions times inverse frequencies, `[1, 1, len, DIM]`.
    fn angles(&mut self, name: &str, theta: f32) {
        let freqs = (0..DIM).map(|i| theta.powf(-2.0 * (i % (DIM / 2)) as f32 / DIM as f32));
        self.constant(
            &format!("{name}.freqs"),
            Array::new(vec![DIM], Data::F32(freqs.collect())),
        );
        self.constant("front", wholes(&[0, 1]));
        let part = |part: &str| format!("{name}.{part}");
        self.add_with("Cast", &["queries"], &part("at"), &to(F32));
        self.add("Mul", &[&part("at"), &part("freqs")], &part("flat"));
        self.add("Unsqueeze", &[&part("flat"), "front"], &part("all"));
        self.add("Cos", &[&part("all")], &part("cos"));
        self.add("Sin", &[&part("all")], &part("sin"));
    }

    /// `x * cos + rotate_half(x) * sin`.
    fn rotary(&mut self, x: &str, angles: &str) -> String {
        let part = |part: &str| format!("{x}.{part}");
        self.constant("half", wholes(&[DIM as i64 / 2]));
        self.constant("end", wholes(&[i64::MAX]));
        self.constant("last", wholes(&[-1]));
        self.add("Slice", &[x, "first", "half", "last"], &part("low"));
        self.add("Slice", &[x, "half", "end", "last"], &part("high"));
        self.add("Neg", &[&part("high")], &part("negative"));
        let last = [("axis", Attr::Int(-1))];
        self.add_with(
            "Concat",
            &[&part("negative"), &part("low")],
            &part("rotated"),
            &last,
        );
        self.add("Mul", &[x, &format!("{angles}.cos")], &part("even"));
        self.add(
            "Mul",
            &[&part("rotated"), &format!("{angles}.sin")],
            &part("odd"),
        );
        self.add("Add", &[&part("even"), &part("odd")], &part("rotary"));
        part("rotary")
    }

    fn model(self) -> Model {
        let dims = [named("batch"), named("seq"), Dim::Fixed(HEADS * DIM)];
        let mut model = model(&dims, self.nodes, &["y"]);
        model.graph.initializers.extend(self.constants);
        model
    }

    /// The attentions of the program that this becomes: what they see, and their biases by name. Requests
    /// have the same bits alone and in company.
    fn attentions(self) -> Vec<(Seen, Option<String>)> {
        let program = import_model(&self.model(), &Options::default()).unwrap();
        let found = attentions(&program);
        super::check_bits(program, 4, 60);
        found
    }

    fn refusal(self) -> String {
        refusal(&self.model(), &Options::default())
    }
}

fn attentions(program: &Program) -> Vec<(Seen, Option<String>)> {
    let found = program.nodes.iter().filter_map(|n| {
        let Op::Attention { seen, bias, .. } = n.op else {
            return None;
        };
        let bias = bias.then(|| {
            let weight = program.as_weight(n.inputs[3]).unwrap();
            program.weight(weight).name.clone()
        });
        Some((seen, bias))
    });
    found.collect()
}

/// The columns of the only bias, for distances from `-most` to `most`, a row for each head.
fn biases(model: &Model, most: usize) -> Vec<Vec<f32>> {
    let program = import_model(model, &Options::default()).unwrap();
    let attention = program
        .nodes
        .iter()
        .find(|n| matches!(n.op, Op::Attention { .. }));
    let weight = program.as_weight(attention.unwrap().inputs[3]).unwrap();
    let weight = program.weight(weight);
    let columns = weight.ty.fixed_dims()[1];
    let all = weight.source.to_f32(HEADS * columns);
    let middle = |row: &[f32]| row[columns / 2 - most..=columns / 2 + most].to_vec();
    all.chunks_exact(columns).map(middle).collect()
}

const BUCKETS: i64 = 8;

/// `bias [1, heads, len, len]`: rows of a table by bucket of the distance, as `relative_position_bucket`
/// of MPNet and T5 has them. With `both`, half of the buckets are for later keys.
fn bucketed(p: &mut Parts, both: bool) {
    let own = if both { BUCKETS / 2 } else { BUCKETS };
    let exact = own / 2;
    let table = (0..BUCKETS * HEADS as i64).map(|i| (i as f32 * 0.7).sin() * 2.0);
    let table = Array::new(vec![BUCKETS as usize, HEADS], Data::F32(table.collect()));
    p.constant("table", table);
    p.constant("own", whole(own));
    p.constant("exact", whole(exact));
    p.constant("exact.float", float(exact as f32));
    p.constant("ratio", float((16.0 / exact as f32).ln()));
    p.constant("rest", float((own - exact) as f32));
    p.constant("most", whole(own - 1));
    if both {
        p.add("Greater", &["apart", "zero"], "is.later");
        p.add_with("Cast", &["is.later"], "later.one", &to(I64));
        p.add("Mul", &["later.one", "own"], "start");
        p.add("Abs", &["apart"], "far");
    } else {
        p.add("Neg", &["apart"], "before");
        p.add("Mul", &["before", "zero"], "start");
        p.add("Max", &["before", "start"], "far");
    }
    p.add("Less", &["far", "exact"], "is.small");
    p.add_with("Cast", &["far"], "far.float", &to(F32));
    p.add("Div", &["far.float", "exact.float"], "quotient");
    p.add("Log", &["quotient"], "log");
    p.add("Div", &["log", "ratio"], "log.ratio");
    p.add("Mul", &["log.ratio", "rest"], "log.bucket");
    p.add_with("Cast", &["log.bucket"], "log.whole", &to(I64));
    p.add("Add", &["log.whole", "exact"], "large");
    p.add("Min", &["large", "most"], "large.most");
    p.add("Where", &["is.small", "far", "large.most"], "own.bucket");
    p.add("Add", &["start", "own.bucket"], "bucket");
    p.add("Gather", &["table", "bucket"], "values");
    p.add_with("Transpose", &["values"], "by.head", &turned(&[2, 0, 1]));
    p.add("Unsqueeze", &["by.head", "first"], "bias");
}

#[test]
fn buckets_of_distances_are_one_bias_for_all_layers() {
    let mut p = Parts::positions();
    bucketed(&mut p, true);
    p.attention("x", "a", &["bias"], None);
    p.attention("a", "y", &["bias"], None);
    let found = p.attentions();
    assert_eq!(found.len(), 2);
    assert_eq!(found[0], found[1]);
    assert!(matches!(&found[0], (Seen::ALL, Some(name)) if name == "a.mixed.by distance"));
}

#[test]
fn buckets_and_a_causal_mask_are_a_causal_bias() {
    let mut p = Parts::positions();
    bucketed(&mut p, false);
    p.causal();
    // T5 adds the mask to the bias, and both to scores that are not scaled.
    p.add("Add", &["bias", "causal"], "both");
    p.attention("x", "y", &["both"], None);
    let found = p.attentions();
    assert!(matches!(&found[..], [(Seen::CAUSAL, Some(_))]), "{found:?}");
}

/// Slopes of the heads, `[heads, 1, 1]`.
fn slopes() -> Array {
    Array::new(vec![HEADS, 1, 1], Data::F32(vec![0.3, 0.07]))
}

#[test]
fn slopes_times_distances_are_a_bias() {
    let mut p = Parts::positions();
    p.constant("slopes", slopes());
    p.add("Abs", &["apart"], "far");
    p.add_with("Cast", &["far"], "far.float", &to(F32));
    p.add("Neg", &["far.float"], "near");
    p.add("Mul", &["slopes", "near"], "alibi");
    p.attention("x", "y", &["alibi"], None);
    let all = biases(&p.clone().model(), 2);
    let of = |slope: f32| [2, 1, 0, 1, 2].map(|far| -slope * far as f32);
    assert_eq!(all, [of(0.3), of(0.07)]);
    let found = p.attentions();
    assert!(matches!(&found[..], [(Seen::ALL, Some(_))]), "{found:?}");
}

#[test]
fn slopes_that_count_keys_from_one_end_are_the_same_to_a_softmax() {
    // BLOOM counts from the first key on, MPT from the last one; both are causal.
    for from_end in [false, true] {
        let mut p = Parts::positions();
        p.causal();
        p.constant("slopes", slopes());
        if from_end {
            p.add("Sub", &["one", "len"], "start");
            p.add("Range", &["start", "one", "one"], "counted");
        } else {
            p.add("Identity", &["at"], "counted");
        }
        p.add_with("Cast", &["counted"], "place", &to(F32));
        p.add("Mul", &["slopes", "place"], "alibi");
        p.attention("x", "y", &["alibi", "causal"], None);
        let all = biases(&p.clone().model(), 3);
        for (row, slope) in all.iter().zip([0.3_f32, 0.07]) {
            for (at, v) in row.iter().enumerate() {
                let wanted = if at > 3 {
                    0.0
                } else {
                    slope * (at as f32 - 3.0)
                };
                assert!((v - wanted).abs() < 1e-4, "{at}: {v}, {wanted}");
            }
        }
        let found = p.attentions();
        assert!(matches!(&found[..], [(Seen::CAUSAL, Some(_))]), "{found:?}");
    }
}

#[test]
fn heads_beside_samples_get_what_is_theirs() {
    // `baddbmm` has samples and heads on one axis.
    let mut p = Parts::positions();
    p.causal();
    p.constant("slopes", slopes());
    p.add_with("Cast", &["keys"], "place", &to(F32));
    p.add("Mul", &["slopes", "place"], "alibi.one");
    p.constant("four", wholes(&[DIM as i64]));
    p.constant("any", wholes(&[-1]));
    p.constant("two", wholes(&[HEADS as i64]));
    let first = [("axis", Attr::Int(0))];
    p.add("Gather", &["shape", "zero"], "batch");
    p.add("Unsqueeze", &["batch", "first"], "batch.list");
    p.add("Unsqueeze", &["len", "first"], "len.list");
    // A copy of the slopes for each sample.
    p.constant("ones", wholes(&[1, 1]));
    p.add_with("Concat", &["batch.list", "ones"], "times", &first);
    p.add("Tile", &["alibi.one", "times"], "alibi");
    p.add("Reshape", &["x", "heads"], "split");
    p.add_with("Transpose", &["split"], "v", &turned(&[0, 2, 1, 3]));
    p.add_with("Concat", &["any", "len.list", "four"], "flat.shape", &first);
    p.add("Reshape", &["v", "flat.shape"], "flat");
    p.add_with("Transpose", &["flat"], "k", &turned(&[0, 2, 1]));
    p.add("MatMul", &["flat", "k"], "raw");
    p.add("Add", &["raw", "alibi"], "sloped");
    let shape = ["batch.list", "two", "len.list", "len.list"];
    p.add_with("Concat", &shape, "square.shape", &first);
    p.add("Reshape", &["sloped", "square.shape"], "square");
    p.add("Add", &["square", "causal"], "scores");
    p.add_with(
        "Softmax",
        &["scores"],
        "weights",
        &[("axis", Attr::Int(-1))],
    );
    p.add("MatMul", &["weights", "v"], "mixed");
    p.add_with("Transpose", &["mixed"], "back", &turned(&[0, 2, 1, 3]));
    p.add("Reshape", &["back", "joined"], "y");
    let found = p.attentions();
    assert!(matches!(&found[..], [(Seen::CAUSAL, Some(_))]), "{found:?}");
}

/// `name`, which hides what is more than `most` positions away.
fn window(p: &mut Parts, name: &str, most: i64) {
    p.constant(&format!("{name}.most"), whole(most));
    p.add("Abs", &["apart"], &format!("{name}.far"));
    let part = |part: &str| format!("{name}.{part}");
    p.add("LessOrEqual", &[&part("far"), &part("most")], &part("near"));
    p.add("Where", &[&part("near"), "shown", "hidden"], name);
}

#[test]
fn local_and_global_layers_see_what_they_saw_with_rotary_positions_of_two_bases() {
    let mut p = Parts::positions();
    window(&mut p, "local", 8);
    p.angles("far", 160_000.0);
    p.angles("near", 10_000.0);
    p.attention("x", "a", &[], Some("far"));
    p.attention("a", "b", &["local"], Some("near"));
    p.attention("b", "c", &["local"], Some("near"));
    p.attention("c", "y", &[], Some("far"));
    let local = Seen {
        window: Some(8),
        ..Seen::ALL
    };
    let found = p.attentions().into_iter().map(|(seen, bias)| {
        assert_eq!(bias, None);
        seen
    });
    assert_eq!(
        found.collect::<Vec<_>>(),
        [Seen::ALL, local, local, Seen::ALL]
    );
}

#[test]
fn scores_are_capped_before_masks() {
    let mut p = Parts::positions();
    p.causal();
    p.cap = Some(1.5);
    p.attention("x", "y", &["causal"], None);
    let program = import_model(&p.model(), &Options::default()).unwrap();
    let op = program.nodes.iter().find_map(|n| match &n.op {
        Op::Attention {
            heads, seen, cap, ..
        } => Some((heads.scale, *seen, *cap)),
        _ => None,
    });
    assert_eq!(op, Some((1.0, Seen::CAUSAL, Some(1.5))));
    super::check_bits(program, 4, 60);
    // Behind a mask it would show what is hidden.
    let mut p = Parts::positions();
    p.causal();
    p.attention("x", "y", &["causal"], None);
    let softmax = p.nodes.iter().position(|n| n.op == "Softmax").unwrap();
    p.nodes[softmax].inputs[0] = "late".into();
    p.nodes
        .insert(softmax, node("Tanh", &["y.sum0"], "late", &[]));
    let e = p.refusal();
    assert!(e.contains("form is not recognised"), "{e}");
}

#[test]
fn masks_slopes_and_windows_add_up() {
    let mut p = Parts::positions();
    p.causal();
    window(&mut p, "local", 8);
    p.attention("x", "y", &["causal", "local"], None);
    let near = Seen {
        causal: true,
        window: Some(8),
    };
    assert_eq!(p.attentions(), [(near, None)]);
    // More keys before than behind: the further of both is the window, the bias hides the others.
    let mut p = Parts::positions();
    p.constant("behind", whole(2));
    p.add("Greater", &["apart", "behind"], "later");
    p.add("Where", &["later", "hidden", "shown"], "mask");
    window(&mut p, "local", 5);
    p.attention("x", "y", &["mask", "local"], None);
    let model = p.clone().model();
    let far = f32::NEG_INFINITY;
    assert_eq!(
        biases(&model, 4)[0],
        [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, far, far]
    );
    let found = p.attentions();
    assert!(
        matches!(
            &found[..],
            [(
                Seen {
                    causal: false,
                    window: Some(5)
                },
                Some(_)
            )]
        ),
        "{found:?}"
    );
}

#[test]
fn terms_of_more_than_distances_and_rows_without_keys_are_refused() {
    let mut p = Parts::positions();
    p.add("Mul", &["keys", "queries"], "product");
    p.add_with("Cast", &["product"], "float", &to(F32));
    p.add("Sin", &["float"], "term");
    p.attention("x", "y", &["term"], None);
    let e = p.refusal();
    let why = "its mask term depends on more than the head and how far a key is behind its query";
    assert!(e.contains(why), "{e}");
    // By distance at each length, but another table.
    let mut p = Parts::positions();
    p.constant("two", whole(2));
    p.add("Div", &["len", "two"], "half.len");
    p.add("Abs", &["apart"], "far");
    p.add("LessOrEqual", &["far", "half.len"], "near");
    p.add("Where", &["near", "shown", "hidden"], "term");
    p.attention("x", "y", &["term"], None);
    let e = p.refusal();
    assert!(e.contains(why), "{e}");
    // Before a query, not at it.
    let mut p = Parts::positions();
    p.add("GreaterOrEqual", &["apart", "zero"], "later");
    p.add("Where", &["later", "hidden", "shown"], "mask");
    p.attention("x", "y", &["mask"], None);
    let e = p.refusal();
    assert!(
        e.contains("its mask mask hides positions from themselves"),
        "{e}"
    );
}
