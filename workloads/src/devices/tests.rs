//! Latencies worked out by hand, published figures as bounds, and rules that hold for all tables.
#![allow(clippy::unwrap_used, reason = "tests")]

use lazybatch_graph::{DType, Fused, Program, ProgramBuilder, Repeat, Window, cost};
use lazybatch_sla::Profile;
use lazybatch_sla::profile::By;
use smallvec::smallvec;

use super::work::{NodeWork, Pricing, Product, Reach};
use super::*;
use crate::lengths::Lengths;

/// The models of the grid `paper`.
const PAPER: [&str; 7] = [
    "resnet50",
    "vgg16",
    "mobilenet-v1",
    "gnmt",
    "transformer",
    "bert-base",
    "las",
];

/// Device models that compute.
fn computed() -> impl Iterator<Item = &'static DeviceModel> {
    let measured = |d: &&DeviceModel| matches!(d.machine, Machine::Measured(_));
    DEVICES.iter().filter(move |d| !measured(d))
}

fn array() -> Systolic {
    match find("npu").unwrap().machine {
        Machine::Systolic(array) => array,
        _ => unreachable!("npu is an array"),
    }
}

fn roofline(name: &str) -> Roofline {
    match find(name).unwrap().machine {
        Machine::Roofline(gpu) => gpu,
        _ => unreachable!("{name} is a roofline"),
    }
}

/// One linear layer of 1024 to 4096 without bias, and its work for `rows` samples.
fn linear(rows: u64) -> NodeWork {
    let mut b = ProgramBuilder::new("linear");
    let x = b.input("x", DType::F32, &[1024]);
    b.begin_block("main", Repeat::Once);
    let x = b.read_input("x", x);
    b.dense_with("fc", x, 4096, Fused::default());
    work_of(&b.finish().unwrap(), "fc", rows)
}

/// One 3 x 3 convolution of 64 to 64 channels on 56 x 56, and its work for `rows` samples.
fn conv(rows: u64, groups: usize) -> NodeWork {
    let mut b = ProgramBuilder::new("conv");
    let x = b.input("x", DType::F32, &[64, 56, 56]);
    b.begin_block("main", Repeat::Once);
    let x = b.read_input("x", x);
    b.conv(
        "conv",
        x,
        64,
        Window::square(3, 1, 1),
        groups,
        Fused::default(),
    );
    work_of(&b.finish().unwrap(), "conv", rows)
}

fn work_of(program: &Program, name: &str, rows: u64) -> NodeWork {
    let at = program.nodes.iter().position(|n| n.name == name).unwrap();
    let reach = Reach::of(&Lengths::fixed(1, 1));
    Pricing::new(program, reach).work(lazybatch_graph::NodeId::new(at), rows)
}

fn close(got: f64, expected: f64) {
    assert!((got / expected - 1.0).abs() < 1e-9, "{got}, not {expected}");
}

/// Microseconds of a request alone: `input` and `output` positions.
fn alone(profile: &Profile, input: u64, output: u64) -> f64 {
    let mut total = 0.0;
    for block in &profile.models[0].blocks {
        let passes = match block.repeat() {
            Repeat::Once => 1,
            Repeat::PerInputStep { stride } => input.div_ceil(u64::from(stride)),
            Repeat::UntilStop { .. } => output,
        };
        for node in &block.nodes {
            let x = if node.by == By::Rows { input } else { 1 };
            let at = node.latency_us.iter().rfind(|p| p.0 <= x.max(1)).unwrap();
            total += passes as f64 * at.1;
        }
    }
    total
}

#[test]
fn one_tile_takes_load_row_and_drain() {
    let array = array();
    let p = |m, k, n, count| Product { m, k, n, count };
    // 128 cycles of loading, one row, 254 cycles until the last result has left the array.
    assert_eq!(array.cycles(&[p(1, 128, 128, 1)]), 128 + 1 + 254);
    assert_eq!(array.cycles(&[p(1000, 128, 128, 1)]), 128 + 1000 + 254);
    // Two tiles along k: the second one's weights arrive while the first one's rows stream.
    assert_eq!(array.cycles(&[p(1000, 129, 1, 1)]), 128 + 2 * 1000 + 254);
    assert_eq!(array.cycles(&[p(3, 256, 256, 1)]), 128 + 3 * 128 + 3 + 254);
    // Sixty-four groups of 9 x 1, fourteen to a tile.
    assert_eq!(array.tiles(&p(10, 9, 1, 64)), 5);
    // Heads of 64 features over 100 positions fit one tile alone; over 40 positions, two.
    assert_eq!(array.tiles(&p(100, 64, 100, 8)), 8);
    assert_eq!(array.tiles(&p(40, 64, 40, 8)), 4);
    assert_eq!(array.tiles(&p(1, 300, 300, 2)), 18);
    assert_eq!(array.cycles(&[]), 0);
}

