//! Kernels and how they are launched.
//!
//! One family a file: what its kernels compute, with shapes and types, and launchers for them. The
//! sources are in `cuda/`, embedded in this crate, and compiled for the device at first use (see
//! [`crate::jit`]).
//!
//! A launcher takes addresses of device memory and sizes; it checks the sizes, and puts one or a
//! few launches into the stream. It neither allocates nor waits, but for the first launch of a
//! family, which loads it ([`Kernels::load`] does so ahead). No launch at all is made for no rows.
//! Addresses are not checked: a wrong one is a fault that the driver reports, as no memory of this
//! process is reached through it.
//!
//! Unless said otherwise tensors are f32, dense and row-major, ids are i32, and outputs may not
//! overlap inputs. Tables of indices and members lie in device memory too.
//!
//! Invariant: the bits of a row of a result depend on that row's operands alone, never on the
//! number of rows, their order, or the geometry of a launch. So a reduction has an order that its
//! length decides, and no kernel adds floats atomically.

pub mod attention;
pub mod attention_matrix;
pub mod choice;
pub mod conv;
pub mod conv_matrix;
pub mod elementwise;
pub mod embedding;
pub mod gemm;
pub mod gemm_matrix;
pub mod interaction;
pub mod norms;
pub mod pool;
pub mod positions;
pub mod recurrent;
pub mod rows;
pub mod sample;
pub mod softmax;
pub mod state_attention;
pub mod states;
pub mod top_k;

use std::path::PathBuf;
use std::sync::OnceLock;

use lazybatch_graph::{Act, Node, Program};

use crate::context::{Context, DevicePtr, Function, Grid, Module};
use crate::error::{CudaError, NOT_FOUND};
use crate::jit::Jit;

/// The text of one family's kernels.
#[derive(Debug)]
pub struct Source {
    /// File name, for messages.
    pub file: &'static str,
    /// CUDA C++ behind the common part.
    pub text: &'static str,
    /// Its kernels, in alphabetical order.
    pub kernels: &'static [&'static str],
    /// Which nodes of a program it has kernels for.
    pub takes: fn(&Program, &Node) -> Takes,
}

/// What a family says of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Takes {
    /// It is another family's.
    No,
    /// Its kernels run it, alone or with those of another family.
    Yes,
    /// It is one of its own, but not as its kernels take it: what they expect, and what it is.
    Not(String),
}

impl Takes {
    const fn those(are: bool) -> Self {
        if are { Self::Yes } else { Self::No }
    }
}

/// The families whose kernels run a node.
///
/// # Errors
/// What one of them expects of such a node.
pub fn families_of(program: &Program, node: &Node) -> Result<Vec<&'static Source>, String> {
    let mut found = Vec::new();
    for source in SOURCES {
        match (source.takes)(program, node) {
            Takes::No => {}
            Takes::Yes => found.push(source),
            Takes::Not(why) => return Err(why),
        }
    }
    Ok(found)
}

/// What every source begins with: types, conversions, elementary functions, reductions.
const COMMON: &str = include_str!("../../cuda/common.cuh");

/// All sources. A family's number is its place here.
pub const SOURCES: [&Source; 20] = [
    &attention::SOURCE,
    &attention_matrix::SOURCE,
    &choice::SOURCE,
    &conv::SOURCE,
    &conv_matrix::SOURCE,
    &elementwise::SOURCE,
    &embedding::SOURCE,
    &gemm::SOURCE,
    &gemm_matrix::SOURCE,
    &interaction::SOURCE,
    &norms::SOURCE,
    &pool::SOURCE,
    &positions::SOURCE,
    &recurrent::SOURCE,
    &rows::SOURCE,
    &sample::SOURCE,
    &softmax::SOURCE,
    &state_attention::SOURCE,
    &states::SOURCE,
    &top_k::SOURCE,
];

impl Source {
    /// The whole text as the compiler gets it; line numbers are those of the file.
    pub fn full_text(&self) -> String {
        format!(
            "#line 1 \"common.cuh\"\n{COMMON}\n#line 1 \"{}\"\n{}",
            self.file, self.text
        )
    }
}

/// Type in which weights are stored; arithmetic is in f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stored {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// bfloat16.
    Bf16,
    /// IEEE binary16, in tiles for matrix instructions ([`gemm_matrix::tiles`]).
    F16Tiles,
    /// bfloat16, in such tiles.
    Bf16Tiles,
    /// 8-bit integers, and an f32 factor for each output (column of a product).
    Int8 {
        /// `[n]` f32.
        scales: DevicePtr,
    },
}

