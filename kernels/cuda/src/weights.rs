//! Weights on their way to the device.

use std::num::NonZero;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use lazybatch_graph::Op;
use lazybatch_kernels::Error;
use lazybatch_kernels::cpu::WeightType;

use crate::context::{Context, DeviceMemory, DevicePtr, Event, Pinned, Stream};
use crate::error::CudaError;
use crate::kernels::conv_matrix::Filters;
use crate::kernels::gemm_matrix::tiles;
use crate::kernels::{Stored, Weights};

/// Bytes copied at once.
const CHUNK: usize = 4 << 20;
/// Page-locked memory, of [`CHUNK`] bytes at most, that copies of weights take in turns.
const BUFFERS: usize = 2;
/// Bytes of weights behind which there is an event.
const GROUP: usize = 1 << 20;
/// Alignment of a weight.
const ALIGN: usize = 256;
/// Least numbers that a thread is worth.
const EACH: usize = 1 << 18;
/// Largest magnitude of an int8 weight.
const INT8_MAX: f32 = 127.0;

/// Pieces that are uploaded together into one allocation. Their addresses count from its start.
#[derive(Debug, Default)]
pub struct Uploads {
    pieces: Vec<(usize, Vec<u8>)>,
    end: usize,
}

impl Uploads {
    /// Adds a piece; returns its place, counted from the start.
    pub fn push(&mut self, bytes: Vec<u8>) -> DevicePtr {
        let at = self.end;
        self.end += bytes.len().next_multiple_of(ALIGN);
        self.pieces.push((at, bytes));
        DevicePtr(at as u64)
    }

    /// Bytes of all pieces.
    pub fn bytes(&self) -> usize {
        self.end
    }

    /// Starts to copy all pieces to memory of their own.
    ///
    /// # Errors
    /// No memory, or what the driver answers.
    pub fn run(self, context: &Context, what: &str) -> Result<(DeviceMemory, Arrival), CudaError> {
        let memory = DeviceMemory::new(context, what, self.end)?;
        let longest = self.pieces.iter().map(|(_, bytes)| bytes.len()).max();
        let mut arrival = Arrival::new(context, longest.unwrap_or(0).min(CHUNK))?;
        let (base, mut since) = (memory.at(), 0);
        for (at, bytes) in self.pieces {
            for (i, chunk) in bytes.chunks(CHUNK).enumerate() {
                arrival.copy(base.add(at + i * CHUNK), chunk)?;
            }
            since += bytes.len();
            if since >= GROUP {
                arrival.end_group(at + bytes.len())?;
                since = 0;
            }
        }
        if since > 0 {
            arrival.end_group(self.end)?;
        }
        Ok((memory, arrival))
    }
}

/// Weights on their way, in a stream of their own: who uses them waits for the event of their group.
#[derive(Debug)]
pub struct Arrival {
    /// Of each group, the byte behind its last and the event behind its copies.
    groups: Vec<(usize, Event)>,
    /// What copies are made from, in turns, with the event behind the last.
    buffers: Vec<(Pinned, Event)>,
    /// Bytes of each.
    room: usize,
    copies: usize,
    stream: Stream,
    context: Context,
}

impl Arrival {
    fn new(context: &Context, room: usize) -> Result<Self, CudaError> {
        Ok(Self {
            groups: Vec::new(),
            buffers: Vec::new(),
            room,
            copies: 0,
            stream: Stream::new(context)?,
            context: context.clone(),
        })
    }

    /// Copies at most as many bytes as a buffer has; waits for the copy that had the buffer before.
    fn copy(&mut self, to: DevicePtr, bytes: &[u8]) -> Result<(), CudaError> {
        let turn = self.copies % BUFFERS;
        self.copies += 1;
        match self.buffers.get(turn) {
            Some((_, last)) => last.wait()?,
            None => {
                let buffer = Pinned::new(&self.context, self.room)?;
                self.buffers.push((buffer, Event::new(&self.context)?));
            }
        }
        let (buffer, last) = &mut self.buffers[turn];
        buffer.part_mut(0, bytes.len()).copy_from_slice(bytes);
        // SAFETY: the buffer is not written again before the copy is over, and lives until then.
        unsafe { self.stream.copy_in(to, buffer, 0, bytes.len()) }?;
        last.record(&self.stream)
    }

    fn end_group(&mut self, end: usize) -> Result<(), CudaError> {
        let event = Event::new(&self.context)?;
        event.record(&self.stream)?;
        self.groups.push((end, event));
        Ok(())
    }