#[test]
fn a_product_on_the_array_by_hand() {
    // 1024 x 4096 are 8 x 32 tiles. At batch 1 each takes the 128 cycles in which the next one's
    // weights arrive, which is slower than memory.
    let work = linear(1);
    assert_eq!(work.flops(), 2 * 1024 * 4096);
    assert_eq!(work.bytes(), 2 * (1024 * 4096 + 1024 + 4096));
    let cycles = 128 + 255 * 128 + 1 + 254;
    close(array().node_ns(&work), f64::from(cycles) / 0.7);
    assert!(array().node_ns(&work) > work.bytes() as f64 / 360.0);
    // The weights need two parts of their buffer, the operand fits its own: each moves once.
    assert_eq!(array().traffic(&work), work.bytes());
    // At 1024 rows the array is busy: 256 tiles of 1024 rows at 0.7 cycles a nanosecond.
    let cycles = 128 + 256 * 1024 + 254;
    close(array().node_ns(&linear(1024)), f64::from(cycles) / 0.7);
    // At 2^14 rows the operand is four times its buffer and the weights twice theirs: reading the
    // operand of 32 MiB twice costs as much as reading weights of 8 MiB four times and less than
    // both again.
    let work = linear(1 << 14);
    let (operand, weights, result) = (1u64 << 25, 1u64 << 23, 1u64 << 27);
    let expected = result + (4 * weights + operand).min(weights + 2 * operand);
    assert_eq!(array().traffic(&work), expected);
}

#[test]
fn a_convolution_on_the_array_by_hand() {
    // 56 x 56 rows through ceil(576 / 128) x 1 tiles.
    let work = conv(1, 1);
    assert_eq!(
        work.products[..],
        [Product {
            m: 3136,
            k: 576,
            n: 64,
            count: 1
        }]
    );
    close(
        array().node_ns(&work),
        f64::from(128 + 5 * 3136 + 254) / 0.7,
    );
    // Depthwise: 64 channels of 9 x 1, fourteen to a tile; traffic is 2 x 2 x 64 x 3136 bytes and
    // 64 x 9 weights.
    let work = conv(1, 64);
    let cycles = f64::from(128 + 5 * 3136 + 254);
    let traffic = f64::from(4 * 64 * 3136 + 2 * 64 * 9);
    close(array().node_ns(&work), (cycles / 0.7).max(traffic / 360.0));
}

#[test]
fn rooflines_by_hand() {
    for (name, tflops, gbps) in [
        ("v100", 125.0, 900.0),
        ("a100", 312.0, 1555.0),
        ("h100", 989.4, 3350.0),
        ("h200", 989.4, 4800.0),
    ] {
        let gpu = roofline(name);
        // At batch 1 the weights' 8 MiB, at 2^14 rows the products, at 0.85 and 0.7 of the peak.
        let one = linear(1);
        close(gpu.node_ns(&one), one.bytes() as f64 / (gbps * 0.85));
        let many = (1u64 << 14) as f64 * 2.0 * 1024.0 * 4096.0;
        close(gpu.node_ns(&linear(1 << 14)), many / (tflops * 1e3 * 0.7));
        let conv_flops = 64.0 * 3136.0 * 2.0 * 576.0 * 64.0;
        let conv_bytes = (2 * (64 * 2 * 64 * 3136 + 64 * 64 * 9)) as f64;
        let expected = (conv_flops / (tflops * 700.0)).max(conv_bytes / (gbps * 0.85));
        close(gpu.node_ns(&conv(64, 1)), expected);
    }
    let vector = NodeWork {
        products: smallvec![],
        other_flops: 157_000,
        ..NodeWork::default()
    };
    close(roofline("v100").node_ns(&vector), 10.0 / 0.7);
}

