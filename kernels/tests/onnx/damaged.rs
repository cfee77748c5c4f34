//! Damaged model files, hostile attributes and operands give an error or a result, never a panic,
//! in bounded memory: read and evaluated, and read and imported.

use std::alloc::{GlobalAlloc, Layout, System};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

use lazybatch_graph::onnx::{Array, Attr, Data, Dim, Elem, Graph, Limits, Model, NONE, ValueType};
use lazybatch_kernels::import::{Options, import_model};
use lazybatch_kernels::onnx::Interpreter;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::cases;

/// Models that are damaged.
const NUM_MODELS: usize = 50;
/// Damaged files in the normal tests.
const NUM_FILES: usize = 300;
/// Most bytes that this process may hold at once, all tests of this program together.
const MAX_BYTES: usize = 256 << 20;

const LIMITS: Limits = Limits {
    stored: 1 << 18,
    elems: 1 << 18,
    held: 1 << 20,
    work: 1 << 24,
    ..cases::LIMITS
};

/// The system's allocator, counting.
struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

#[allow(unsafe_code, reason = "an allocator is unsafe by its trait")]
// SAFETY: Every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(held, Ordering::Relaxed);
        // SAFETY: The caller's promises about `layout` are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: `at` came from `alloc` above with this layout.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// How often each model is damaged: for [`NUM_FILES`] files, or as many as a soak asks for.
fn num_per_model() -> usize {
    let asked = std::env::var("LAZYBATCH_SOAK_CASES").ok();
    let asked = asked.and_then(|n| n.parse().ok()).unwrap_or(NUM_FILES);
    asked.div_ceil(NUM_MODELS)
}

/// `bytes` with one or two places changed, or cut short.
fn damage(bytes: &[u8], rng: &mut ChaCha8Rng) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..rng.random_range(1..=2) {
        let at = rng.random_range(0..bytes.len());
        match rng.random_range(0..8) {
            0 => bytes.truncate(at.max(1)),
            1 => bytes[at] = 0xff,
            2 => bytes[at] = 0,
            3 => bytes.insert(at, rng.random()),
            4 | 5 => bytes[at] ^= 1 << rng.random_range(0..8),
            _ => bytes[at] = rng.random(),
        }
    }
    bytes
}

/// How runs ended.
#[derive(Default)]
struct Ends {
    errors: usize,
    results: usize,
    panics: Vec<String>,
}

impl Ends {
    /// Runs `run` of the file that messages call `name`; true is a result.
    fn note(&mut self, name: &str, run: impl FnOnce() -> bool) {
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(true) => self.results += 1,
            Ok(false) => self.errors += 1,
            Err(_) => self.panics.push(name.to_owned()),
        }
    }

    /// Prints how they ended, as `cargo xtask soak` keeps it; none may have panicked.
    fn report(&self, what: &str) {
        let (errors, results, panics) = (self.errors, self.results, self.panics.len());
        let peak = PEAK.load(Ordering::Relaxed);
        println!(
            "soak: {{\"what\":\"{what}\",\"errors\":{errors},\"results\":{results},\
             \"panics\":{panics},\"peak_bytes\":{peak}}}"
        );
        assert_eq!(self.panics, Vec::<String>::new(), "{what}");
        assert!(peak < MAX_BYTES, "{what}: {peak} bytes held at once");
    }
}

/// Whether the importer makes a program of a model.
fn imports(model: &Model) -> bool {
    let options = Options {
        limits: LIMITS,
        ..Options::default()
    };
    import_model(model, &options).is_ok()
}

#[test]
fn damaged_models_never_panic() {
    let folders = cases::folders();
    if folders.is_empty() {
        return;
    }
    let mut rng = ChaCha8Rng::seed_from_u64(17);
    let (mut evaluated, mut imported) = (Ends::default(), Ends::default());
    for folder in folders
        .iter()
        .step_by(folders.len() / NUM_MODELS)
        .take(NUM_MODELS)
    {
        let bytes = std::fs::read(folder.join("model.onnx")).unwrap();
        for i in 0..num_per_model() {
            let damaged = damage(&bytes, &mut rng);
            let name = format!("{} #{i}", cases::name(folder));
            evaluated.note(&name, || cases::run(folder, &damaged, &LIMITS).is_ok());
            imported.note(&name, || {
                Model::decode(&name, &damaged, &LIMITS).is_ok_and(|model| imports(&model))
            });
        }
    }
    for (ends, what) in [
        (&evaluated, "damaged, evaluated"),
        (&imported, "damaged, imported"),
    ] {
        ends.report(what);
        assert_eq!(ends.errors + ends.results, NUM_MODELS * num_per_model());
        // Both happen: the damage neither spares nor spoils everything.
        assert!(
            ends.errors > 100 && ends.results > 5,
            "{what}: {} errors, {} results",
            ends.errors,
            ends.results
        );
    }
}

/// A number that shapes and attributes rarely are.
fn odd(rng: &mut ChaCha8Rng) -> i64 {
    const ODD: [i64; 12] = [
        -1,
        0,
        1,
        2,
        3,
        5,
        -2,
        -7,
        1 << 31,
        1 << 40,
        i64::MAX,
        i64::MIN,
    ];
    ODD[rng.random_range(0..ODD.len())]
}

