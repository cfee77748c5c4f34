//! Requests that say what others said before.
//!
//! Clients of a model send the same JSON again and again: names, types, shapes and parameters are the
//! same, and the elements that differ stand behind it. So each thread keeps what it has made of some
//! texts, and makes the request of one that comes again from that, with its own elements.
//!
//! Invariant: what is made so is what reading the text anew would give. So only requests are kept whose
//! elements all lie behind the JSON, by sizes that it states, and that depend on nothing that may change
//! while the version is loaded: no regions of shared memory. Texts of `BYTES` are not, since whether they
//! are sound is in their elements.

use std::cell::RefCell;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

use super::body::Answered;
use super::json;
use crate::dtype::DataType;
use crate::infer::{Input, Params, Recipe, Request, Wanted};

/// Texts that a thread keeps, each in the place that its hash says.
const MOST: usize = 64;
/// Most bytes of one.
const LONGEST: usize = 1024;
/// Of so many texts that are not known one is kept: where each comes once, the others cost nothing.
const ONE_OF: u32 = 8;

/// A request but for its elements.
struct Form {
    /// Of the loaded version that it was sent to.
    generation: u64,
    text: Box<[u8]>,
    id: String,
    params: Params,
    wanted: Vec<Wanted>,
    /// Without elements, and how many bytes of them there are.
    inputs: Vec<(Input, usize)>,
    recipe: Arc<OnceLock<Recipe>>,
    answered: Arc<Answered>,
}

#[derive(Default)]
struct Forms {
    places: Vec<Option<Form>>,
    /// Texts that were not known.
    num_unknown: u32,
}

thread_local! {
    static FORMS: RefCell<Forms> = RefCell::default();
}

fn place(generation: u64, text: &[u8]) -> usize {
    (xxh3_64(text).wrapping_add(generation) % MOST as u64) as usize
}

/// The request to the version `generation` that a text which was kept makes with the bytes behind it, and
/// how those that say the same are answered; none of one that is not known, or has other bytes behind it.
pub fn recall(generation: u64, text: &[u8], behind: &Bytes) -> Option<(Request, Arc<Answered>)> {
    if text.len() > LONGEST {
        return None;
    }
    FORMS.with_borrow(|forms| {
        let form = forms.places.get(place(generation, text))?.as_ref()?;
        let is_it = form.generation == generation && *form.text == *text;
        let size: usize = form.inputs.iter().map(|(_, size)| size).sum();
        if !is_it || size != behind.len() {
            return None;
        }
        let mut behind = behind.clone();
        let inputs = form.inputs.iter().map(|(input, size)| Input {
            data: behind.split_to(*size),
            ..input.clone()
        });
        let request = Request {
            inputs: inputs.collect(),
            id: form.id.clone(),
            params: form.params.clone(),
            wanted: form.wanted.clone(),
            recipe: Some(form.recipe.clone()),
            ..Request::default()
        };
        Some((request, form.answered.clone()))
    })
}

/// Whether a request may be kept, by what its text says.
pub fn may_keep(body: &json::Body) -> bool {
    let is_free = |params: &Params| params.get("shared_memory_region").is_none();
    let mut inputs = body.inputs.iter();
    let are_behind = inputs.all(|input| {
        let has_size = input.params.get("binary_data_size").is_some();
        let has_bytes = matches!(input.datatype.0, Ok(t) if t != DataType::Bytes);
        has_size && has_bytes && input.data.is_none() && is_free(&input.params)
    });
    are_behind && body.outputs.iter().all(|o| is_free(&o.params))
}