#[test]
fn work_is_that_of_the_graph_costs() {
    for entry in zoo::ENTRIES.iter().filter(|e| e.name != "dlrm-kaggle") {
        let program = entry.program().unwrap();
        let reach = Reach::of(&Lengths::load(entry.lengths).unwrap());
        let pricing = Pricing::new(&program, reach);
        for n in 0..program.nodes.len() {
            let id = lazybatch_graph::NodeId::new(n);
            let cost = cost::node_cost(&program, id);
            // One member of the usual length.
            let work = pricing.work(id, reach.input);
            let (attends, len) = match program.node(id).op {
                lazybatch_graph::Op::Attention { .. } => (true, reach.input),
                lazybatch_graph::Op::StateAttention { .. }
                | lazybatch_graph::Op::AdditiveAttention { .. } => (true, 0),
                _ => (false, 0),
            };
            if attends && len == 0 {
                // Over a state: what depends on pairs is that of some number of positions.
                let per_pair = reach.input * cost.flops_per_pair;
                let fixed = reach.input * cost.flops_per_row;
                let positions = (work.flops() - fixed) / per_pair;
                let both = reach.source + reach.target;
                assert!([reach.source, reach.target, both].contains(&positions));
                continue;
            }
            let (flops, bytes) = (cost.flops(reach.input, len), cost.bytes(reach.input, len));
            assert_eq!(work.flops(), flops, "{}", program.node(id).name);
            let off = work.bytes().abs_diff(bytes / 2);
            assert!(off <= 2, "{}: {off}", program.node(id).name);
        }
    }
}

#[test]
fn tables_rise_with_the_batch_and_read_back() {
    for device in computed() {
        for overheads in [true, false] {
            let profile = device.profile(&PAPER, overheads).unwrap();
            let back = Profile::parse("-", &profile.to_json()).unwrap();
            assert_eq!(back.to_json(), profile.to_json());
            assert_eq!(profile.dispatch_us > 0.0, overheads);
            assert_eq!(profile.copy_gbps > 0.0, overheads);
            for (model, name) in profile.models.iter().zip(PAPER) {
                assert_eq!(model.name, name);
                let program = zoo::find(name).unwrap().program().unwrap();
                assert_eq!(model.blocks.len(), program.blocks.len());
                let mut merges = 0.0;
                for (block, of_program) in model.blocks.iter().zip(&program.blocks) {
                    let covered = block.nodes.iter().map(|n| n.num_nodes.unwrap_or(1));
                    assert_eq!(covered.sum::<u32>() as usize, of_program.nodes.len());
                    assert_eq!(block.repeat(), of_program.repeat);
                    for node in &block.nodes {
                        let table = &node.latency_us;
                        assert!(
                            table.is_sorted_by(|a, b| a.1 <= b.1),
                            "{name} {}",
                            node.name
                        );
                        assert!(table[0].0 == 1 && table.last().unwrap().0 >= 64);
                        merges += node.merge_bytes_per_member;
                    }
                    assert_eq!(block.nodes[0].merge_bytes_per_member, 0.0, "a loop's head");
                }
                assert_eq!(merges > 0.0, overheads, "{name}");
            }
        }
    }
}

#[test]
fn totals_stand_in_reason_to_published_figures() {
    // ResNet-50 has 4.1e9 multiply-adds (torchvision), VGG-16 15.5e9, MobileNetV1 0.57e9, BERT-base
    // 85e6 weights of layers used once a position: at least as long as at peak, and on the array at
    // most a few times that.
    let array = array();
    for (name, macs, most) in [
        ("resnet50", 4.1e9, 3.5),
        ("vgg16", 15.5e9, 3.5),
        ("mobilenet-v1", 0.57e9, 12.0),
    ] {
        let profile = find("npu").unwrap().profile(&[name], false).unwrap();
        let model = &profile.models[0];
        let at64: f64 = model.blocks[0]
            .nodes
            .iter()
            .map(|n| n.latency_us.last().unwrap().1)
            .sum();
        let peak_us = 64.0 * 2.0 * macs / array.peak_flops_per_ns() / 1e3;
        let ratio = at64 / peak_us;
        assert!((0.98..most).contains(&ratio), "{name}: {ratio} of peak");
    }
    // All weights of BERT-base's layers are read once, however short the input.
    for device in computed() {
        let profile = device.profile(&["bert-base"], false).unwrap();
        let gbps = match device.machine {
            Machine::Systolic(array) => array.memory_gbps,
            Machine::Roofline(gpu) => gpu.memory_gbps,
            Machine::Measured(_) => unreachable!("not computed"),
        };
        let least = 2.0 * 85e6 / gbps / 1e3;
        let got = alone(&profile, 1, 0);
        assert!(
            (1.0..3.0).contains(&(got / least)),
            "{}: {got} us",
            device.name
        );
    }
    // Each generation is faster than the one before it.
    let time = |name: &str| {
        alone(
            &find(name).unwrap().profile(&["gnmt"], false).unwrap(),
            20,
            20,
        )
    };
    let times: Vec<f64> = ["v100", "a100", "h100", "h200"].map(time).into();
    assert!(times.is_sorted_by(|a, b| a > b), "{times:?}");
    assert!(time("npu") > times[0]);
}

