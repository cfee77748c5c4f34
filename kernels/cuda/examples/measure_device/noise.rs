//! Memory with noise in it: where operands are zeros, a GPU draws less power and is faster than it is.

use lazybatch_cuda::context::{DeviceMemory, Pinned};
use lazybatch_cuda::{Context, CudaError, Stream};

/// Bytes of noise, which repeat.
const PIECE: usize = 16 << 20;

/// Memory with numbers of 0.5 to 1 of either sign, as bf16 and as f32; as f16 they are 1.75 to 2, and
/// as int8 any.
pub fn noise(context: &Context, stream: &Stream, bytes: usize) -> Result<DeviceMemory, CudaError> {
    let memory = DeviceMemory::new(context, "a measurement", bytes)?;
    let mut piece = Pinned::new(context, bytes.min(PIECE))?;
    let mut state = 1u64;
    for half in piece.bytes_mut().chunks_exact_mut(2) {
        // Source: Marsaglia, "Xorshift RNGs".
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let bits = (state >> 32) as u16 & 0x807f | 0x3f00;
        half.copy_from_slice(&bits.to_le_bytes());
    }
    for start in (0..bytes).step_by(PIECE) {
        let len = PIECE.min(bytes - start);
        // SAFETY: the piece stays as it is until the copies are over.
        unsafe { stream.copy_in(memory.at().add(start), &piece, 0, len) }?;
    }
    stream.synchronize()?;
    Ok(memory)
}
