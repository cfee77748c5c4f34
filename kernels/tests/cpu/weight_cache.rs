//! Packed weights on disk: mapped with the same bits, and never trusted.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lazybatch_graph::{
    Act, DType, Fused, ProgramBuilder, Repeat, SharedProgram, Tensor, WeightSource, Window,
};
use lazybatch_kernels::conformance::{Request, Schedule, run};
use lazybatch_kernels::cpu::level::Level;
use lazybatch_kernels::cpu::{CacheReport, WeightType};
use lazybatch_kernels::synthetic::random_inputs;
use lazybatch_kernels::{CpuDevice, CpuOptions, Device};
use lazybatch_sla::ModelId;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Every form of packed weights, of several blocks and panels: products, recurrent cells, filters
/// in one group, in four, and depthwise. The first product's elements are given, others are seeded.
fn program(seed: u64) -> SharedProgram {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut b = ProgramBuilder::new("cached").with_seed(seed);
    let image = b.input("image", DType::F32, &[32, 6, 6]);
    let y = b.output("y", DType::F32, &[300]);
    b.begin_block("main", Repeat::Once);
    let x = b.read_input("image", image);
    let window = Window::square(3, 1, 1);
    let relu = || Fused {
        act: Some(Act::Relu),
        ..Fused::default()
    };
    let x = b.conv("one", x, 64, window, 1, relu());
    let x = b.conv("four", x, 128, window, 4, relu());
    let x = b.conv("wide", x, 1024, Window::square(1, 1, 0), 1, relu());
    let x = b.conv("each", x, 1024, window, 1024, relu());
    let x = b.global_average_pool("mean", x);
    let x = b.reshape("flat", x, &[1024]);
    let given: Vec<f32> = (0..1024 * 200)
        .map(|_| rng.random_range(-0.1..0.1))
        .collect();
    let given = b.data("given", Tensor::from_f32(&[1024, 200], &given));
    let x = b.linear("linear", x, given, Fused::default());
    let x = b.lstm("lstm", x, 160);
    let x = b.dense("last", x, 300, None);
    b.emit("emit", y, x);
    Arc::new(b.finish().unwrap())
}

/// Packed weights of it that are large enough for a file.
const NUM: usize = 8;

fn options(folder: Option<&Path>) -> CpuOptions {
    CpuOptions {
        threads: 1,
        max_open: 8,
        weight_cache: folder.map(Path::to_owned),
        ..CpuOptions::default()
    }
}

/// Loads `program` and runs it: the bits of its outputs, and what the cache did.
fn bits_of(program: &SharedProgram, options: CpuOptions) -> (Vec<Vec<u8>>, CacheReport) {
    let mut device = CpuDevice::new(options);
    device.load(ModelId(0), Arc::clone(program)).unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    let requests: Vec<Request> = (0..3)
        .map(|i| Request {
            inputs: random_inputs(program, 0, 1 + i, &mut rng),
            len: 0,
            samples: 1 + i,
        })
        .collect();
    let results = run(&mut device, program, &requests, Schedule::Together).unwrap();
    let outputs = results.iter().flatten().flatten();
    let bits = outputs.map(|t| t.data.as_slice().to_vec()).collect();
    (bits, device.weight_cache())
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap();
    let mut files: Vec<_> = entries.map(|e| e.unwrap().path()).collect();
    files.sort();
    files
}

fn report(mapped: usize, written: usize) -> CacheReport {
    CacheReport {
        mapped,
        written,
        warnings: Vec::new(),
    }
}

#[test]
fn what_is_mapped_has_the_bits_that_were_packed() {
    let program = program(1);
    for weights in WeightType::ALL {
        let folder = tempfile::tempdir().unwrap();
        let with = |folder| CpuOptions {
            weights,
            ..options(folder)
        };
        let (bits, none) = bits_of(&program, with(None));
        assert_eq!(none, report(0, 0));
        let (first, cold) = bits_of(&program, with(Some(folder.path())));
        let (second, warm) = bits_of(&program, with(Some(folder.path())));
        assert!(first == bits && second == bits, "{weights}");
        let num = files(folder.path()).len();
        assert_eq!((cold, warm), (report(0, num), report(num, 0)), "{weights}");
        assert!(num > 5, "{weights}: {num} files");
        assert!(weights != WeightType::F32 || num == NUM, "{num} files");
    }
}

