//! Compiles kernels for the device at hand, and keeps what was compiled.
//!
//! A source is compiled by NVRTC to machine code (a cubin) where the compiler knows the device's own
//! architecture, so that what is kept needs nothing more to run. Else, and where the driver does not
//! take that, it is compiled to PTX for the newest architecture that both know, of which the driver
//! makes machine code at every start. A driver that is older than the compiler refuses its PTX and
//! gets machine code.
//!
//! With a folder, each result is written to a file of it and read by the next process. A file's name
//! is a hash of everything that the result depends on: text, options, architecture, form and the
//! compiler's version. The folder may be deleted at any time, and shared by any number of processes.
//!
//! Invariants:
//! 1. What is read has the bytes that were compiled: tag, key, length and checksum are verified. A
//!    file that fails is compiled anew and replaced.
//! 2. A file appears whole or not at all: it is written under another name first.
//! 3. A folder that cannot be read or written costs time, never a kernel.
//!
//! Layout of a file, little-endian: 24 bytes of tag, the key (u128), the number of bytes (u64), the
//! checksum of the bytes (u128), the bytes. Hashes are XXH3 of 128 bits, which guards against
//! accidents; whoever may write to the folder is trusted.

use std::ffi::{CString, c_char, c_int};
use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::nvrtc::{result, sys};
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use crate::context::{Context, Module};
use crate::error::CudaError;
use crate::probe;

/// Start of every file.
const TAG: &[u8; 24] = b"lazybatch-kernel/1\0\0\0\0\0\0";
/// Bytes in front of the image.
const HEADER: usize = 64;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: i32 = 2;
/// The driver's code for PTX of a newer compiler.
const UNSUPPORTED_PTX_VERSION: i32 = 222;

/// Options of every compilation: what is written is what is computed. Products and sums are fused
/// only where a kernel says so, small numbers are kept, divisions and roots are exactly rounded.
const OPTIONS: [&str; 5] = [
    "--std=c++17",
    "--fmad=false",
    "--ftz=false",
    "--prec-div=true",
    "--prec-sqrt=true",
];

/// What the compiler makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Text for a virtual architecture.
    Ptx,
    /// Machine code.
    Cubin,
}

/// A compiled source.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// PTX (its last byte is zero), or machine code.
    pub image: Vec<u8>,
    /// What the compiler printed.
    pub log: String,
}

/// The folder for compiled kernels: `lazybatch/kernels` in the user's cache folder; none if the
/// environment names no such folder.
pub fn default_folder() -> Option<PathBuf> {
    folder_in(|name| std::env::var_os(name).map(PathBuf::from))
}

fn folder_in(var: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    // As the XDG specification says, a relative path is as good as none.
    let set = |name| var(name).filter(|path| path.is_absolute());
    let cache = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")));
    Some(cache?.join("lazybatch").join("kernels"))
}

/// Version of the compiler: major, minor.
///
/// # Errors
/// No NVRTC.
pub fn version() -> Result<(i32, i32), CudaError> {
    probe::nvrtc()?;
    let (mut major, mut minor): (c_int, c_int) = (0, 0);
    // SAFETY: both are written by the call.
    let answer = unsafe { sys::nvrtcVersion(&raw mut major, &raw mut minor) };
    answer.result().map_err(|e| failed("nvrtcVersion", e))?;
    Ok((major, minor))
}

/// Architectures that the compiler knows, as `10 * major + minor`, ascending.
///
/// # Errors
/// No NVRTC.
pub fn architectures() -> Result<Vec<u32>, CudaError> {
    probe::nvrtc()?;
    let mut num: c_int = 0;
    // SAFETY: the number is written by the call.
    let answer = unsafe { sys::nvrtcGetNumSupportedArchs(&raw mut num) };
    answer
        .result()
        .map_err(|e| failed("nvrtcGetNumSupportedArchs", e))?;
    let mut known: Vec<c_int> = vec![0; num.max(0) as usize];
    // SAFETY: there is room for as many as the compiler said.
    let answer = unsafe { sys::nvrtcGetSupportedArchs(known.as_mut_ptr()) };
    answer
        .result()
        .map_err(|e| failed("nvrtcGetSupportedArchs", e))?;
    known.sort_unstable();
    Ok(known.into_iter().map(|arch| arch as u32).collect())
}

fn failed(call: &'static str, error: result::NvrtcError) -> CudaError {
    CudaError::Driver {
        call,
        name: format!("{:?}", error.0),
        code: error.0 as i32,
    }
}

/// The compiler's name of an architecture.
fn arch_name(arch: u32, form: Form) -> String {
    match form {
        Form::Ptx => format!("compute_{arch}"),
        Form::Cubin => format!("sm_{arch}"),
    }
}

/// A program of the compiler, destroyed when dropped.
struct Program(sys::nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once.
        unsafe { result::destroy_program(self.0) }.ok();
    }
}

