//! Programs that are broken one way each, and what the verifier says.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use lazybatch_graph::{
    Act, Bin, DType, Def, Dim, InputId, NodeId, Program, ProgramBuilder, Repeat, StateKind, Tensor,
    TensorType, ValueId, WeightDecl, WeightSource, verify,
};

/// A tiny encoder-decoder.
fn sound() -> Program {
    let mut b = ProgramBuilder::new("tiny");
    let ids = b.sequence_ids("ids", 6, 10);
    let tokens = b.output_sequence("tokens", DType::I32, &[]);
    b.begin_block("encoder", Repeat::Once);
    let i = b.read_input("ids", ids);
    let x = b.embed("embed", i, 10, 8);
    let memory = b.cross_memory("cross", x, 8, 6);
    b.begin_block("decoder", Repeat::UntilStop { max: 5 });
    let last = b.vector_state("last", DType::I32, &[], 1.0);
    let t = b.vec_read("token", last);
    let x = b.embed("decoder.embed", t, 12, 8);
    let x = b.cached_self_attention("self", x, 2, 5, Some(x));
    let x = b.cross_attention("cross.attn", x, 2, memory, Some(x));
    let x = b.ffn("ffn", x, 16, Act::Relu, Some(x));
    let logits = b.dense("out", x, 12, None);
    let best = b.arg_max("best", logits);
    b.vec_write("keep", last, best);
    b.emit("emit", tokens, best);
    b.stop("stop", best, 2);
    b.finish().unwrap()
}

fn broken(edit: impl FnOnce(&mut Program)) -> String {
    let mut program = sound();
    verify(&program).unwrap();
    edit(&mut program);
    verify(&program).unwrap_err().to_string()
}

fn at(program: &Program, name: &str) -> NodeId {
    NodeId::new(program.nodes.iter().position(|n| n.name == name).unwrap())
}

#[test]
fn behind_a_stop_nothing_is_done_that_others_see() {
    let move_behind = |p: &mut Program, name: &str| {
        let node = at(p, name);
        let nodes = &mut p.blocks[1].nodes;
        nodes.retain(|&n| n != node);
        nodes.push(node);
    };
    let message = broken(|p| move_behind(p, "emit"));
    let expected = "node emit: its place in block decoder: expected in front of node stop, as it emits, \
                    got behind it";
    assert_eq!(message, expected);
    // The loop's own state is nobody's behind its last pass.
    let mut program = sound();
    move_behind(&mut program, "keep");
    verify(&program).unwrap();

    let behind = |is_read: bool| {
        let mut b = ProgramBuilder::new("read behind");
        let x = b.input("x", DType::I32, &[]);
        let y = b.output("y", DType::I32, &[]);
        let last = b.vector_state("last", DType::I32, &[], 1.0);
        let other = b.vector_state("other", DType::I32, &[], 1.0);
        b.begin_block("loop", Repeat::UntilStop { max: 5 });
        let v = b.read_input("x.read", x);
        b.stop("stop", v, 2);
        b.vec_write("keep", last, v);
        b.begin_block("end", Repeat::Once);
        let v = b.vec_read("left", if is_read { last } else { other });
        b.emit("emit", y, v);
        b.finish()
    };
    behind(false).unwrap();
    let message = behind(true).unwrap_err().to_string();
    let expected = "node keep: its place in block loop: expected in front of node stop, as it writes a \
                    state that a later block reads, got behind it";
    assert_eq!(message, expected);
}

