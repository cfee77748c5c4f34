//! What the passes make of small programs, as text.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use lazybatch_graph::passes::{apply, find};
use lazybatch_graph::{
    Act, At, DType, Fused, Pool, Program, ProgramBuilder, Repeat, Segments, Tensor, Window, dump,
    optimize,
};

/// The node lines of a program, without figures.
fn nodes(program: &Program) -> String {
    let text = dump(program, None);
    let lines = text.lines().filter(|l| l.starts_with("  n"));
    lines
        .map(|l| l.split(" | ").next().unwrap().trim())
        .collect::<Vec<_>>()
        .join("\n")
}

fn run(name: &str, mut program: Program) -> Program {
    apply(find(name).unwrap(), &mut program).unwrap();
    program
}

/// Unfused, as an importer would write it: two layers with bias, activation, residual and norm.
fn dense() -> Program {
    let mut b = ProgramBuilder::new("dense");
    let x = b.input("x", DType::F32, &[4]);
    let y = b.output("y", DType::F32, &[4]);
    b.begin_block("main", Repeat::Once);
    let x = b.read_input("x", x);
    let h = b.dense_with("up", x, 8, Fused::default());
    let bias = b.constant("up.bias", &[8], 0.5);
    let h = b.add("up.biased", h, bias);
    let h = b.unary("up.act", Act::Gelu, h);
    let d = b.dense_with("down", h, 4, Fused::default());
    let s = b.add("skip", x, d);
    let n = b.norm("norm", s, 1e-5);
    let twice = b.add("twice", n, s);
    let n = b.norm("norm2", twice, 1e-5);
    let n = b.add("last", n, twice);
    b.emit("y", y, n);
    b.finish().unwrap()
}