/// Compiles a source for an architecture (`10 * major + minor`). `more` are further options.
///
/// # Errors
/// No NVRTC, or [`CudaError::Compile`] with what the compiler says.
pub fn compile(
    file: &str,
    text: &str,
    arch: u32,
    form: Form,
    more: &[&str],
) -> Result<Compiled, CudaError> {
    probe::nvrtc()?;
    let arch = arch_name(arch, form);
    let refused = |log: String| CudaError::Compile {
        file: file.to_owned(),
        arch: arch.clone(),
        log,
    };
    let [text, name] = [text, file].map(CString::new);
    let zero = |_| refused("a zero inside".to_owned());
    let (text, name) = (text.map_err(zero)?, name.map_err(zero)?);
    let program = result::create_program(&text, Some(&name));
    let program = Program(program.map_err(|e| failed("nvrtcCreateProgram", e))?);
    let mut options = vec![format!("--gpu-architecture={arch}")];
    options.extend(OPTIONS.iter().chain(more).map(|o| (*o).to_owned()));
    // SAFETY: the program is alive.
    let done = unsafe { result::compile_program(program.0, &options) };
    // SAFETY: as above.
    let log = unsafe { result::get_program_log(program.0) }.unwrap_or_default();
    let log: Vec<u8> = log.into_iter().map(|c| c as u8).collect();
    let log = String::from_utf8_lossy(&log);
    let log = log.trim_end_matches('\0').to_owned();
    if let Err(error) = done {
        let log = if log.is_empty() {
            format!("{:?}", error.0)
        } else {
            log
        };
        return Err(refused(log));
    }
    let image = match form {
        Form::Ptx => {
            // SAFETY: the program is compiled.
            let ptx =
                unsafe { result::get_ptx(program.0) }.map_err(|e| failed("nvrtcGetPTX", e))?;
            ptx.into_iter().map(|c| c as u8).collect()
        }
        Form::Cubin => cubin(&program).map_err(|e| failed("nvrtcGetCUBIN", e))?,
    };
    Ok(Compiled { image, log })
}

fn cubin(program: &Program) -> Result<Vec<u8>, result::NvrtcError> {
    let mut len = 0usize;
    // SAFETY: the program is compiled; the length is written by the call.
    unsafe { sys::nvrtcGetCUBINSize(program.0, &raw mut len) }.result()?;
    let mut image = vec![0u8; len];
    // SAFETY: there is room for as many bytes as the compiler said.
    unsafe { sys::nvrtcGetCUBIN(program.0, image.as_mut_ptr().cast::<c_char>()) }.result()?;
    Ok(image)
}

/// Compiler and cache for one device.
#[derive(Debug)]
pub struct Jit {
    arch: u32,
    /// What is tried first.
    form: Form,
    version: (i32, i32),
    folder: Option<PathBuf>,
}

impl Jit {
    /// For the device of `context`; results are kept in `folder`, which need not exist.
    ///
    /// # Errors
    /// No NVRTC, or one that knows no architecture that the device runs.
    pub fn new(context: &Context, folder: Option<PathBuf>) -> Result<Self, CudaError> {
        let (major, minor) = context.capability()?;
        let own = 10 * major + minor;
        let version = version()?;
        let known = architectures()?;
        let Some(arch) = known.iter().copied().filter(|&a| a <= own).max() else {
            return Err(CudaError::Compile {
                file: "kernels".to_owned(),
                arch: arch_name(own, Form::Ptx),
                log: format!("NVRTC {}.{} knows {known:?} alone", version.0, version.1),
            });
        };
        // The emulator reads PTX alone.
        let form = match arch == own && !context.is_emulator()? {
            true => Form::Cubin,
            false => Form::Ptx,
        };
        Ok(Self {
            arch,
            form,
            version,
            folder,
        })
    }

    /// The same with another form that is tried first: to test what follows where it is refused.
    #[doc(hidden)]
    pub fn with_form(self, form: Form) -> Self {
        Self { form, ..self }
    }

    /// The source as a loaded module.
    ///
    /// # Errors
    /// A source that does not compile, or a driver that does not take it.
    pub fn module(&self, context: &Context, file: &str, text: &str) -> Result<Module, CudaError> {
        if self.form == Form::Cubin
            && let Ok(code) = self.image(file, text, Form::Cubin)
        {
            match Module::load(context, &code) {
                // PTX may do where machine code does not, but for what is no fault of it.
                Err(error) if !is_no_fault_of_code(&error) => {}
                loaded => return loaded,
            }
        }
        let ptx = self.image(file, text, Form::Ptx)?;
        match Module::load(context, &ptx) {
            Err(CudaError::Driver {
                code: UNSUPPORTED_PTX_VERSION,
                ..
            }) => Module::load(context, &self.image(file, text, Form::Cubin)?),
            loaded => loaded,
        }
    }