impl Stored {
    /// Whether they are in tiles for matrix instructions.
    pub const fn is_tiles(self) -> bool {
        matches!(self, Self::F16Tiles | Self::Bf16Tiles)
    }
}

/// A weight in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Weights {
    /// First element.
    pub at: DevicePtr,
    /// Element type.
    pub stored: Stored,
}

impl Weights {
    /// Weights of f32.
    pub const fn f32(at: DevicePtr) -> Self {
        Self {
            at,
            stored: Stored::F32,
        }
    }
}

/// What happens to a finished element: bias, activation and residual. The order is that of the op.
#[derive(Clone, Copy, Debug, Default)]
pub struct Epilogue {
    /// Added by output feature or channel; may be null.
    pub bias: DevicePtr,
    /// Activation.
    pub act: Option<Act>,
    /// Shaped as the result, added elementwise; may be null.
    pub residual: DevicePtr,
}

/// A member's rows among packed ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Member {
    /// Its first row.
    pub start: u32,
    /// Rows that it takes, padding included.
    pub rows: u32,
    /// Rows of its own, at most `rows`.
    pub own: u32,
    /// Its row in results with one row per member.
    pub sample: u32,
}

/// Code of an activation in the kernels.
pub(crate) const fn act_code(act: Option<Act>) -> u32 {
    match act {
        None => 0,
        Some(Act::Relu) => 1,
        Some(Act::Relu6) => 2,
        Some(Act::Gelu) => 3,
        Some(Act::Tanh) => 4,
        Some(Act::Sigmoid) => 5,
        Some(Act::Silu) => 6,
    }
}

/// A family that is loaded.
struct Family {
    /// By place in [`Source::kernels`].
    functions: Vec<Function>,
    /// Keeps the functions valid.
    _module: Module,
}

/// The kernels of a context.
pub struct Kernels {
    context: Context,
    jit: Jit,
    texts: Box<dyn Fn(&Source) -> String + Send + Sync>,
    families: [OnceLock<Family>; SOURCES.len()],
}

impl std::fmt::Debug for Kernels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let loaded = self.families.iter().filter(|f| f.get().is_some()).count();
        write!(f, "Kernels({loaded} of {} families loaded)", SOURCES.len())
    }
}

impl Kernels {
    /// Kernels for the device of `context`; compiled ones are kept in `cache_dir`, if there is one.
    ///
    /// # Errors
    /// No NVRTC, or a driver that refuses. Folders that cannot be written are no error.
    pub fn new(context: &Context, cache_dir: Option<PathBuf>) -> Result<Self, CudaError> {
        Self::with_texts(context, cache_dir, Source::full_text)
    }

    /// As [`Kernels::new`], of sources with these texts: to test what finds mistakes in them.
    ///
    /// # Errors
    /// Those of [`Kernels::new`].
    #[doc(hidden)]
    pub fn with_texts(
        context: &Context,
        cache_dir: Option<PathBuf>,
        texts: impl Fn(&Source) -> String + Send + Sync + 'static,
    ) -> Result<Self, CudaError> {
        Ok(Self {
            context: context.clone(),
            jit: Jit::new(context, cache_dir)?,
            texts: Box::new(texts),
            families: [const { OnceLock::new() }; SOURCES.len()],
        })
    }

