//! Host tensors and where weights come from.

use std::collections::TryReserveError;
use std::io;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use crate::dtype::DType;
use crate::error::Error;
use crate::mmap;

/// The bytes of a tensor: owned, a part of somebody's message, or a range of a mapped file.
#[derive(Clone, Debug)]
pub enum Bytes {
    /// Owned bytes.
    Owned(Arc<[u8]>),
    /// A part of what came in one piece, which stays as long as this does.
    Shared(bytes::Bytes),
    /// `len` bytes at `offset` of a mapped file.
    Mapped {
        /// The file.
        map: Arc<memmap2::Mmap>,
        /// First byte.
        offset: usize,
        /// Number of bytes.
        len: usize,
    },
}

impl Bytes {
    /// The file at `path`, mapped for reading.
    ///
    /// # Errors
    /// What opening or mapping it fails with; an empty file cannot be mapped on every system.
    pub fn map(path: &Path) -> io::Result<Self> {
        let map = mmap::map(path)?;
        let len = map.len();
        Ok(Self::Mapped {
            map: Arc::new(map),
            offset: 0,
            len,
        })
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Self::Owned(bytes) => bytes,
            Self::Shared(bytes) => bytes,
            Self::Mapped { map, offset, len } => &map[*offset..*offset + *len],
        }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<Vec<u8>> for Bytes {
    /// Without a copy.
    fn from(bytes: Vec<u8>) -> Self {
        Self::Shared(bytes.into())
    }
}

impl From<bytes::Bytes> for Bytes {
    fn from(bytes: bytes::Bytes) -> Self {
        Self::Shared(bytes)
    }
}

impl From<Bytes> for bytes::Bytes {
    /// Without a copy.
    fn from(bytes: Bytes) -> Self {
        match bytes {
            Bytes::Shared(bytes) => bytes,
            other => Self::from_owner(other),
        }
    }
}

/// Elements that are given away.
struct Floats(Vec<f32>);

impl AsRef<[u8]> for Floats {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

/// A dense row-major tensor in host memory.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Element type.
    pub dtype: DType,
    /// Dimensions, outermost first.
    pub dims: Vec<usize>,
    /// Elements, little-endian.
    pub data: Bytes,
}

impl Tensor {
    /// A tensor from its bytes.
    ///
    /// # Errors
    /// [`Error::Tensor`] if the number of bytes is not that of `dims` and `dtype`.
    pub fn from_bytes(dtype: DType, dims: Vec<usize>, bytes: Vec<u8>) -> Result<Self, Error> {
        let expected = dims.iter().product::<usize>() * dtype.size();
        if bytes.len() != expected {
            return Err(Error::Tensor {
                what: format!("tensor {dtype}{dims:?}"),
                expected: format!("{expected} bytes"),
                got: format!("{} bytes", bytes.len()),
            });
        }
        Ok(Self {
            dtype,
            dims,
            data: Bytes::Owned(bytes.into()),
        })
    }

    /// An f32 tensor.
    ///
    /// # Panics
    /// If the number of elements is not the product of `dims`.
    pub fn from_f32(dims: &[usize], data: &[f32]) -> Self {
        assert_eq!(
            data.len(),
            dims.iter().product::<usize>(),
            "elements of {dims:?}"
        );
        Self {
            dtype: DType::F32,
            dims: dims.to_vec(),
            data: Bytes::Owned(Arc::from(bytemuck::cast_slice::<_, u8>(data))),
        }
    }

    /// The same of elements that are given away, without a copy.
    ///
    /// # Panics
    /// If the number of elements is not the product of `dims`.
    pub fn of_f32(dims: Vec<usize>, data: Vec<f32>) -> Self {
        let num = dims.iter().product::<usize>();
        assert_eq!(data.len(), num, "elements of {dims:?}");
        Self {
            dtype: DType::F32,
            dims,
            data: Bytes::Shared(bytes::Bytes::from_owner(Floats(data))),
        }
    }

    /// An i32 tensor.
    ///
    /// # Panics
    /// If the number of elements is not the product of `dims`.
    pub fn from_i32(dims: &[usize], data: &[i32]) -> Self {
        assert_eq!(
            data.len(),
            dims.iter().product::<usize>(),
            "elements of {dims:?}"
        );
        Self {
            dtype: DType::I32,
            dims: dims.to_vec(),
            data: Bytes::Owned(Arc::from(bytemuck::cast_slice::<_, u8>(data))),
        }
    }