#[test]
fn linear_takes_bias_activation_and_residual() {
    let program = run("fuse_linear", dense());
    insta::assert_snapshot!(nodes(&program), @r"
    n0 x = input in0 all () -> f32[batch, 4]
    n1 up = linear bias gelu (n0 f32[batch, 4], up.weight f32[4, 8], up.bias f32[8]) -> f32[batch, 8]
    n2 down = linear residual (n1 f32[batch, 8], down.weight f32[8, 4], n0 f32[batch, 4]) -> f32[batch, 4]
    n3 norm = layer_norm 1e-5 (n2 f32[batch, 4], norm.gamma f32[4], norm.beta f32[4]) -> f32[batch, 4]
    n4 twice = add (n3 f32[batch, 4], n2 f32[batch, 4]) -> f32[batch, 4]
    n5 norm2 = layer_norm 1e-5 (n4 f32[batch, 4], norm2.gamma f32[4], norm2.beta f32[4]) -> f32[batch, 4]
    n6 last = add (n5 f32[batch, 4], n4 f32[batch, 4]) -> f32[batch, 4]
    n7 y = emit out0 (n6 f32[batch, 4])
    ");
}

#[test]
fn norm_takes_the_sum_and_yields_it() {
    let program = run("fuse_norm", dense());
    insta::assert_snapshot!(nodes(&program), @r"
    n0 x = input in0 all () -> f32[batch, 4]
    n1 up = linear (n0 f32[batch, 4], up.weight f32[4, 8]) -> f32[batch, 8]
    n2 up.biased = add (n1 f32[batch, 8], up.bias f32[8]) -> f32[batch, 8]
    n3 up.act = gelu (n2 f32[batch, 8]) -> f32[batch, 8]
    n4 down = linear (n3 f32[batch, 8], down.weight f32[8, 4]) -> f32[batch, 4]
    n5 norm = add_layer_norm 1e-5 (n0 f32[batch, 4], n4 f32[batch, 4], norm.gamma f32[4], norm.beta f32[4]) -> f32[batch, 4], f32[batch, 4]
    n6 norm2 = add_layer_norm 1e-5 (n5.1 f32[batch, 4], n5 f32[batch, 4], norm2.gamma f32[4], norm2.beta f32[4]) -> f32[batch, 4], f32[batch, 4]
    n7 last = add (n6.1 f32[batch, 4], n6 f32[batch, 4]) -> f32[batch, 4]
    n8 y = emit out0 (n7 f32[batch, 4])
    ");
}

#[test]
fn a_result_with_two_readers_stays() {
    let mut b = ProgramBuilder::new("shared");
    let x = b.input("x", DType::F32, &[4]);
    let y = b.output("y", DType::F32, &[4]);
    b.begin_block("main", Repeat::Once);
    let x = b.read_input("x", x);
    let h = b.dense("fc", x, 4, None);
    let a = b.unary("act", Act::Relu, h);
    let double = b.add("double", a, a);
    let s = b.add("sum", double, h);
    b.emit("y", y, s);
    let before = b.finish().unwrap();
    let expected = nodes(&before);
    assert_eq!(nodes(&run("fuse_linear", before)), expected);
}

#[test]
fn an_activation_behind_a_residual_stays() {
    let mut b = ProgramBuilder::new("order");
    let x = b.input("x", DType::F32, &[4]);
    let y = b.output("y", DType::F32, &[4]);
    b.begin_block("main", Repeat::Once);
    let x = b.read_input("x", x);
    let h = b.dense("fc", x, 4, None);
    let s = b.add("sum", h, x);
    let a = b.unary("act", Act::Relu, s);
    b.emit("y", y, a);
    let program = optimize(b.finish().unwrap()).unwrap();
    insta::assert_snapshot!(nodes(&program), @r"
    n0 x = input in0 all () -> f32[batch, 4]
    n1 fc = linear bias residual (n0 f32[batch, 4], fc.weight f32[4, 4], fc.bias f32[4], n0 f32[batch, 4]) -> f32[batch, 4]
    n2 act = relu (n1 f32[batch, 4]) -> f32[batch, 4]
    n3 y = emit out0 (n2 f32[batch, 4])
    ");
}

/// A residual block of a CNN with a strided shortcut.
fn cnn() -> Program {
    let mut b = ProgramBuilder::new("cnn");
    let x = b.input("image", DType::F32, &[3, 8, 8]);
    let y = b.output("y", DType::F32, &[2]);
    b.begin_block("main", Repeat::Once);
    let x = b.read_input("image", x);
    let none = Fused::default();
    let h = b.conv("conv1", x, 4, Window::square(3, 2, 1), 1, none);
    let h = b.bn("bn1", h, 1e-5);
    let h = b.unary("relu1", Act::Relu, h);
    let h = b.conv("conv2", h, 4, Window::square(3, 1, 1), 4, none);
    let h = b.bn("bn2", h, 1e-5);
    let short = b.conv("short", x, 4, Window::square(1, 2, 0), 1, none);
    let short = b.bn("short.bn", short, 1e-5);
    let s = b.add("sum", h, short);
    let s = b.unary("relu2", Act::Relu, s);
    let p = b.pool2d("pool", s, Pool::Max, Window::square(2, 2, 0));
    let p = b.global_average_pool("average", p);
    let z = b.dense("fc", p, 2, None);
    b.emit("y", y, z);
    b.finish().unwrap()
}

#[test]
fn convolutions_take_norms_residuals_and_activations() {
    let program = optimize(cnn()).unwrap();
    insta::assert_snapshot!(nodes(&program), @r"
    n0 image = input in0 all () -> f32[batch, 3, 8, 8]
    n1 conv1 = conv2d 3x3/2 pad 1 bias relu (n0 f32[batch, 3, 8, 8], conv1.folded.weight f32[4, 3, 3, 3], conv1.folded.bias f32[4]) -> f32[batch, 4, 4, 4]
    n2 conv2 = conv2d 3x3/1 pad 1 groups 4 bias (n1 f32[batch, 4, 4, 4], conv2.folded.weight f32[4, 1, 3, 3], conv2.folded.bias f32[4]) -> f32[batch, 4, 4, 4]
    n3 short = conv2d 1x1/2 pad 0 bias residual relu (n0 f32[batch, 3, 8, 8], short.folded.weight f32[4, 3, 1, 1], short.folded.bias f32[4], n2 f32[batch, 4, 4, 4]) -> f32[batch, 4, 4, 4]
    n4 pool = pool2d max 2x2/2 pad 0 (n3 f32[batch, 4, 4, 4]) -> f32[batch, 4, 2, 2]
    n5 average = global_average_pool (n4 f32[batch, 4, 2, 2]) -> f32[batch, 4]
    n6 fc = linear bias (n5 f32[batch, 4], fc.weight f32[4, 2], fc.bias f32[2]) -> f32[batch, 2]
    n7 y = emit out0 (n6 f32[batch, 2])
    ");
}

/// Passes may run alone, before constants are folded.
#[test]
fn what_is_no_weight_is_neither_folded_nor_moved() {
    let mut b = ProgramBuilder::new("bias");
    let x = b.input("x", DType::F32, &[1, 1, 1]);
    let y = b.output("y", DType::F32, &[2, 1, 1]);
    b.begin_block("main", Repeat::Once);
    let x = b.read_input("x", x);
    let w = b.seeded("w", &[2, 1, 1, 1], 1);
    let bias = b.constant("bias", &[2], 3.0);
    let bias = b.scale("twice", bias, 2.0);
    let h = b.conv2d("conv", x, w, Window::square(1, 1, 0), 1, Fused::bias(bias));
    let h = b.bn("bn", h, 1e-5);
    b.emit("y", y, h);
    let program = b.finish().unwrap();
    let before = nodes(&program);
    assert_eq!(nodes(&run("fold_batch_norm", program.clone())), before);
    let whole = nodes(&optimize(program).unwrap());
    assert!(!whole.contains("batch_norm"), "{whole}");

    let mut b = ProgramBuilder::new("gamma");
    let x = b.input("x", DType::F32, &[4]);
    let y = b.output("y", DType::F32, &[4]);
    b.begin_block("main", Repeat::Once);
    let x = b.read_input("x", x);
    let s = b.add("sum", x, x);
    let gamma = b.constant("gamma", &[4], 3.0);
    let beta = b.constant("beta", &[4], 0.0);
    let gamma = b.scale("twice", gamma, 2.0);
    let n = b.layer_norm("norm", s, gamma, beta, 1e-5);
    b.emit("y", y, n);
    let program = b.finish().unwrap();
    let before = nodes(&program);
    assert_eq!(nodes(&run("fuse_norm", program.clone())), before);
    let whole = nodes(&optimize(program).unwrap());
    assert!(whole.contains("add_layer_norm"), "{whole}");
}

#[test]
fn folding_a_norm_keeps_the_numbers() {
    let mut b = ProgramBuilder::new("fold");
    let x = b.input("x", DType::F32, &[1, 1, 1]);
    let y = b.output("y", DType::F32, &[2, 1, 1]);
    b.begin_block("main", Repeat::Once);
    let x = b.read_input("x", x);
    let w = b.data("w", Tensor::from_f32(&[2, 1, 1, 1], &[3.0, 5.0]));
    let bias = b.data("bias", Tensor::from_f32(&[2], &[1.0, 2.0]));
    let h = b.conv2d("conv", x, w, Window::square(1, 1, 0), 1, Fused::bias(bias));
    let [gamma, beta, mean, var] = [
        ("gamma", [2.0, 4.0]),
        ("beta", [0.5, 1.0]),
        ("mean", [7.0, 3.0]),
        ("var", [3.0, 15.0]),
    ]
    .map(|(name, v)| b.data(name, Tensor::from_f32(&[2], &v)));
    let h = b.batch_norm("bn", h, [gamma, beta, mean, var], 1.0);
    b.emit("y", y, h);
    let program = run("fold_batch_norm", b.finish().unwrap());
    // s = 2 / sqrt(4), 4 / sqrt(16)
    assert_eq!(program.weights[0].source.to_f32(2), [3.0, 5.0]);
    assert_eq!(
        program.weights[1].source.to_f32(2),
        [1.0 - 7.0 + 0.5, 2.0 - 3.0 + 1.0]
    );
    assert_eq!(program.weights.len(), 2);
}

#[test]
fn optimizing_twice_changes_nothing_more() {
    for program in [dense(), cnn()] {
        let once = optimize(program).unwrap();
        let twice = optimize(once.clone()).unwrap();
        assert_eq!(dump(&once, None), dump(&twice, None));
    }
}

#[test]
fn the_whole_dump() {
    let mut b = ProgramBuilder::new("tiny");
    let ids = b.sequence_ids("ids", 6, 10);
    let tokens = b.output_sequence("tokens", DType::I32, &[]);
    b.begin_block("encoder", Repeat::Once);
    let i = b.read_input("ids", ids);
    let x = b.embed("embed", i, 10, 8);
    let x = b.norm("norm", x, 1e-5);
    let memory = b.cross_memory("cross", x, 8, 6);
    b.begin_block("decoder", Repeat::UntilStop { max: 5 });
    let last = b.vector_state("last", DType::I32, &[], 1.0);
    let t = b.vec_read("token", last);
    let x = b.embed("target", t, 12, 8);
    let x = b.cross_attention("cross.attn", x, 2, memory, Some(x));
    let logits = b.dense("out", x, 12, None);
    let best = b.arg_max("best", logits);
    b.vec_write("keep", last, best);
    b.emit("emit", tokens, best);
    b.stop("stop", best, 2);
    let program = b.finish().unwrap();
    let segments = Segments::every(&program, 4);
    insta::assert_snapshot!(dump(&program, Some(&segments)), @r"
    program tiny: 17 nodes, 2 blocks, 588 parameters
    input in0 ids: i32[len], len <= 6, ids < 10
    output out0 tokens: i32[len]
    state s0 cross.keys: f32[len <= 6, 8]
    state s1 cross.values: f32[len <= 6, 8]
    state s2 last: i32[] = 1
    block k0 encoder: once
      segment 0
      n0 ids = input in0 all () -> i32[rows] | moves 4 B/row
      n1 embed = embedding (n0 i32[rows], embed.table f32[10, 8]) -> f32[rows, 8] | moves 68 B/row, live 4 B/row
      n2 norm = layer_norm 1e-5 (n1 f32[rows, 8], norm.gamma f32[8], norm.beta f32[8]) -> f32[rows, 8] | flops 64/row, weights 64 B, moves 64 B/row, live 32 B/row
      n3 cross.k = linear bias (n2 f32[rows, 8], cross.k.weight f32[8, 8], cross.k.bias f32[8]) -> f32[rows, 8] | flops 136/row, weights 288 B, moves 64 B/row, live 32 B/row
      segment 1
      n4 cross.v = linear bias (n2 f32[rows, 8], cross.v.weight f32[8, 8], cross.v.bias f32[8]) -> f32[rows, 8] | flops 136/row, weights 288 B, moves 64 B/row, live 64 B/row
      n5 cross.k.keep = seq_write s0 all (n3 f32[rows, 8]) | moves 32 B/row, live 64 B/row
      n6 cross.v.keep = seq_write s1 all (n4 f32[rows, 8]) | moves 32 B/row, live 32 B/row
    block k1 decoder: until stop, at most 5
      segment 0
      n7 token = vec_read s2 () -> i32[batch] | moves 4 B/sample
      n8 target = embedding (n7 i32[batch], target.table f32[12, 8]) -> f32[batch, 8] | moves 68 B/sample, live 4 B/sample
      n9 cross.attn.q = linear bias (n8 f32[batch, 8], cross.attn.q.weight f32[8, 8], cross.attn.q.bias f32[8]) -> f32[batch, 8] | flops 136/sample, weights 288 B, moves 64 B/sample, live 32 B/sample
      n10 cross.attn.scores = state_attention 2/2x4 s0 s1 (n9 f32[batch, 8]) -> f32[batch, 8] | flops 40/pair, moves 64 B/sample, moves 64 B/pair, live 64 B/sample
      segment 1
      n11 cross.attn.o = linear bias residual (n10 f32[batch, 8], cross.attn.o.weight f32[8, 8], cross.attn.o.bias f32[8], n8 f32[batch, 8]) -> f32[batch, 8] | flops 144/sample, weights 288 B, moves 96 B/sample, live 64 B/sample
      n12 out = linear bias (n11 f32[batch, 8], out.weight f32[8, 12], out.bias f32[12]) -> f32[batch, 12] | flops 204/sample, weights 432 B, moves 80 B/sample, live 32 B/sample
      n13 best = arg_max (n12 f32[batch, 12]) -> i32[batch] | flops 12/sample, moves 52 B/sample, live 48 B/sample
      n14 keep = vec_write s2 (n13 i32[batch]) | moves 4 B/sample, live 4 B/sample
      segment 2
      n15 emit = emit out0 (n13 i32[batch]) | moves 4 B/sample, live 4 B/sample
      n16 stop = stop 2 (n13 i32[batch]) | moves 4 B/sample, live 4 B/sample
    ");
}

/// Two directions of an LSTM over words, a second layer in the loop of the first, and a GRU.
fn recurrent() -> Program {
    let mut b = ProgramBuilder::new("recurrent");
    let ids = b.sequence_ids("ids", 9, 20);
    let y = b.output_sequence("y", DType::F32, &[3]);
    let back = b.sequence_state("back", 2, 9);
    let table = b.seeded_within("table", &[20, 4], 1.0);
    b.begin_block("backward", Repeat::PerInputStep { stride: 1 });
    let i = b.read_input_at("id.reverse", ids, At::Reverse);
    let x = b.embedding("embed.reverse", i, table);
    let h = b.lstm("backward", x, 2);
    b.seq_write("keep", back, At::Reverse, h);
    b.begin_block("forward", Repeat::PerInputStep { stride: 1 });
    let i = b.read_input("id", ids);
    let x = b.embedding("embed", i, table);
    let h = b.lstm("forward", x, 2);
    let second = b.lstm("second", h, 2);
    let other = b.seq_read("other", back, At::Step);
    let both = b.concat("both", &[x, other]);
    let state = b.vector_state("gru.h", DType::F32, &[3], 0.0);
    let g = b.gru("gru", both, 3, state);
    let wide = b.dense("wide", second, 3, None);
    let s = b.add("sum", g, wide);
    b.emit("y", y, s);
    b.finish().unwrap()
}

#[test]
fn input_products_move_in_front_of_their_loop() {
    let program = run("project_ahead", recurrent());
    let blocks: Vec<_> = program.blocks.iter().map(|b| b.name.as_str()).collect();
    assert_eq!(
        blocks,
        ["backward.ahead", "backward", "forward.ahead", "forward"]
    );
    insta::assert_snapshot!(nodes(&program), @r"
    n0 id.reverse.ahead = input in0 all () -> i32[rows]
    n1 embed.reverse.ahead = embedding (n0 i32[rows], table f32[20, 4]) -> f32[rows, 4]
    n2 backward.ahead = linear (n1 f32[rows, 4], backward.w_ih f32[4, 8]) -> f32[rows, 8]
    n3 backward.ahead.keep = seq_write s0 all (n2 f32[rows, 8])
    n4 backward.given = seq_read s0 reverse () -> f32[batch, 8]
    n5 backward = lstm_cell ahead s1 s2 (n4 f32[batch, 8], backward.w_hh f32[2, 8], backward.bias f32[8]) -> f32[batch, 2]
    n6 keep = seq_write s3 reverse (n5 f32[batch, 2])
    n7 id.ahead = input in0 all () -> i32[rows]
    n8 embed.ahead = embedding (n7 i32[rows], table f32[20, 4]) -> f32[rows, 4]
    n9 forward.ahead = linear (n8 f32[rows, 4], forward.w_ih f32[4, 8]) -> f32[rows, 8]
    n10 forward.ahead.keep = seq_write s0 all (n9 f32[rows, 8])
    n11 other.ahead = seq_read s3 all () -> f32[rows, 2]
    n12 both.ahead = concat (n8 f32[rows, 4], n11 f32[rows, 2]) -> f32[rows, 6]
    n13 gru.ahead = linear bias (n12 f32[rows, 6], gru.w_ih f32[6, 9], gru.b_ih f32[9]) -> f32[rows, 9]
    n14 gru.ahead.keep = seq_write s4 all (n13 f32[rows, 9])
    n15 forward.given = seq_read s0 step () -> f32[batch, 8]
    n16 forward = lstm_cell ahead s5 s6 (n15 f32[batch, 8], forward.w_hh f32[2, 8], forward.bias f32[8]) -> f32[batch, 2]
    n17 second = lstm_cell s7 s8 (n16 f32[batch, 2], second.w_ih f32[2, 8], second.w_hh f32[2, 8], second.bias f32[8]) -> f32[batch, 2]
    n18 gru.given = seq_read s4 step () -> f32[batch, 9]
    n19 gru = gru_cell ahead s9 (n18 f32[batch, 9], gru.w_hh f32[3, 9], gru.b_hh f32[9]) -> f32[batch, 3]
    n20 wide = linear bias (n17 f32[batch, 2], wide.weight f32[2, 3], wide.bias f32[3]) -> f32[batch, 3]
    n21 sum = add (n19 f32[batch, 3], n20 f32[batch, 3]) -> f32[batch, 3]
    n22 y = emit out0 (n21 f32[batch, 3])
    ");
    // The loops in a row share the rows of four gates of two.
    let ahead = program.states.iter().filter(|s| s.name.ends_with(".ahead"));
    assert_eq!(ahead.count(), 2);
    let again = run("project_ahead", program.clone());
    assert_eq!(nodes(&again), nodes(&program));
}

#[test]
fn products_of_earlier_passes_and_strided_loops_stay() {
    let mut b = ProgramBuilder::new("stay");
    let x = b.sequence("x", DType::F32, &[4], 9);
    let y = b.output_sequence("y", DType::F32, &[4]);
    let kept = b.sequence_state("kept", 4, 9);
    let last = b.vector_state("last", DType::F32, &[4], 0.0);
    b.begin_block("strided", Repeat::PerInputStep { stride: 2 });
    let v = b.read_input("strided.x", x);
    let h = b.lstm("strided", v, 4);
    b.seq_write("keep", kept, At::Step, h);
    b.begin_block("loop", Repeat::PerInputStep { stride: 1 });
    let half = b.seq_read("half", kept, At::Step);
    let a = b.lstm("of.half", half, 4);
    let old = b.vec_read("old", last);
    let c = b.lstm("of.old", old, 4);
    b.vec_write("last.keep", last, a);
    let s = b.add("sum", a, c);
    b.emit("y", y, s);
    let program = b.finish().unwrap();
    assert_eq!(
        nodes(&run("project_ahead", program.clone())),
        nodes(&program)
    );
}

#[test]
fn elementwise_nodes_become_one_with_what_they_read_beside() {
    let mut b = ProgramBuilder::new("gelu");
    let x = b.input("x", DType::F32, &[4]);
    let y = b.output("y", DType::F32, &[4]);
    b.begin_block("main", Repeat::Once);
    let x = b.read_input("x", x);
    // The approximation of gelu by tanh, as an exporter writes it out.
    let square = b.mul("square", x, x);
    let cube = b.mul("cube", square, x);
    let s = b.scale("small", cube, 0.044_715);
    let s = b.add("inner", x, s);
    let s = b.scale("factor", s, 0.797_884_6);
    let s = b.unary("tanh", Act::Tanh, s);
    let one = b.constant("one", &[4], 1.0);
    let s = b.add("more", s, one);
    let s = b.mul("times", x, s);
    let s = b.scale("half", s, 0.5);
    b.emit("y", y, s);
    let program = run("fuse_elementwise", b.finish().unwrap());
    insta::assert_snapshot!(nodes(&program), @r"
    n0 x = input in0 all () -> f32[batch, 4]
    n1 square = elementwise mul:v mul:0 scale:0.044715 add:0 scale:0.7978846 tanh add:1 mul:0 scale:0.5 (n0 f32[batch, 4], one f32[4]) -> f32[batch, 4]
    n2 y = emit out0 (n1 f32[batch, 4])
    ");
}

#[test]
fn elementwise_nodes_with_other_readers_stay() {
    let mut b = ProgramBuilder::new("shared");
    let x = b.input("x", DType::F32, &[4]);
    let y = b.output("y", DType::F32, &[4]);
    let z = b.output("z", DType::F32, &[4]);
    b.begin_block("main", Repeat::Once);
    let x = b.read_input("x", x);
    let a = b.unary("act", Act::Tanh, x);
    // Read by the output too.
    let c = b.scale("scaled", a, 2.0);
    b.emit("z", z, a);
    // Read twice, by one node.
    let square = b.mul("square", c, c);
    // Two of a kind, of which the later is nearer.
    let d = b.unary("other", Act::Sigmoid, x);
    let s = b.sub("difference", d, square);
    b.emit("y", y, s);
    let program = run("fuse_elementwise", b.finish().unwrap());
    insta::assert_snapshot!(nodes(&program), @r"
    n0 x = input in0 all () -> f32[batch, 4]
    n1 act = tanh (n0 f32[batch, 4]) -> f32[batch, 4]
    n2 z = emit out1 (n1 f32[batch, 4])
    n3 scaled = elementwise scale:2 mul:v (n1 f32[batch, 4]) -> f32[batch, 4]
    n4 other = elementwise sigmoid sub:1 (n0 f32[batch, 4], n3 f32[batch, 4]) -> f32[batch, 4]
    n5 y = emit out0 (n4 f32[batch, 4])
    ");
}

#[test]
fn a_long_chain_is_cut() {
    let mut b = ProgramBuilder::new("long");
    let x = b.input("x", DType::F32, &[4]);
    let y = b.output("y", DType::F32, &[4]);
    b.begin_block("main", Repeat::Once);
    let mut x = b.read_input("x", x);
    for i in 0..40 {
        x = b.unary(&format!("tanh{i}"), Act::Tanh, x);
    }
    b.emit("y", y, x);
    let program = run("fuse_elementwise", b.finish().unwrap());
    let steps = program.nodes.iter().filter_map(|n| match &n.op {
        lazybatch_graph::Op::Elementwise(steps) => Some(steps.len()),
        _ => None,
    });
    assert_eq!(steps.collect::<Vec<_>>(), [16, 16, 8]);
}

/// Sums of themselves, 64 one behind another, have 2^64 paths, and a long chain more nodes than a stack
/// has room for.
#[test]
fn products_ahead_of_deep_operands_are_found() {
    let mut b = ProgramBuilder::new("deep");
    let x = b.sequence("x", DType::F32, &[2], 5);
    let y = b.output_sequence("y", DType::F32, &[2]);
    b.begin_block("loop", Repeat::PerInputStep { stride: 1 });
    let mut v = b.read_input_at("x", x, At::Step);
    for i in 0..64 {
        v = b.add(&format!("double{i}"), v, v);
    }
    for i in 0..10_000 {
        v = b.scale(&format!("half{i}"), v, 0.5);
    }
    let h = b.lstm("lstm", v, 2);
    b.emit("y", y, h);
    let moved = run("project_ahead", b.finish().unwrap());
    assert_eq!(moved.blocks.len(), 2);
    // Input, sums, scales, product, state.
    assert_eq!(moved.blocks[0].nodes.len(), 1 + 64 + 10_000 + 1 + 1);
    assert_eq!(moved.blocks[1].nodes.len(), 3);
}
