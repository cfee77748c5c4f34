//! Checkpoints of llama2.c, version 0: seven i32 (features, hidden features of the feed-forward
//! layers, layers, query heads, key heads, vocabulary, positions), then f32 tensors in a fixed
//! order, each kind for all layers together. Tensors get the names that Llama models have
//! elsewhere; queries and keys stay in pairs `(2i, 2i + 1)`.
//!
//! Source: karpathy/llama2.c, `run.c`, `memory_map_weights`.

use std::path::Path;
use std::sync::Arc;

use crate::dtype::DType;
use crate::error::Error;
use crate::mmap;
use crate::tensor::{Bytes, Tensor};

/// Bytes of the header.
const HEADER: usize = 28;
/// Largest number in a header: more is a mistake.
const MAX: i32 = 1 << 24;

/// All tensors, by name, in the mapped file.
///
/// # Errors
/// [`Error::File`] for a file that is missing, whose header is not plausible, or whose length is
/// not the one that its header asks for.
pub(super) fn read(path: &Path) -> Result<Vec<(String, Tensor)>, Error> {
    let failed = |what: String| Error::File {
        path: path.display().to_string(),
        what,
    };
    let map =
        mmap::map(path).map_err(|e| failed(format!("expected a file of llama2.c, got {e}")))?;
    let parts = parts(&map).map_err(failed)?;
    let map = Arc::new(map);
    let mut tensors = Vec::new();
    let mut offset = HEADER;
    for (name, dims) in parts {
        let len = dims.iter().product::<usize>() * DType::F32.size();
        let data = Bytes::Mapped {
            map: Arc::clone(&map),
            offset,
            len,
        };
        offset += len;
        // Tables that we compute ourselves have no name.
        if let Some(name) = name {
            let dtype = DType::F32;
            tensors.push((name, Tensor { dtype, dims, data }));
        }
    }
    Ok(tensors)
}

type Part = (Option<String>, Vec<usize>);

/// The tensors of a file in order, checked against its length.
fn parts(bytes: &[u8]) -> Result<Vec<Part>, String> {
    let header = bytes
        .get(..HEADER)
        .ok_or_else(|| format!("header: expected {HEADER} bytes, got {}", bytes.len()))?;
    let numbers: Vec<i32> = bytemuck::pod_collect_to_vec(header);
    let plausible = numbers.iter().enumerate().all(|(i, &n)| {
        // A negative vocabulary says that the output layer is its own.
        (1..=MAX).contains(&if i == 5 { n.saturating_abs() } else { n })
    });
    let size = |i: usize| numbers[i].unsigned_abs() as usize;
    let [d, hidden, layers, heads, kv_heads, vocab, positions] = std::array::from_fn(size);
    if !plausible || layers > 1000 || !d.is_multiple_of(heads) {
        let expected = "seven plausible sizes, heads dividing features";
        return Err(format!("header: expected {expected}, got {numbers:?}"));
    }
    let (head, kv) = (d / heads, d / heads * kv_heads);
    let mut parts: Vec<Part> = vec![(Some("model.embed_tokens.weight".into()), vec![vocab, d])];
    let mut each = |part: &str, dims: &[usize]| {
        let name = |i| Some(format!("model.layers.{i}.{part}.weight"));
        parts.extend((0..layers).map(|i| (name(i), dims.to_vec())));
    };
    each("input_layernorm", &[d]);
    each("self_attn.q_proj", &[d, d]);
    each("self_attn.k_proj", &[kv, d]);
    each("self_attn.v_proj", &[kv, d]);
    each("self_attn.o_proj", &[d, d]);
    each("post_attention_layernorm", &[d]);
    each("mlp.gate_proj", &[hidden, d]);
    each("mlp.down_proj", &[d, hidden]);
    each("mlp.up_proj", &[hidden, d]);
    parts.push((Some("model.norm.weight".into()), vec![d]));
    parts.push((None, vec![positions, head / 2, 2]));
    if numbers[5] < 0 {
        parts.push((Some("lm_head.weight".into()), vec![vocab, d]));
    }
    let elements = parts.iter().try_fold(0usize, |sum, (_, dims)| {
        let each = dims.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim))?;
        sum.checked_add(each)
    });
    let needed = elements.and_then(|n| n.checked_mul(4)?.checked_add(HEADER));
    if needed != Some(bytes.len()) {
        let needed = needed.map_or_else(|| "more".to_owned(), |n| n.to_string());
        let got = bytes.len();
        return Err(format!(
            "expected {needed} bytes for {numbers:?}, got {got}"
        ));
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: [i32; 7], elements: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> = header.iter().flat_map(|n| n.to_le_bytes()).collect();
        bytes.extend((0..elements).flat_map(|n| (n as f32).to_le_bytes()));
        bytes
    }

    #[test]
    fn tensors_lie_in_the_documented_order() {
        // Embedding 24, two layers of 4 + 16 + 8 + 8 + 16 + 4 + 3 * 12, the last norm 4, tables 8.
        let shared = file([4, 3, 2, 2, 1, 6, 4], 24 + 2 * 92 + 4 + 8);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.bin");
        std::fs::write(&path, &shared).unwrap();
        let tensors = read(&path).unwrap();
        assert_eq!(tensors.len(), 2 + 2 * 9);
        let first = |name: &str| {
            let (_, tensor) = tensors.iter().find(|(n, _)| n == name).unwrap();
            (tensor.to_f32()[0], tensor.dims.clone())
        };
        assert_eq!(
            first("model.layers.1.input_layernorm.weight"),
            (28.0, vec![4])
        );
        assert_eq!(
            first("model.layers.0.self_attn.k_proj.weight"),
            (64.0, vec![2, 4])
        );
        assert_eq!(
            first("model.layers.1.mlp.down_proj.weight"),
            (172.0, vec![4, 3])
        );
        assert_eq!(first("model.norm.weight"), (208.0, vec![4]));
        let own = file([4, 3, 2, 2, 1, -6, 4], 24 + 2 * 92 + 4 + 8 + 24);
        let own = parts(&own).unwrap();
        assert_eq!(own.last().unwrap().0.as_deref(), Some("lm_head.weight"));
    }

    #[test]
    fn damaged_files_are_refused() {
        let whole = file([4, 3, 2, 2, 1, 6, 4], 220);
        assert!(parts(&whole).is_ok());
        for len in [0, 5, 27, 28, whole.len() - 1] {
            let message = parts(&whole[..len]).unwrap_err();
            assert!(message.contains(&format!("got {len}")), "{message}");
        }
        for (at, value) in [(0, 0), (1, -3), (2, i32::MAX), (3, 3), (5, i32::MIN)] {
            let mut header = [4, 3, 2, 2, 1, 6, 4];
            header[at] = value;
            assert!(parts(&file(header, 220)).is_err(), "{header:?}");
        }
        let huge = [1 << 24, 1 << 24, 1000, 1, 1 << 24, 1 << 24, 1 << 24];
        assert!(parts(&file(huge, 1)).unwrap_err().contains("expected"));
    }
}