    /// Loads families ahead of their first launch, so that no launch waits for the compiler; each on
    /// a thread of its own, as compiling takes seconds.
    ///
    /// # Errors
    /// A source that does not compile or load.
    pub fn load(&self, sources: &[&Source]) -> Result<(), CudaError> {
        let load = |source: &Source| {
            self.context.bind()?;
            self.function(source, source.kernels[0]).map(|_| ())
        };
        let results = std::thread::scope(|scope| {
            let threads: Vec<_> = sources
                .iter()
                .map(|source| scope.spawn(move || load(source)))
                .collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, Result<(), CudaError>>| {
                thread
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            threads.into_iter().map(join).collect::<Vec<_>>()
        });
        results.into_iter().collect()
    }

    /// A kernel by its name.
    pub(crate) fn function(&self, source: &Source, kernel: &str) -> Result<Function, CudaError> {
        let no_kernel = || CudaError::Kernel {
            file: source.file.to_owned(),
            kernel: kernel.to_owned(),
        };
        let family = SOURCES
            .iter()
            .position(|s| s.file == source.file)
            .ok_or_else(no_kernel)?;
        let known = &self.families[family];
        let family = match known.get() {
            Some(family) => family,
            None => {
                // What fails now, as where models leave no memory, may be there later.
                let family = self.load_family(source)?;
                known.get_or_init(|| family)
            }
        };
        let place = source.kernels.binary_search(&kernel);
        Ok(family.functions[place.map_err(|_| no_kernel())?])
    }

    fn load_family(&self, source: &Source) -> Result<Family, CudaError> {
        let module = self
            .jit
            .module(&self.context, source.file, &(self.texts)(source))?;
        let functions = source.kernels.iter().map(|kernel| {
            let function = module.function(kernel).map_err(|error| match error {
                CudaError::Driver {
                    code: NOT_FOUND, ..
                } => CudaError::Kernel {
                    file: source.file.to_owned(),
                    kernel: (*kernel).to_owned(),
                },
                error => error,
            })?;
            if let Some(bytes) = gemm_matrix::shared_bytes(kernel) {
                function.allow_shared(bytes)?;
            }
            Ok(function)
        });
        Ok(Family {
            functions: functions.collect::<Result<_, _>>()?,
            _module: module,
        })
    }
}

/// Launches a kernel of a source: `launch!(kernels, stream, "name", grid, args...)`, with the
/// source `SOURCE` of the module that says so. The arguments have the types of the kernel's
/// parameters, in their order.
macro_rules! launch {
    ($kernels:expr, $stream:expr, $kernel:expr, $grid:expr, $($arg:expr),+ $(,)?) => {{
        let function = $kernels.function(&SOURCE, $kernel)?;
        let grid = $grid;
        // SAFETY: the arguments are those of the kernel, and those made here live until the call
        // returns; the driver reads them before.
        unsafe {
            $stream.launch(
                function,
                grid,
                &mut [$(std::ptr::from_ref(&$arg).cast_mut().cast::<std::ffi::c_void>()),+],
                &[$(std::mem::size_of_val(&$arg)),+],
            )
        }
    }};
}
pub(crate) use launch;

/// A size as kernels take it.
///
/// # Errors
/// More than 2^31 - 1.
pub(crate) fn size(kernel: &'static str, what: &str, value: usize) -> Result<u32, CudaError> {
    match u32::try_from(value) {
        Ok(size) if size <= i32::MAX as u32 => Ok(size),
        _ => Err(CudaError::Argument {
            kernel,
            expected: format!("{what} of at most {}", i32::MAX),
            got: value.to_string(),
        }),
    }
}

/// Checks a size against what a kernel takes.
pub(crate) fn expect(
    kernel: &'static str,
    holds: bool,
    expected: &str,
    got: impl std::fmt::Display,
) -> Result<(), CudaError> {
    if holds {
        return Ok(());
    }
    Err(CudaError::Argument {
        kernel,
        expected: expected.to_owned(),
        got: got.to_string(),
    })
}

/// Threads of an elementwise block.
pub(crate) const THREADS: u32 = 256;

/// One thread for each of `num` items, or several items for each where the grid would be too long.
pub(crate) const fn per_item(num: u32) -> Grid {
    let blocks = num.div_ceil(THREADS);
    Grid::row(if blocks < 1 << 16 { blocks } else { 1 << 16 }, THREADS)
}

#[cfg(test)]
mod tests {
    use lazybatch_graph::{DType, Heads, Op, ProgramBuilder, Repeat, Seen};
    use lazybatch_kernels::conformance::problems;

    use super::*;

    #[test]
    fn every_node_has_a_family_or_the_host() {
        let mut num = 0;
        for problem in problems() {
            let program = (problem.build)();
            for node in &program.nodes {
                let families = families_of(&program, node).unwrap();
                let is_host = matches!(node.op, Op::Tensor(_) | Op::Custom(_));
                assert_eq!(families.is_empty(), is_host, "{}: {node:?}", problem.name);
                num += 1;
            }
        }
        assert!(num > 100, "{num} nodes");
    }

    #[test]
    fn heads_that_are_too_wide_are_refused() {
        for (dim, takes) in [(256, true), (257, false)] {
            let mut b = ProgramBuilder::new("wide");
            let x = b.sequence("x", DType::F32, &[dim], 8);
            let y = b.output_sequence("y", DType::F32, &[dim]);
            b.begin_block("main", Repeat::Once);
            let x = b.read_input("x", x);
            let heads = Heads {
                query: 1,
                kv: 1,
                dim,
                scale: 1.0,
            };
            let v = b.attention("attention", [x, x, x], heads, Seen::ALL, None);
            b.emit("y", y, v);
            let program = b.finish().unwrap();
            let node = program.nodes.iter().find(|n| n.name == "attention");
            let found = families_of(&program, node.unwrap());
            assert_eq!(found.is_ok(), takes);
            if let Err(why) = found {
                assert_eq!(why, "heads of 1 to 256 features, got 257");
            }
        }
    }
}