    /// Lets later work of `stream` come after all copies.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn before(&self, stream: &Stream) -> Result<(), CudaError> {
        match self.groups.last() {
            Some((_, last)) => stream.wait(last),
            None => Ok(()),
        }
    }

    /// Bytes of the page-locked memory that copies are made from.
    pub fn staging_bytes(&self) -> usize {
        self.buffers.len() * self.room
    }

    /// Gives that memory back. All copies must be over.
    pub fn give_back(&mut self) {
        self.buffers.clear();
    }

    /// Whether the piece that starts at a byte is there.
    ///
    /// # Errors
    /// The failure of its copy.
    pub fn is_there(&self, byte: usize) -> Result<bool, CudaError> {
        let group = self.groups.partition_point(|(end, _)| *end <= byte);
        let group = self.groups.get(group);
        group.map_or(Ok(true), |(_, event)| event.is_over())
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        // What copies read goes with this, and what they write soon after.
        if self.context.bind().is_ok() {
            self.stream.synchronize().ok();
        }
    }
}

/// Copies pieces to where they belong, through a page-locked buffer; waits for the end.
///
/// # Errors
/// What the driver answers.
pub fn upload(
    context: &Context,
    stream: &Stream,
    pieces: impl Iterator<Item = (DevicePtr, Vec<u8>)>,
) -> Result<(), CudaError> {
    let mut buffer: Option<Pinned> = None;
    for (at, bytes) in pieces {
        let buffer = match &mut buffer {
            Some(buffer) => buffer,
            none => none.insert(Pinned::new(context, CHUNK)?),
        };
        for (i, chunk) in bytes.chunks(CHUNK).enumerate() {
            buffer.part_mut(0, chunk.len()).copy_from_slice(chunk);
            // SAFETY: the buffer is not written again before the copy is over.
            unsafe { stream.copy_in(at.add(i * CHUNK), buffer, 0, chunk.len()) }?;
            stream.synchronize()?;
        }
    }
    Ok(())
}

/// A right side `[k, n]` in the form of `weights`; f16 and bf16 in tiles where that is told.
///
/// # Errors
/// A number that the form cannot hold.
pub fn right(
    (weights, is_tiled): (WeightType, bool),
    elems: &[f32],
    k: usize,
    n: usize,
    uploads: &mut Uploads,
) -> Result<Weights, String> {
    let mut halves = |bits: &[u16], [rows, in_tiles]: [Stored; 2]| {
        let tiled = is_tiled.then(|| tiles(bits, k, n));
        let bytes = bytemuck::cast_slice(tiled.as_deref().unwrap_or(bits)).to_vec();
        Weights {
            at: uploads.push(bytes),
            stored: if is_tiled { in_tiles } else { rows },
        }
    };
    let too_large = |at: usize| {
        format!(
            "{} at [{}, {}] is too large for {}",
            elems[at],
            at / n,
            at % n,
            weights.name()
        )
    };
    Ok(match weights {
        WeightType::F32 => Weights::f32(uploads.push(bytemuck::cast_slice(elems).to_vec())),
        WeightType::F16 => {
            let convert = |from: &[f32], to: &mut [f16]| to.convert_from_f32_slice(from);
            let all = rounded(elems, f16::ZERO, convert, f16::is_infinite).map_err(too_large)?;
            halves(all.reinterpret_cast(), [Stored::F16, Stored::F16Tiles])
        }
        WeightType::Bf16 => {
            let convert = |from: &[f32], to: &mut [bf16]| to.convert_from_f32_slice(from);
            let all = rounded(elems, bf16::ZERO, convert, bf16::is_infinite).map_err(too_large)?;
            halves(all.reinterpret_cast(), [Stored::Bf16, Stored::Bf16Tiles])
        }
        WeightType::Int8 => {
            if let Some(at) = elems.iter().position(|v| !v.is_finite()) {
                return Err(too_large(at));
            }
            let mut scales = vec![0.0f32; n];
            for row in elems.chunks_exact(n) {
                for (s, v) in scales.iter_mut().zip(row) {
                    *s = s.max(v.abs() / INT8_MAX);
                }
            }
            let mut bytes = Vec::with_capacity(k * n);
            for row in elems.chunks_exact(n) {
                for (s, v) in scales.iter().zip(row) {
                    let whole = if *s > 0.0 {
                        (v / s).round_ties_even()
                    } else {
                        0.0
                    };
                    bytes.push(whole.clamp(-INT8_MAX, INT8_MAX) as i8 as u8);
                }
            }
            let at = uploads.push(bytes);
            let scales = uploads.push(bytemuck::cast_slice(&scales).to_vec());
            Weights {
                at,
                stored: Stored::Int8 { scales },
            }
        }
        WeightType::Int8Dynamic => return Err("int8-dynamic is for the cpu device".into()),
    })
}