/// Changes one attribute of `graph` or of the subgraphs in it.
fn change_attr(graph: &mut Graph, rng: &mut ChaCha8Rng) {
    let mut attrs: Vec<&mut Attr> = graph
        .nodes
        .iter_mut()
        .flat_map(|n| n.attrs.values_mut())
        .collect();
    if attrs.is_empty() {
        return;
    }
    let at = rng.random_range(0..attrs.len());
    match &mut *attrs[at] {
        Attr::Int(v) => *v = odd(rng),
        Attr::Float(v) => *v = [f32::NAN, 0.0, f32::INFINITY, -1e30][rng.random_range(0..4)],
        Attr::Ints(v) if rng.random() => v.push(odd(rng)),
        Attr::Ints(v) => {
            let n = v.len().max(1);
            match v.get_mut(rng.random_range(0..n)) {
                Some(v) => *v = odd(rng),
                None => v.push(1),
            }
        }
        Attr::Floats(v) => {
            v.pop();
        }
        Attr::Str(v) => {
            *v = ["", "SAME_LOWER", "VALID", "reflect", "..."][rng.random_range(0..5)].to_owned()
        }
        Attr::Tensor(t) => *t = change_array(t, rng),
        Attr::Graph(graph) => change_attr(graph, rng),
        Attr::Strs(_) | Attr::Other(_) => {}
    }
}

/// Changes an attribute, or a dimension or the type that the model states of an input.
fn change_statement(graph: &mut Graph, rng: &mut ChaCha8Rng) {
    let at = rng.random_range(0..=graph.inputs.len());
    let Some(ValueType::Tensor { elem, dims }) = graph.inputs.get_mut(at).map(|i| &mut i.ty) else {
        change_attr(graph, rng);
        return;
    };
    let dims = dims.get_or_insert_default();
    let axis = rng.random_range(0..=dims.len());
    match dims.get_mut(axis) {
        Some(dim) => {
            *dim = match rng.random_range(0..3) {
                0 => Dim::Named("batch".to_owned()),
                1 => Dim::Unknown,
                _ => Dim::Fixed(odd(rng).unsigned_abs() as usize),
            }
        }
        None if rng.random() => dims.push(Dim::Fixed(odd(rng).unsigned_abs() as usize)),
        None => *elem = Elem::ALL[rng.random_range(0..Elem::ALL.len())],
    }
}

/// `x` with other elements, dimensions or types.
fn change_array(x: &Array, rng: &mut ChaCha8Rng) -> Array {
    let mut dims = x.dims().to_vec();
    match rng.random_range(0..6) {
        0 => {
            let v = (0..x.len()).map(|_| i128::from(odd(rng))).collect();
            Array::new(dims, Data::from_i128(x.elem(), v))
        }
        1 => {
            let v = (0..x.len())
                .map(|i| [f64::NAN, f64::INFINITY, -0.0][i % 3])
                .collect();
            Array::from_f64(x.elem(), dims, v)
        }
        2 => {
            let elem = Elem::ALL[rng.random_range(0..Elem::ALL.len())];
            Array::from_f64(elem, dims, x.data().to_f64())
        }
        3 => {
            dims.insert(rng.random_range(0..=dims.len()), 1);
            x.reshaped(dims)
        }
        4 if !dims.is_empty() => {
            let axis = rng.random_range(0..dims.len());
            dims[axis] = [0, 1, dims[axis] + 1][rng.random_range(0..3)];
            let num = dims.iter().product();
            let from: Vec<usize> = (0..num)
                .map(|i| if i < x.len() { i } else { NONE })
                .collect();
            Array::new(dims, x.data().take(&from))
        }
        _ => Array::scalar(x.data().take(&[if x.is_empty() { NONE } else { 0 }])),
    }
}

#[test]
fn hostile_attributes_and_operands_never_panic() {
    let mut rng = ChaCha8Rng::seed_from_u64(23);
    let (mut evaluated, mut imported) = (Ends::default(), Ends::default());
    for folder in &cases::folders() {
        let bytes = std::fs::read(folder.join("model.onnx")).unwrap();
        let model = Model::decode(&cases::name(folder), &bytes, &LIMITS).unwrap();
        let Ok(inputs) = cases::inputs(folder, &model, &LIMITS) else {
            continue;
        };
        if Interpreter::new(&model, LIMITS).is_err() {
            continue;
        }
        for i in 0..num_per_model() {
            let name = format!("{} #{i}", cases::name(folder));
            let mut compiled = model.clone();
            change_statement(&mut compiled.graph, &mut rng);
            imported.note(&name, || imports(&compiled));
            let (mut model, mut inputs) = (model.clone(), inputs.clone());
            // The values decide, not what the model states of them.
            for info in &mut model.graph.inputs {
                info.ty = ValueType::Unknown;
            }
            for _ in 0..rng.random_range(1..=2) {
                let at = rng.random_range(0..=inputs.len());
                match inputs.get_mut(at) {
                    Some(Some(x)) => *x = change_array(x, &mut rng),
                    _ => change_attr(&mut model.graph, &mut rng),
                }
            }
            evaluated.note(&name, || {
                let run = Interpreter::new(&model, LIMITS).and_then(|i| i.run(inputs));
                run.is_ok()
            });
        }
    }
    evaluated.report("hostile attributes and operands, evaluated");
    imported.report("hostile attributes and dimensions, imported");
}