#[test]
fn lengths_weigh_what_rows_see() {
    // Two members of 2 and 8 positions: a row sees 6.8 on average. Outputs 4 and 1.
    let counts = [((2, 4), 1), ((8, 1), 1)];
    let reach = Reach::of(&Lengths::from_counts("x", counts).unwrap());
    let expected = Reach {
        input: 7,
        source: 3,
        target: 2,
        mean_input: 5,
    };
    assert_eq!(reach, expected);
    let none = Reach::of(&Lengths::fixed(0, 0));
    assert_eq!(
        (none.input, none.source, none.target, none.mean_input),
        (1, 1, 1, 1)
    );
}

#[test]
fn what_a_member_carries_is_counted_in_half_precision() {
    let profile = find("npu").unwrap().profile(&["resnet50"], true).unwrap();
    let nodes = &profile.models[0].blocks[0].nodes;
    // In front of the first pool: 64 channels of 112 x 112.
    let pool = nodes.iter().find(|n| n.name == "stem.pool").unwrap();
    assert_eq!(pool.merge_bytes_per_member, f64::from(2 * 64 * 112 * 112));
    // 53 convolutions, two pools, one linear layer; input and output are fused.
    assert_eq!(nodes.len(), 53 + 2 + 1);
    let weights: u64 = nodes.iter().filter_map(|n| n.weight_bytes).sum();
    // Folded normalisations leave one bias a channel.
    assert_eq!(weights, 2 * (25_557_032 - 26_560));
}

#[test]
fn unknown_names_are_refused() {
    let message = find("tpu").unwrap_err().to_string();
    let expected = "device model: expected one of npu, v100, a100, h100, h200, cpu, got tpu";
    assert_eq!(message, expected);
    assert!(parse("npu:free").is_ok_and(|(d, overheads)| d.name == "npu" && !overheads));
    assert!(parse("h100").is_ok_and(|(d, overheads)| d.name == "h100" && overheads));
    assert!(parse("npu:cheap").is_err());
    let npu = find("npu").unwrap();
    let message = npu.profile(&["no-such"], true).unwrap_err().to_string();
    assert!(
        message.starts_with("model: expected one of resnet50"),
        "{message}"
    );
    let message = npu.profile(&[], true).unwrap_err().to_string();
    assert_eq!(message, "models: expected at least one model, got none");
    let message = npu
        .profile(&["gnmt", "gnmt"], true)
        .unwrap_err()
        .to_string();
    assert!(message.contains("unique names"), "{message}");
    let cpu = find("cpu").unwrap();
    let message = cpu.profile(&["vgg16"], true).unwrap_err().to_string();
    assert!(
        message.starts_with("model: expected one that was measured"),
        "{message}"
    );
}

#[test]
fn measured_profiles_are_valid_and_found_by_model() {
    let cpu = find("cpu").unwrap();
    let Machine::Measured(documents) = cpu.machine else {
        unreachable!("cpu is measured")
    };
    for document in documents {
        let profile = Profile::parse("-", document).unwrap();
        assert_eq!(profile.device, cpu.device);
        let model = &profile.models[0];
        let program = zoo::find(&model.name).unwrap().program().unwrap();
        for (segments, block) in model.program_segments().iter().zip(&program.blocks) {
            let end = segments.last().unwrap().end;
            assert_eq!(
                end as usize,
                block.nodes.len(),
                "{}: {}",
                model.name,
                block.name
            );
        }
        let found = cpu.profile(&[&model.name], true).unwrap();
        assert_eq!(found.models[0].name, model.name);
        assert_eq!(found.models[0].blocks.len(), program.blocks.len());
    }
    assert!(cpu.profile(&["phonemes", "bert-tiny"], false).is_ok());
}