    /// The compiled source, from the folder if it is there.
    ///
    /// # Errors
    /// A source that does not compile.
    pub fn image(&self, file: &str, text: &str, form: Form) -> Result<Vec<u8>, CudaError> {
        let compiled = || compile(file, text, self.arch, form, &[]).map(|c| c.image);
        let Some(folder) = &self.folder else {
            return compiled();
        };
        let key = self.key(text, form);
        let path = folder.join(format!("{key:032x}.kernel"));
        if let Some(image) = read(&path, key) {
            return Ok(image);
        }
        let image = compiled()?;
        // A folder that cannot be written costs the next process a compilation.
        write(folder, &path, key, &image).ok();
        Ok(image)
    }

    fn key(&self, text: &str, form: Form) -> u128 {
        let mut hash = Xxh3::new();
        let (arch, version) = (arch_name(self.arch, form), self.version);
        hash.update(format!("{TAG:?} {arch} {version:?} {OPTIONS:?} ").as_bytes());
        hash.update(text.as_bytes());
        hash.digest128()
    }
}

/// Whether other code would fail too: there is no memory, or the device is lost.
fn is_no_fault_of_code(error: &CudaError) -> bool {
    error.is_sticky() || matches!(error, CudaError::Driver { code, .. } if *code == OUT_OF_MEMORY)
}

fn header(key: u128, image: &[u8]) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    bytes[..24].copy_from_slice(TAG);
    bytes[24..40].copy_from_slice(&key.to_le_bytes());
    bytes[40..48].copy_from_slice(&(image.len() as u64).to_le_bytes());
    bytes[48..].copy_from_slice(&xxh3_128(image).to_le_bytes());
    bytes
}

/// The image in a file, if it is there and whole.
fn read(path: &Path, key: u128) -> Option<Vec<u8>> {
    let mut bytes = fs::read(path).ok()?;
    let (found, image) = bytes.split_at_checked(HEADER)?;
    if found != header(key, image) {
        return None;
    }
    bytes.drain(..HEADER);
    Some(bytes)
}

/// A name that no other writer has, in this process or elsewhere.
fn fresh_name() -> String {
    static PROCESS: OnceLock<u64> = OnceLock::new();
    static WRITTEN: AtomicU64 = AtomicU64::new(0);
    let process = PROCESS.get_or_init(|| RandomState::new().hash_one(std::process::id()));
    let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
    format!("{process:016x}-{number}.new")
}

fn write(folder: &Path, path: &Path, key: u128, image: &[u8]) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let fresh = path.with_extension(fresh_name());
    // Nothing is forced to the disk: after a crash of the system a file may be damaged, which shows.
    let written = File::create_new(&fresh)
        .and_then(|mut file| {
            file.write_all(&header(key, image))?;
            file.write_all(image)
        })
        .and_then(|()| fs::rename(&fresh, path));
    if written.is_err() {
        // What was written so far is of no use; the first error is what matters.
        fs::remove_file(&fresh).ok();
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: u128 = 7;

    #[test]
    fn a_file_gives_what_was_written_under_its_key_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deeper").join("x.kernel");
        write(path.parent().unwrap(), &path, KEY, b"image").unwrap();
        assert_eq!(read(&path, KEY).unwrap(), b"image");
        assert_eq!(read(&path, KEY + 1), None);
        assert_eq!(read(&path.with_extension("other"), KEY), None);
    }

    #[test]
    fn damaged_files_are_no_images() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.kernel");
        write(folder.path(), &path, KEY, b"an image of some length").unwrap();
        let whole = fs::read(&path).unwrap();
        for len in 0..whole.len() {
            fs::write(&path, &whole[..len]).unwrap();
            assert_eq!(read(&path, KEY), None, "{len} bytes");
        }
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x10;
            fs::write(&path, &bytes).unwrap();
            assert_eq!(read(&path, KEY), None, "byte {at}");
        }
        let longer = [whole.as_slice(), b"x"].concat();
        fs::write(&path, longer).unwrap();
        assert_eq!(read(&path, KEY), None);
    }

    #[test]
    fn concurrent_writers_leave_one_whole_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.kernel");
        let image = vec![3u8; 1 << 16];
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        write(folder.path(), &path, KEY, &image).unwrap();
                        // From the first write on, a reader never sees less than a whole file.
                        assert_eq!(read(&path, KEY).as_deref(), Some(image.as_slice()));
                    }
                });
            }
        });
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn the_folder_comes_from_the_environment() {
        let both = |name: &str| Some(PathBuf::from(format!("/{name}")));
        let end = "lazybatch/kernels";
        let xdg = PathBuf::from("/XDG_CACHE_HOME").join(end);
        assert_eq!(folder_in(both), Some(xdg));
        let home = |name: &str| (name == "HOME").then(|| PathBuf::from("/someone"));
        assert_eq!(
            folder_in(home),
            Some(PathBuf::from("/someone/.cache").join(end))
        );
        let relative = |_: &str| Some(PathBuf::from("here"));
        assert_eq!(folder_in(relative), None);
        assert_eq!(folder_in(|_| None), None);
    }
}