#[test]
fn what_is_carried_has_one_fixed_type_and_is_carried_once() {
    let stateful = || {
        let mut b = ProgramBuilder::new("stateful");
        let (h, x) = (
            b.input("h", DType::F32, &[4]),
            b.input("x", DType::F32, &[3]),
        );
        let next = b.output("next", DType::F32, &[4]);
        b.carry(next, h);
        b.begin_block("step", Repeat::Once);
        let (h, x) = (b.read_input("h.read", h), b.read_input("x.read", x));
        let sum = b.dense("w", x, 4, None);
        let sum = b.binary("sum", Bin::Add, sum, h);
        b.emit("emit", next, sum);
        b.finish().unwrap()
    };
    let broken = |edit: fn(&mut Program)| {
        let mut program = stateful();
        edit(&mut program);
        verify(&program).unwrap_err().to_string()
    };
    assert!(stateful().is_carried(InputId::new(0)));
    assert!(!stateful().is_carried(InputId::new(1)));
    for (message, part) in [
        (
            broken(|p| p.carries[0].input = InputId::new(1)),
            "next carried to x: expected one fixed type, got f32[4] and f32[3]",
        ),
        (
            broken(|p| p.carries[0].input = InputId::new(7)),
            "carry 0: no such output or input",
        ),
        (
            broken(|p| p.carries.push(p.carries[0])),
            "next carried to h: the input is carried twice",
        ),
        (
            broken(|p| {
                let ids = TensorType::fixed(DType::I32, &[4]);
                p.outputs[0].ty = ids.clone();
                p.inputs[0].ty = ids;
                p.inputs[0].id_bound = Some(4);
            }),
            "next carried to h: expected no ids, they are unchecked",
        ),
    ] {
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn an_input_for_sampling_is_the_last_one_and_holds_its_words() {
    let sampled = || {
        let mut b = ProgramBuilder::new("sampled");
        let x = b.input("x", DType::F32, &[3]);
        let how = b.sampling();
        let y = b.output("y", DType::I32, &[]);
        b.begin_block("main", Repeat::Once);
        let scores = b.read_input("x", x);
        let how = b.read_input("how", how);
        let token = b.sample("token", scores, how);
        b.emit("emit", y, token);
        b.finish().unwrap()
    };
    assert_eq!(sampled().sampling(), Some(InputId::new(1)));
    let broken = |edit: fn(&mut Program)| {
        let mut program = sampled();
        edit(&mut program);
        verify(&program).unwrap_err().to_string()
    };
    for (message, part) in [
        (
            broken(|p| p.inputs[1].id_bound = Some(3)),
            "input sampling, for sampling: expected i32[4] without a bound",
        ),
        (
            broken(|p| p.inputs[1].ty = TensorType::fixed(DType::I32, &[5])),
            "expected i32[4] without a bound, got i32[5]",
        ),
        (
            broken(|p| p.inputs[0].is_sampling = true),
            "input x: an input for sampling is the last one, and there is one",
        ),
    ] {
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn ids_are_integers_and_a_program_has_a_name() {
    let mut b = ProgramBuilder::new("floats");
    let x = b.input("x", DType::F32, &[3]);
    let y = b.output("y", DType::F32, &[3]);
    b.begin_block("main", Repeat::Once);
    let v = b.read_input("x", x);
    b.emit("emit", y, v);
    let mut program = b.finish().unwrap();
    program.inputs[0].id_bound = Some(10);
    let message = verify(&program).unwrap_err().to_string();
    let expected =
        "program floats: input x, id bound: expected i32 and 1..=2147483647, got f32[3] and 10";
    assert_eq!(message, expected);
    let message = broken(|p| p.name.clear());
    assert_eq!(message, r#"program "": expected a name, got an empty text"#);
}

#[test]
fn operands_come_from_earlier_nodes_of_the_block() {
    let message = broken(|p| p.blocks[0].nodes.swap(0, 1));
    assert_eq!(
        message,
        "node embed: operand 0: expected a weight or a result of an earlier node of the block, got v0"
    );
    let message = broken(|p| {
        let (foreign, logits) = (p.nodes[1].outputs[0], at(p, "out"));
        p.nodes[logits.index()].inputs[0] = foreign;
    });
    assert!(
        message.starts_with("node out: operand 0: expected a weight or"),
        "{message}"
    );
    let message = broken(|p| p.nodes[1].inputs[0] = ValueId::new(10_000));
    assert!(message.contains("got v10000"), "{message}");
}

#[test]
fn types_are_those_of_the_rule() {
    let message = broken(|p| {
        let v = p.nodes[1].outputs[0];
        p.values[v.index()].ty = TensorType::activation(DType::F32, Dim::Rows, &[9]);
    });
    assert_eq!(
        message,
        "node embed: result 0: expected f32[rows, 8], got f32[rows, 9]"
    );
    let message = broken(|p| {
        p.nodes[1].outputs.clear();
    });
    assert!(message.contains("definition"), "{message}");
}

#[test]
fn loops_stop_and_stops_loop() {
    let message = broken(|p| {
        let stop = p.blocks[1].nodes.pop().unwrap();
        p.nodes.remove(stop.index());
    });
    assert_eq!(
        message,
        "program tiny: block decoder runs until it stops, but has no stop node or no passes"
    );
    let message = broken(|p| p.blocks[1].repeat = Repeat::PerInputStep { stride: 1 });
    assert!(
        message.contains("a block that runs until it stops"),
        "{message}"
    );
    let message = broken(|p| p.blocks[0].repeat = Repeat::PerInputStep { stride: 0 });
    assert!(
        message.contains("position") || message.contains("stride"),
        "{message}"
    );
}

#[test]
fn names_and_places_are_unique() {
    let message = broken(|p| p.nodes[0].name = "embed".to_owned());
    assert_eq!(message, "program tiny: two nodes are named embed");
    let message = broken(|p| p.weights[0].name = p.weights[1].name.clone());
    assert!(message.contains("two weights"), "{message}");
    let message = broken(|p| p.blocks[1].nodes.push(NodeId::new(0)));
    assert_eq!(message, "program tiny: n0 stands in two places");
    let message = broken(|p| p.blocks[1].nodes.retain(|n| n.index() != 9));
    assert!(
        message.contains("operand") || message.contains("stands in no block"),
        "{message}"
    );
    let message = broken(|p| p.blocks[0].nodes.push(NodeId::new(999)));
    assert_eq!(message, "program tiny: block encoder: no node n999");
}

#[test]
fn weights_match_their_declarations() {
    let message = broken(|p| {
        p.weights[0].source = WeightSource::Data(Tensor::from_f32(&[2], &[0.0, 1.0]));
    });
    assert_eq!(
        message,
        "weight embed.table: expected f32[10, 8], got f32[2]"
    );
    // Words of constants and seeded weights are those of floats.
    for (source, got) in [
        (WeightSource::Constant(1.0), "the constant 1"),
        (
            WeightSource::Seeded {
                seed: 1,
                bound: 2.0,
            },
            "seeded floats",
        ),
        (
            WeightSource::Data(Tensor::from_f32(&[2], &[0.0, 1.0])),
            "f32[2]",
        ),
    ] {
        let message = broken(|p| {
            p.weights.push(WeightDecl {
                name: "ids".to_owned(),
                ty: TensorType::fixed(DType::I32, &[2]),
                source,
            });
        });
        let told = format!("weight ids: expected integers for i32[2], got {got}");
        assert_eq!(message, told);
    }
    let message = broken(|p| p.values[1].def = Def::Weight(lazybatch_graph::WeightId::new(3)));
    assert!(message.contains("v1: its definition"), "{message}");
}

#[test]
fn lookups_stay_in_their_tables() {
    let message = broken(|p| p.inputs[0].id_bound = None);
    assert_eq!(
        message,
        "node embed: ids: expected an id bound on input ids, got none"
    );
    for bound in [0, 1 << 31] {
        let message = broken(|p| p.inputs[0].id_bound = Some(bound));
        let expected = "input ids, id bound: expected i32 and 1..=2147483647, got i32[len] and";
        assert_eq!(message, format!("program tiny: {expected} {bound}"));
    }
    let message = broken(|p| p.inputs[0].id_bound = Some(11));
    assert_eq!(
        message,
        "node embed: ids: expected ids below the table's 10 rows, got below 11"
    );
    let message = broken(|p| {
        let token = p.states.iter_mut().find(|s| s.name == "last").unwrap();
        token.kind = StateKind::Vector {
            dims: vec![],
            init: 12.0,
        };
    });
    assert_eq!(
        message,
        "node decoder.embed: ids: expected ids below the table's 12 rows, got below 13"
    );
}

#[test]
fn sequences_have_room_for_what_is_written() {
    let message = broken(|p| {
        let keys = p.states.iter_mut().find(|s| s.name == "self.keys").unwrap();
        keys.kind = StateKind::Sequence {
            features: 8,
            max_len: 4,
        };
    });
    assert_eq!(
        message,
        "program tiny: state self.keys holds 4 rows but up to 5 are written"
    );
    let message = broken(|p| p.inputs[0].max_len = Some(7));
    assert_eq!(
        message,
        "program tiny: state cross.keys holds 6 rows but up to 7 are written"
    );
}

#[test]
fn declarations_are_sound() {
    let message = broken(|p| p.inputs[0].max_len = None);
    assert!(
        message.contains("a length bound is for sequences"),
        "{message}"
    );
    let message = broken(|p| p.length_input = None);
    assert!(message.contains("length input"), "{message}");
    // Devices hold words of 32 bits.
    for dtype in [DType::I8, DType::F16, DType::BF16, DType::I64] {
        let one = |ty: &mut TensorType| ty.dtype = dtype;
        let message = broken(|p| one(&mut p.inputs[0].ty));
        let told = format!("input ids: expected f32 or i32, got {dtype}[len]");
        assert_eq!(message, format!("program tiny: {told}"));
        let message = broken(|p| one(&mut p.outputs[0].ty));
        let told = format!("output tokens: expected f32 or i32, got {dtype}[len]");
        assert_eq!(message, format!("program tiny: {told}"));
    }
    let message = broken(|p| p.outputs[0].ty = TensorType::activation(DType::I32, Dim::Rows, &[]));
    assert_eq!(
        message,
        "program tiny: output tokens has the type i32[rows]"
    );
    let message = broken(|p| p.states[0].dtype = DType::F16);
    assert!(
        message.starts_with("program tiny: state cross.keys: expected f32 or i32"),
        "{message}"
    );
    let message = broken(|p| {
        p.outputs.push(p.outputs[0].clone());
        p.outputs[1].name = "more".to_owned();
    });
    assert_eq!(message, "program tiny: output more is never emitted");
}

#[test]
fn the_builder_keeps_its_first_error() {
    let mut b = ProgramBuilder::new("broken");
    let x = b.input("x", DType::F32, &[4]);
    b.begin_block("main", Repeat::Once);
    let x = b.read_input("x", x);
    let w = b.constant("w", &[5, 2], 0.0);
    let y = b.linear("first", x, w, lazybatch_graph::Fused::default());
    let z = b.dense("second", y, 7, None);
    b.add("third", z, x);
    let message = b.finish().unwrap_err().to_string();
    assert_eq!(
        message,
        "node first: w: expected 4 rows, the features of x, got f32[5, 2]"
    );

    let mut b = ProgramBuilder::new("broken");
    let x = b.input("x", DType::F32, &[4]);
    b.read_input("x", x);
    let message = b.finish().unwrap_err().to_string();
    assert_eq!(
        message,
        "program broken: node x comes before the first block"
    );

    let mut b = ProgramBuilder::new("broken");
    let x = b.sequence("x", DType::F32, &[6], 3);
    b.begin_block("main", Repeat::Once);
    let x = b.read_input("x", x);
    b.scope("layer", |b| {
        b.self_attention("attn", x, lazybatch_graph::MultiHead::new(4), None)
    });
    let message = b.finish().unwrap_err().to_string();
    assert_eq!(
        message,
        "program broken: layer.attn: 4 heads do not divide 6 features"
    );
}

#[test]
fn seeds_depend_on_names_and_the_builder_alone() {
    let seeds = |seed, swap: bool| {
        let mut b = ProgramBuilder::new("seeds").with_seed(seed);
        let names = if swap { ["b", "a"] } else { ["a", "b"] };
        for name in names {
            b.seeded(name, &[2, 2], 2);
        }
        let mut weights = b.finish().unwrap().weights;
        weights.sort_by(|a, b| a.name.cmp(&b.name));
        weights
            .into_iter()
            .map(|w| w.source.to_f32(4))
            .collect::<Vec<_>>()
    };
    assert_eq!(seeds(1, false), seeds(1, true));
    assert_ne!(seeds(1, false), seeds(2, false));
    assert_ne!(seeds(1, false)[0], seeds(1, false)[1]);
}