/// Keeps the request that a text was found to make, if it [may be](may_keep).
pub fn keep(generation: u64, text: &[u8], request: &Request) {
    if text.len() > LONGEST {
        return;
    }
    FORMS.with_borrow_mut(|forms| {
        forms.num_unknown = forms.num_unknown.wrapping_add(1);
        if !forms.num_unknown.is_multiple_of(ONE_OF) {
            return;
        }
        let inputs = request.inputs.iter().map(|input| {
            let without = Input {
                name: input.name.clone(),
                shape: input.shape.clone(),
                data: Bytes::new(),
                ..*input
            };
            (without, input.data.len())
        });
        let form = Form {
            generation,
            text: text.into(),
            id: request.id.clone(),
            params: request.params.clone(),
            wanted: request.wanted.clone(),
            inputs: inputs.collect(),
            recipe: Arc::default(),
            answered: Arc::default(),
        };
        forms.places.resize_with(MOST, || None);
        forms.places[place(generation, text)] = Some(form);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::infer::Param;
    use crate::memory::Memory;

    fn request(bytes: &[u8]) -> Request {
        Request {
            id: "7".into(),
            params: Params::from_iter([("priority".to_owned(), Param::Int(2))]),
            inputs: vec![Input {
                name: "x".into(),
                data_type: DataType::Int8,
                shape: vec![1, bytes.len()],
                data: bytes.to_vec().into(),
            }],
            wanted: vec![Wanted {
                name: "y".into(),
                binary: Some(true),
                ..Wanted::default()
            }],
            ..Request::default()
        }
    }

    fn told(request: &Request) -> String {
        format!("{request:?}")
    }

    #[test]
    fn a_text_that_comes_again_makes_the_same_request_with_other_elements() {
        let text = b"{some text}";
        let behind = |bytes: &[u8]| Bytes::copy_from_slice(bytes);
        for _ in 0..2 * ONE_OF {
            keep(3, text, &request(&[1, 2]));
        }
        for bytes in [[1, 2], [9, 8]] {
            let (mut again, _) = recall(3, text, &behind(&bytes)).expect("it is kept");
            assert!(again.recipe.take().is_some());
            assert_eq!(told(&again), told(&request(&bytes)));
        }
        assert!(recall(3, text, &behind(&[1])).is_none(), "too few bytes");
        assert!(recall(3, text, &behind(&[1; 3])).is_none(), "too many");
        assert!(
            recall(4, text, &behind(&[1, 2])).is_none(),
            "another version"
        );
        assert!(recall(3, b"{some texT}", &behind(&[1, 2])).is_none());
        // Another thread has its own.
        let other = std::thread::spawn(move || recall(3, text, &Bytes::from_static(&[1, 2])));
        assert!(other.join().unwrap().is_none());
    }

    #[test]
    fn texts_that_come_once_are_kept_seldom_and_never_many() {
        let mut num_kept = 0;
        for i in 0..4096_u32 {
            let text = i.to_le_bytes();
            keep(0, &text, &request(&[5]));
            num_kept += usize::from(recall(0, &text, &Bytes::from_static(&[5])).is_some());
        }
        assert_eq!(num_kept, 4096 / ONE_OF as usize);
        let known = |i: &u32| recall(0, &i.to_le_bytes(), &Bytes::from_static(&[5])).is_some();
        let left = (0..4096).filter(known).count();
        assert!(left <= MOST && left > MOST / 2, "{left}");
        let long = vec![b' '; LONGEST + 1];
        for _ in 0..2 * ONE_OF {
            keep(0, &long, &request(&[5]));
        }
        assert!(recall(0, &long, &Bytes::from_static(&[5])).is_none());
    }

    #[test]
    fn what_depends_on_more_than_its_text_is_not_kept() {
        let memory = Arc::new(Memory::new(1 << 20, 1 << 20));
        let may = |input: &str, output: &str| {
            let text = format!(
                r#"{{"inputs":[{{"name":"x","shape":[1],{input}}}],"outputs":[{{"name":"y"{output}}}]}}"#
            );
            may_keep(&json::body(text.as_bytes(), &memory.tab()).unwrap())
        };
        let sized = r#""datatype":"INT8","parameters":{"binary_data_size":1}"#;
        assert!(may(sized, ""));
        assert!(may(sized, r#","parameters":{"classification":1}"#));
        let region = r#","parameters":{"shared_memory_region":"r"}"#;
        assert!(!may(sized, region));
        for other in [
            r#""datatype":"INT8","data":[1]"#,
            r#""datatype":"INT8","data":[],"parameters":{"binary_data_size":1}"#,
            r#""datatype":"BYTES","parameters":{"binary_data_size":5}"#,
            r#""datatype":"OTHER","parameters":{"binary_data_size":1}"#,
            r#""datatype":"INT8","parameters":{"shared_memory_region":"r"}"#,
            r#""datatype":"INT8","parameters":{"shared_memory_region":"r","binary_data_size":1}"#,
        ] {
            assert!(!may(other, ""), "{other}");
        }
    }
}
