//! Convolutions and pooling of random shapes against the reference, and against themselves.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use lazybatch_graph::{Act, Bin, DType, Fused, Pool, Program, ProgramBuilder, Repeat, Window};
use lazybatch_kernels::conformance::{Outcome, Problem, check};
use lazybatch_kernels::cpu::level::Level;
use lazybatch_kernels::{CpuDevice, CpuOptions, Device, KernelRegistry};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// A window that fits an image of `h` x `w`.
fn window(rng: &mut ChaCha8Rng, h: usize, w: usize) -> Window {
    loop {
        let kernel = [1, 1, 2, 3, 3, 5, 7][rng.random_range(0..7)];
        let mut draw = |most: usize| rng.random_range(0..=most);
        let mut window = Window::square(kernel, 1 + draw(2), 0);
        window.kernel[1] = if draw(3) == 0 { 1 + draw(3) } else { kernel };
        window.stride[1] = if draw(3) == 0 {
            1 + draw(2)
        } else {
            window.stride[0]
        };
        // Less than the kernel, so that no window lies in the padding alone.
        let [kh, kw] = window.kernel;
        window.pad = [draw(kh - 1), draw(kw - 1), draw(kh - 1), draw(kw - 1)];
        if window.output(h, w).is_some() {
            return window;
        }
    }
}

/// A chain of image ops with a skip, then what reads an image as rows.
fn program(seed: u64) -> Program {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut b = ProgramBuilder::new("images").with_seed(seed);
    let dims = [
        [1, 3, 4, 16, 20, 33][rng.random_range(0..6)],
        rng.random_range(1..=19),
        rng.random_range(1..=19),
    ];
    let image = b.input("image", DType::F32, &dims);
    b.begin_block("main", Repeat::Once);
    let mut x = b.read_input("image", image);
    for i in 0..rng.random_range(1..=4) {
        let dims = b.ty(x).fixed_dims();
        let (c, window) = (dims[0], window(&mut rng, dims[1], dims[2]));
        let name = format!("op{i}");
        let pooling = [Pool::Max, Pool::Average];
        match rng.random_range(0..8) {
            0 => x = b.pool2d(&name, x, pooling[rng.random_range(0..2)], window),
            1 => x = b.bn(&name, x, 1e-3),
            2 => {
                let y = b.unary(&name, Act::Tanh, x);
                x = b.concat(&format!("{name}.both"), &[x, y]);
            }
            kind => {
                let groups = match kind {
                    3 | 4 => c,
                    5 if c.is_multiple_of(4) => 4,
                    _ => 1,
                };
                let filters = if kind == 3 {
                    c
                } else {
                    groups * rng.random_range(1..=40)
                };
                let filters = if kind == 4 { 2 * c } else { filters };
                let bias = b.seeded_within(&format!("{name}.bias"), &[filters], 1.0);
                let act = [None, Some(Act::Relu), Some(Act::Relu6), Some(Act::Silu)];
                let fused = Fused {
                    bias: rng.random_bool(0.5).then_some(bias),
                    act: act[rng.random_range(0..4)],
                    residual: None,
                };
                let y = b.conv(&name, x, filters, window, groups, fused);
                let window = Window::square(1, 1, 0);
                let fused = Fused {
                    residual: rng.random_bool(0.5).then_some(y),
                    act: Some(Act::Relu),
                    ..Fused::default()
                };
                x = b.conv(&format!("{name}.one"), y, filters, window, 1, fused);
                if rng.random_bool(0.3) {
                    x = b.binary(&format!("{name}.sum"), Bin::Add, x, y);
                }
            }
        }
    }
    let dims = b.ty(x).fixed_dims();
    let (whole, pooled) = (
        b.output("whole", DType::F32, &dims),
        b.output("pooled", DType::F32, &dims[..1]),
    );
    b.emit("whole", whole, x);
    let mean = b.global_average_pool("mean", x);
    b.emit("pooled", pooled, mean);
    let all = b.reshape("flat", x, &[dims.iter().product()]);
    let head = b.dense("head", all, 7, None);
    let out = b.output("head", DType::F32, &[7]);
    b.emit("head.emit", out, head);
    b.finish().unwrap()
}

#[test]
fn random_images_agree_with_the_reference_and_batched_with_alone() {
    for seed in 0..120 {
        let problem = Problem {
            name: format!("images-{seed}"),
            build: Box::new(move || program(seed)),
            tolerance: 2e-4,
            seed,
            num_requests: 4,
            num_schedules: 2,
            registry: KernelRegistry::new(),
        };
        let levels = Level::available();
        let level = levels[seed as usize % levels.len()];
        let threads = 1 + seed as usize % 3;
        let mut make = || -> Box<dyn Device> {
            Box::new(CpuDevice::new(CpuOptions {
                threads,
                level,
                parallel_flops: 0,
                max_open: 16,
                part_bytes: [usize::MAX, 20_000, 0][seed as usize / 3 % 3],
                poison: true,
                ..CpuOptions::default()
            }))
        };
        let outcome = check(&problem, &mut make, true);
        assert_eq!(
            outcome,
            Ok(Outcome::Passed),
            "seed {seed}, {threads} threads, {level:?}"
        );
    }
}