#[test]
fn what_a_weight_depends_on_keeps_files_apart() {
    let folder = tempfile::tempdir().unwrap();
    let mut expected = 0;
    for level in Level::available() {
        let with = CpuOptions {
            level,
            ..options(Some(folder.path()))
        };
        let (_, done) = bits_of(&program(1), with);
        assert_eq!(done, report(0, NUM), "{}", level.name());
        expected += NUM;
        assert_eq!(files(folder.path()).len(), expected);
    }
    // Other elements, in a tensor and from a seed.
    let (_, done) = bits_of(&program(2), options(Some(folder.path())));
    assert_eq!(done, report(0, NUM));
    // One element of one tensor.
    let mut changed = (*program(1)).clone();
    let given = changed
        .weights
        .iter_mut()
        .find(|w| w.name == "given")
        .unwrap();
    let mut data = given.source.to_f32(1024 * 200);
    data[77] += 1.0;
    given.source = WeightSource::Data(Tensor::from_f32(&[1024, 200], &data));
    let changed: SharedProgram = Arc::new(changed);
    let (bits, done) = bits_of(&changed, options(Some(folder.path())));
    assert_eq!(done, report(NUM - 1, 1));
    assert!(bits == bits_of(&changed, options(None)).0);
    assert!(bits != bits_of(&program(1), options(None)).0);
}

#[test]
fn damaged_files_are_reported_and_replaced() {
    let program = program(1);
    let folder = tempfile::tempdir().unwrap();
    let (bits, _) = bits_of(&program, options(Some(folder.path())));
    let all = files(folder.path());
    let whole: Vec<Vec<u8>> = all.iter().map(|f| fs::read(f).unwrap()).collect();
    type Damage = fn(&mut Vec<u8>);
    let damages: [(&str, Damage); 9] = [
        ("length", |bytes| bytes.clear()),
        ("length", |bytes| bytes.truncate(40)),
        ("length", |bytes| bytes.truncate(bytes.len() - 4)),
        ("length", |bytes| bytes.push(0)),
        ("header", |bytes| bytes[0] ^= 1),
        ("header", |bytes| bytes[30] ^= 1),
        ("header", |bytes| bytes[42] ^= 1),
        ("checksum", |bytes| bytes[60] ^= 1),
        ("checksum", |bytes| {
            let last = bytes.len() - 1;
            bytes[last] ^= 0x80;
        }),
    ];
    for (i, (what, damage)) in damages.into_iter().enumerate() {
        let (file, good) = (&all[i % all.len()], &whole[i % all.len()]);
        let mut bad = good.clone();
        damage(&mut bad);
        fs::write(file, bad).unwrap();
        let (got, done) = bits_of(&program, options(Some(folder.path())));
        assert!(got == bits, "{what}");
        assert_eq!(
            (done.mapped, done.written),
            (NUM - 1, 1),
            "{what}: {done:?}"
        );
        let [warning] = &done.warnings[..] else {
            panic!("{what}: {:?}", done.warnings);
        };
        let name = file.file_name().unwrap().to_string_lossy();
        assert!(warning.contains(&*name), "{warning}");
        assert!(warning.contains(what) || i == 0, "{warning}");
        assert_eq!(&fs::read(file).unwrap(), good, "{what}");
        let (got, done) = bits_of(&program, options(Some(folder.path())));
        assert!(got == bits && done == report(NUM, 0), "{what}: {done:?}");
    }
    // A whole file under the name of another one.
    fs::write(&all[0], &whole[1]).unwrap();
    let (got, done) = bits_of(&program, options(Some(folder.path())));
    assert!(
        got == bits && done.written == 1 && done.warnings.len() == 1,
        "{done:?}"
    );
}

#[test]
fn writers_do_not_disturb_each_other() {
    let program = program(3);
    let folder = tempfile::tempdir().unwrap();
    let (bits, _) = bits_of(&program, options(None));
    let path = folder.path();
    std::thread::scope(|scope| {
        let load = || bits_of(&program, options(Some(path)));
        let loads: Vec<_> = (0..6).map(|_| scope.spawn(load)).collect();
        for load in loads {
            let (got, done) = load.join().unwrap();
            assert!(got == bits, "{done:?}");
            assert_eq!((done.mapped + done.written, done.warnings.len()), (NUM, 0));
        }
    });
    // Nothing but whole files is left.
    assert_eq!(files(path).len(), NUM);
    assert_eq!(
        bits_of(&program, options(Some(path))),
        (bits, report(NUM, 0))
    );
}

#[test]
fn a_folder_that_cannot_be_written_costs_a_warning() {
    let program = program(4);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "no folder").unwrap();
    let (bits, done) = bits_of(&program, options(Some(&file)));
    assert!(bits == bits_of(&program, options(None)).0);
    assert_eq!((done.mapped, done.written), (0, 0));
    assert!(
        done.warnings
            .iter()
            .any(|w| w.contains("a folder that can be written")),
        "{done:?}"
    );
}