/// Filters in the form of matrix instructions, in f16 or bf16.
///
/// # Errors
/// A number that the type cannot hold.
pub fn filters(
    stored: Stored,
    elems: &[f32],
    filters: &Filters,
    uploads: &mut Uploads,
) -> Result<Weights, String> {
    let convert = |from: &[f32], to: &mut [f16]| to.convert_from_f32_slice(from);
    let halves = || rounded(elems, f16::ZERO, convert, f16::is_infinite);
    let convert = |from: &[f32], to: &mut [bf16]| to.convert_from_f32_slice(from);
    let brains = || rounded(elems, bf16::ZERO, convert, bf16::is_infinite);
    let (bits, name) = match stored {
        Stored::F16 => (halves().map(|v| v.reinterpret_cast().to_vec()), "f16"),
        _ => (brains().map(|v| v.reinterpret_cast().to_vec()), "bf16"),
    };
    let bits: Vec<u16> =
        bits.map_err(|at| format!("{} at {at} is too large for {name}", elems[at]))?;
    let bytes = bytemuck::cast_slice(&filters.arranged(&bits)).to_vec();
    Ok(Weights {
        at: uploads.push(bytes),
        stored,
    })
}

/// Numbers in another type, by as many threads as they are worth; or where one is not held.
fn rounded<T: Copy + Send>(
    elems: &[f32],
    zero: T,
    convert: fn(&[f32], &mut [T]),
    is_infinite: fn(T) -> bool,
) -> Result<Vec<T>, usize> {
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    let len = elems.len().div_ceil(threads).max(EACH);
    let mut all = vec![zero; elems.len()];
    let part = |(from, to): (&[f32], &mut [T])| {
        convert(from, to);
        let mut both = from.iter().zip(to.iter());
        both.position(|(v, t)| is_infinite(*t) && v.is_finite())
    };
    let parts = elems.chunks(len).zip(all.chunks_mut(len));
    let lost: Vec<Option<usize>> = if elems.len() <= len {
        parts.map(part).collect()
    } else {
        std::thread::scope(|scope| {
            let threads: Vec<_> = parts.map(|p| scope.spawn(move || part(p))).collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, Option<usize>>| {
                let joined = thread.join();
                joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            threads.into_iter().map(join).collect()
        })
    };
    let mut places = lost.into_iter().enumerate();
    match places.find_map(|(i, at)| at.map(|at| i * len + at)) {
        Some(at) => Err(at),
        None => Ok(all),
    }
}

/// An error of loading as devices say it.
pub fn refused(device: &str, error: &CudaError) -> Error {
    match error {
        CudaError::OutOfMemory {
            what,
            needed,
            available,
        } => Error::OutOfMemory {
            device: device.to_owned(),
            what: format!("device memory for {what}"),
            needed: *needed,
            available: *available,
        },
        error if error.is_sticky() => Error::Lost {
            device: device.to_owned(),
            why: error.to_string(),
        },
        error => Error::Device {
            device: device.to_owned(),
            why: error.to_string(),
        },
    }
}

/// The name of an op without its fields.
pub fn op_name(op: &Op) -> String {
    let text = format!("{op:?}");
    let end = text.find([' ', '(']).unwrap_or(text.len());
    text[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of all magnitudes, more than a thread has, and what has no number.
    fn numbers(num: usize) -> Vec<f32> {
        let bits = (0..num as u32).map(|i| i.wrapping_mul(0x9e37_79b9));
        bits.map(f32::from_bits).collect()
    }

    fn bits(weights: WeightType, elems: &[f32]) -> Result<Vec<u16>, String> {
        let mut uploads = Uploads::default();
        let n = elems.len() / 2;
        right((weights, false), elems, 2, n, &mut uploads)?;
        Ok(bytemuck::pod_collect_to_vec(&uploads.pieces[0].1))
    }

    #[test]
    fn weights_are_rounded_one_as_all() {
        for num in [10, 5 * EACH / 2] {
            let elems = numbers(num);
            let held = |limit: f32| move |v: &f32| if v.abs() < limit { *v } else { f32::NAN };
            let all: Vec<f32> = elems.iter().map(held(3e38)).collect();
            let want: Vec<u16> = all.iter().map(|v| bf16::from_f32(*v).to_bits()).collect();
            assert!(bits(WeightType::Bf16, &all).unwrap() == want);
            let all: Vec<f32> = elems.iter().map(held(6e4)).collect();
            let want: Vec<u16> = all.iter().map(|v| f16::from_f32(*v).to_bits()).collect();
            assert!(bits(WeightType::F16, &all).unwrap() == want);
        }
    }

    #[test]
    fn the_first_weight_that_is_not_held_is_named() {
        let mut elems = vec![1.0; 5 * EACH / 2];
        let half = elems.len() / 2;
        (elems[half + 3], elems[half + EACH]) = (7e4, 8e4);
        let said = bits(WeightType::F16, &elems).unwrap_err();
        assert_eq!(said, "70000 at [1, 3] is too large for f16");
        // What is infinite stays so.
        (elems[half + 3], elems[half + EACH]) = (f32::INFINITY, 3.0);
        assert!(bits(WeightType::F16, &elems).is_ok());
    }
}