    /// The elements where they lie, ids as the bits of an i32; `None` unless they are f32 or i32, start on a
    /// whole word and are as the host reads them.
    pub fn words(&self) -> Option<&[f32]> {
        let are_words = matches!(self.dtype, DType::F32 | DType::I32);
        if !are_words || cfg!(target_endian = "big") {
            return None;
        }
        bytemuck::try_cast_slice(self.data.as_slice()).ok()
    }

    /// The same tensor; elements that are f32 and do not start on a whole word are copied to where they do.
    ///
    /// # Panics
    /// If the number of elements is not the product of the dimensions.
    pub fn on_words(self) -> Self {
        if self.dtype != DType::F32 || self.words().is_some() {
            return self;
        }
        let data = self.to_f32();
        Self::of_f32(self.dims, data)
    }

    /// Number of elements.
    pub fn num_elems(&self) -> usize {
        self.dims.iter().product()
    }

    /// The elements as f32, converted from any dtype.
    pub fn to_f32(&self) -> Vec<f32> {
        let bytes = self.data.as_slice();
        match self.dtype {
            DType::F32 => chunks(bytes, f32::from_le_bytes),
            DType::F16 => chunks(bytes, |b: [u8; 2]| half::f16::from_le_bytes(b).to_f32()),
            DType::BF16 => chunks(bytes, |b: [u8; 2]| half::bf16::from_le_bytes(b).to_f32()),
            DType::I8 => chunks(bytes, |b: [u8; 1]| f32::from(i8::from_le_bytes(b))),
            DType::I32 => chunks(bytes, |b: [u8; 4]| i32::from_le_bytes(b) as f32),
            DType::I64 => chunks(bytes, |b: [u8; 8]| i64::from_le_bytes(b) as f32),
        }
    }

    /// The elements as i32, from an integer dtype.
    ///
    /// # Panics
    /// If the dtype is a float; an i64 outside of i32 saturates.
    pub fn to_i32(&self) -> Vec<i32> {
        let bytes = self.data.as_slice();
        match self.dtype {
            DType::I8 => chunks(bytes, |b: [u8; 1]| i32::from(i8::from_le_bytes(b))),
            DType::I32 => chunks(bytes, i32::from_le_bytes),
            DType::I64 => chunks(bytes, |b: [u8; 8]| {
                i64::from_le_bytes(b).clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32
            }),
            float => panic!("integer elements of a {float} tensor"),
        }
    }
}

fn chunks<const N: usize, T>(bytes: &[u8], f: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes
        .chunks_exact(N)
        .map(|c| f(c.try_into().expect("chunks of N bytes")))
        .collect()
}

/// Where a weight's elements come from.
#[derive(Clone, Debug)]
pub enum WeightSource {
    /// Given.
    Data(Tensor),
    /// All elements equal.
    Constant(f32),
    /// Uniform in `[-bound, bound]`, from a seed; generated when a device loads the weight, so that
    /// a large synthetic model costs nothing until then.
    Seeded {
        /// Seed of this weight.
        seed: u64,
        /// Largest magnitude.
        bound: f32,
    },
}

impl WeightSource {
    /// The `num` elements as f32.
    ///
    /// # Panics
    /// If there is no memory for them.
    pub fn to_f32(&self, num: usize) -> Vec<f32> {
        match self.try_to_f32(num) {
            Ok(elems) => elems,
            Err(e) => panic!("{num} elements of a weight: {e}"),
        }
    }

    /// The `num` elements as f32.
    ///
    /// # Errors
    /// No memory for elements that are made.
    pub fn try_to_f32(&self, num: usize) -> Result<Vec<f32>, TryReserveError> {
        let mut elems = Vec::new();
        match self {
            Self::Data(tensor) => return Ok(tensor.to_f32()),
            Self::Constant(value) => {
                elems.try_reserve_exact(num)?;
                elems.resize(num, *value);
            }
            Self::Seeded { seed, bound } => {
                let mut state = *seed;
                elems.try_reserve_exact(num)?;
                elems.extend((0..num).map(|_| {
                    let unit = (split_mix(&mut state) >> 40) as f32 / (1u64 << 23) as f32;
                    (unit - 1.0) * bound
                }));
            }
        }
        Ok(elems)
    }
}

/// SplitMix64. Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014.
fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
