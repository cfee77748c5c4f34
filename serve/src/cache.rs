//! The response cache (`response_cache`): outputs of requests whose inputs were seen before.
//!
//! All models share it; it holds a bounded number of bytes, and those that were used least recently
//! go. Keys are digests that nobody can find two inputs for, so an answer is never another's.

use std::sync::{Arc, Mutex, PoisonError};

use lazybatch_graph::{Sampling, Tensor};
use lru::LruCache;
use sha2::{Digest, Sha256};

use crate::infer::Request;

/// Outputs of a request: of each of the engine's requests that it became, in order.
pub type Outputs = Vec<Vec<Tensor>>;

/// Bytes that an entry takes beside its tensors, about.
const OVERHEAD: u64 = 256;
/// Bytes that a tensor takes beside its elements, about: itself, its dims, and what an allocation of
/// each and of its elements takes.
const OF_TENSOR: u64 = 128;
/// Bytes of a list of tensors.
const OF_LIST: u64 = size_of::<Vec<Tensor>>() as u64;

/// Bytes that an entry of `outputs` takes, about.
fn size(outputs: &Outputs) -> u64 {
    let tensors = outputs.iter().flatten();
    let tensors = tensors.map(|t| t.data.as_slice().len() as u64 + OF_TENSOR);
    OVERHEAD + OF_LIST * outputs.len() as u64 + tensors.sum::<u64>()
}

/// What an answer depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key([u8; 32]);

impl Key {
    /// Of a request to the loaded version `generation`, which runs at most `max_steps` steps and
    /// chooses tokens as `how` says.
    pub fn of(
        generation: u64,
        request: &Request,
        max_steps: Option<u32>,
        how: [i32; Sampling::WORDS],
    ) -> Self {
        let mut inputs: Vec<_> = request.inputs.iter().collect();
        inputs.sort_by_key(|i| &i.name);
        let mut digest = Sha256::new();
        digest.update(generation.to_le_bytes());
        digest.update(max_steps.unwrap_or(u32::MAX).to_le_bytes());
        for word in how {
            digest.update(word.to_le_bytes());
        }
        // Every part states its length, so no two lists read alike.
        let mut part = |bytes: &[u8]| {
            digest.update((bytes.len() as u64).to_le_bytes());
            digest.update(bytes);
        };
        for input in inputs {
            part(input.name.as_bytes());
            part(input.data_type.name().as_bytes());
            let shape: Vec<u8> = input.shape.iter().flat_map(|d| d.to_le_bytes()).collect();
            part(&shape);
            part(&input.data);
        }
        Self(digest.finalize().into())
    }
}

/// See the module.
pub struct Cache {
    kept: Mutex<Kept>,
    most: u64,
}

struct Kept {
    entries: LruCache<Key, (Arc<Outputs>, u64)>,
    bytes: u64,
}

impl Cache {
    /// Of at most `most` bytes.
    pub fn new(most: u64) -> Self {
        let kept = Kept {
            entries: LruCache::unbounded(),
            bytes: 0,
        };
        Self {
            kept: Mutex::new(kept),
            most,
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is kept under `key`.
    pub fn get(&self, key: &Key) -> Option<Arc<Outputs>> {
        self.lock()
            .entries
            .get(key)
            .map(|(outputs, _)| outputs.clone())
    }

    /// Keeps `outputs`, if they fit at all.
    pub fn put(&self, key: Key, outputs: Arc<Outputs>) {
        let bytes = size(&outputs);
        if bytes > self.most {
            return;
        }
        let mut kept = self.lock();
        if let Some((_, before)) = kept.entries.push(key, (outputs, bytes)).map(|(_, e)| e) {
            kept.bytes -= before;
        }
        kept.bytes += bytes;
        while kept.bytes > self.most {
            let Some((_, (_, bytes))) = kept.entries.pop_lru() else {
                break;
            };
            kept.bytes -= bytes;
        }
    }

    /// Entries and their bytes.
    #[cfg(test)]
    fn size(&self) -> (usize, u64) {
        let kept = self.lock();
        (kept.entries.len(), kept.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DataType;
    use crate::infer::Input;

    fn request(inputs: &[(&str, &[usize], &[u8])]) -> Request {
        let input = |(name, shape, data): &(&str, &[usize], &[u8])| Input {
            name: (*name).into(),
            data_type: DataType::Uint8,
            shape: shape.to_vec(),
            data: data.to_vec().into(),
        };
        Request {
            inputs: inputs.iter().map(input).collect(),
            ..Request::default()
        }
    }

    #[test]
    fn keys_are_those_of_the_inputs_whatever_their_order() {
        let key = |inputs: &[(&str, &[usize], &[u8])]| Key::of(1, &request(inputs), None, [0; 4]);
        let a = key(&[("a", &[2], &[1, 2]), ("b", &[1], &[3])]);
        assert_eq!(a, key(&[("b", &[1], &[3]), ("a", &[2], &[1, 2])]));
        let same = |generation, max_steps, how| {
            let request = request(&[("a", &[2], &[1, 2]), ("b", &[1], &[3])]);
            Key::of(generation, &request, max_steps, how)
        };
        assert_eq!(a, same(1, None, [0; 4]));
        let others = [
            key(&[("a", &[2], &[1, 2]), ("b", &[1], &[4])]),
            key(&[("a", &[1, 2], &[1, 2]), ("b", &[1], &[3])]),
            key(&[("a", &[2], &[1, 2]), ("c", &[1], &[3])]),
            same(2, None, [0; 4]),
            same(1, Some(4), [0; 4]),
            same(1, None, [0, 0, 7, 0]),
        ];
        assert!(others.iter().all(|o| *o != a));
    }

    #[test]
    fn the_least_recently_used_go_when_the_bytes_are_used_up() {
        let outputs = || Arc::new(vec![vec![Tensor::from_f32(&[64], &[0.0; 64])]]);
        let key = |i: u8| Key([i; 32]);
        // 256 bytes of elements, and what is around them.
        let each = 256 + OVERHEAD + OF_TENSOR + OF_LIST;
        let cache = Cache::new(3 * each + 100);
        for i in 0..3 {
            cache.put(key(i), outputs());
        }
        assert_eq!(cache.size(), (3, 3 * each));
        assert!(cache.get(&key(0)).is_some());
        cache.put(key(3), outputs());
        let there = [0, 1, 2, 3].map(|i| cache.get(&key(i)).is_some());
        assert_eq!(there, [true, false, true, true]);
        cache.put(key(3), outputs());
        assert_eq!(cache.size(), (3, 3 * each));
        let large = Arc::new(vec![vec![Tensor::from_f32(&[1024], &[0.0; 1024])]]);
        cache.put(key(9), large);
        assert_eq!(cache.size(), (3, 3 * each), "too large for all of it");
    }

    #[test]
    fn small_tensors_take_more_than_their_elements() {
        // Of each of 64 samples two numbers.
        let one = || {
            let number = || Tensor::from_f32(&[1, 1], &[0.5]);
            Arc::new(vec![vec![number(), number()]; 64])
        };
        let cache = Cache::new(1 << 20);
        for i in 0..=u8::MAX {
            cache.put(Key([i; 32]), one());
        }
        let (num, bytes) = cache.size();
        assert!((50..60).contains(&num), "{num} of {bytes} bytes");
        // What they are without what is allocated for them.
        let held = 128 * size_of::<Tensor>() + 64 * size_of::<Vec<Tensor>>();
        assert!(bytes >= (num * held) as u64);
    }
}