/// A convolution of `filters` filters with a square window and padding around the image.
fn padded([c, h, w]: [usize; 3], filters: usize, window: Window, groups: usize) -> Program {
    let mut b = ProgramBuilder::new("padded").with_seed(4);
    let image = b.input("image", DType::F32, &[c, h, w]);
    let [oh, ow] = window.output(h, w).unwrap();
    let y = b.output("y", DType::F32, &[filters, oh, ow]);
    b.begin_block("main", Repeat::Once);
    let x = b.read_input("image", image);
    let x = b.conv("conv", x, filters, window, groups, Fused::default());
    b.emit("y", y, x);
    b.finish().unwrap()
}

#[test]
fn any_part_of_a_line_and_any_number_of_lines_are_padded() {
    for (name, dims, filters, window, groups) in [
        (
            "a line and a bit",
            [3, 4, 115],
            5,
            Window::square(3, 1, 1),
            1,
        ),
        ("parts of lines", [2, 9, 351], 7, Window::square(7, 1, 3), 1),
        ("strides", [3, 9, 250], 6, Window::square(5, 2, 2), 1),
        ("groups", [4, 5, 130], 6, Window::square(3, 1, 1), 2),
        ("groups in lines", [6, 9, 9], 9, Window::square(3, 2, 1), 3),
        (
            "many small images",
            [5, 3, 2],
            4,
            Window::square(3, 1, 1),
            1,
        ),
        ("one pixel wide", [5, 3, 2], 4, Window::square(1, 1, 1), 1),
        (
            "more than a task pads",
            [512, 14, 14],
            4,
            Window::square(3, 2, 1),
            1,
        ),
    ] {
        let problem = Problem {
            name: name.into(),
            build: Box::new(move || padded(dims, filters, window, groups)),
            tolerance: 2e-4,
            seed: 5,
            num_requests: 3,
            num_schedules: 1,
            registry: KernelRegistry::new(),
        };
        for threads in [1, 3] {
            let mut make = || -> Box<dyn Device> {
                Box::new(CpuDevice::new(CpuOptions {
                    threads,
                    parallel_flops: 0,
                    poison: true,
                    ..CpuOptions::default()
                }))
            };
            let outcome = check(&problem, &mut make, true);
            assert_eq!(outcome, Ok(Outcome::Passed), "{name}, {threads} threads");
        }
    }
}

#[test]
fn filters_are_packed_for_one_number_of_groups() {
    for all in [[4, 2], [2, 4]] {
        let mut b = ProgramBuilder::new("shared");
        let images = all.map(|c| b.input(&format!("image.{c}"), DType::F32, &[c, 5, 5]));
        let outputs = all.map(|c| b.output(&format!("y.{c}"), DType::F32, &[4, 5, 5]));
        b.begin_block("main", Repeat::Once);
        let w = b.seeded_within("w", &[4, 1, 3, 3], 1.0);
        for (i, groups) in all.into_iter().enumerate() {
            let x = b.read_input(&format!("read.{groups}"), images[i]);
            let window = Window::square(3, 1, 1);
            let name = format!("conv.{groups}");
            let y = b.conv2d(&name, x, w, window, groups, Fused::default());
            b.emit(&format!("emit.{groups}"), outputs[i], y);
        }
        let program = std::sync::Arc::new(b.finish().unwrap());
        let mut device = CpuDevice::new(CpuOptions::default());
        let refused = device.load(lazybatch_sla::ModelId(0), program);
        let why = refused.expect_err("one form for two").to_string();
        assert!(why.contains("expected one number of groups"), "{why}");
    }
}

/// Wide enough for several blocks of the inner dimension, several tasks and both kinds of split.
#[test]
fn wide_convolutions_have_the_same_bits_on_any_number_of_threads() {
    use lazybatch_kernels::conformance::{Schedule, compare, requests, run};
    use lazybatch_sla::ModelId;
    let problem = Problem {
        name: "wide".into(),
        build: Box::new(|| {
            let mut b = ProgramBuilder::new("wide").with_seed(2);
            let image = b.input("image", DType::F32, &[64, 15, 14]);
            let y = b.output("y", DType::F32, &[144, 8, 7]);
            b.begin_block("main", Repeat::Once);
            let x = b.read_input("image", image);
            let relu = || Fused {
                act: Some(Act::Relu),
                ..Fused::default()
            };
            let x = b.conv("a", x, 144, Window::square(3, 2, 1), 1, relu());
            let x = b.conv("b", x, 144, Window::square(3, 1, 1), 144, relu());
            let x = b.conv("c", x, 144, Window::square(3, 1, 1), 1, relu());
            b.emit("y", y, x);
            b.finish().unwrap()
        }),
        tolerance: 1e-4,
        seed: 1,
        num_requests: 3,
        num_schedules: 0,
        registry: KernelRegistry::new(),
    };
    let program = std::sync::Arc::new((problem.build)());
    let requests = requests(&problem, &program);
    let mut first = None;
    for level in Level::available() {
        for threads in [1, 2, 3] {
            for schedule in [Schedule::Alone, Schedule::Together] {
                let mut device = CpuDevice::new(CpuOptions {
                    threads,
                    level,
                    parallel_flops: 0,
                    ..CpuOptions::default()
                });
                device.load(ModelId(0), program.clone()).unwrap();
                let got = run(&mut device, &program, &requests, schedule).unwrap();
                let want = first.get_or_insert_with(|| got.clone());
                compare(&problem, &got, want, None).unwrap();
            }
        }
    }
}
