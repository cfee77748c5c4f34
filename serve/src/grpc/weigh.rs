//! Requests of gRPC, weighed before they are decoded.
//!
//! An empty input takes two bytes of a message and hundreds in memory, so the limit on messages does not
//! bound what comes of them. What a request for inference takes is therefore counted from its bytes, and
//! put on the call's tab, before anything is made of it; the other messages say a few things and are
//! bounded by their length.
//!
//! Source: protobuf's encoding, and the field numbers of `proto/grpc_service.proto`.

use std::any::TypeId;
use std::marker::PhantomData;
use std::mem::size_of;

use bytes::Buf;
use prost::Message;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder};
use tonic_prost::ProstCodec;

use super::call;
use crate::error::Error;
use crate::proto::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use crate::proto::{
    InferParameter, ModelInferRequest, ModelRepositoryParameter, RepositoryModelLoadRequest,
};

/// Most bytes of a message that is no request for inference.
pub const FEW: usize = 1 << 20;
/// What a list may hold beside its elements, for it grows by half or twice.
const SLACK: usize = 2;
/// A parameter: its name, its value and its place in the table.
const PARAMETER: usize = size_of::<String>() + size_of::<InferParameter>() + 16;
/// The same of a request to load.
const LOADS: usize = size_of::<String>() + size_of::<ModelRepositoryParameter>() + 16;

/// The codec of the service.
#[derive(Clone, Debug)]
pub struct Weighed<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for Weighed<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for Weighed<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = <ProstCodec<T, U> as Codec>::Encoder;
    type Decoder = Scale<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<T, U>::default().encoder()
    }

    fn decoder(&mut self) -> Scale<U> {
        Scale(ProstCodec::<U, U>::default().decoder())
    }
}

/// Weighs messages that come to a call of the server, and decodes them.
#[derive(Debug)]
pub struct Scale<U: Message + Default + Send + 'static>(<ProstCodec<U, U> as Codec>::Decoder);

impl<U: Message + Default + Send + 'static> Decoder for Scale<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        // A client has no tab.
        if let Some(tab) = call::tab() {
            let len = from.remaining();
            let weight: Option<fn(&[u8]) -> usize> = match TypeId::of::<U>() {
                infer if infer == TypeId::of::<ModelInferRequest>() => Some(request),
                // Where clients may not load, it is as short as others: so many bytes may not come.
                load if load == TypeId::of::<RepositoryModelLoadRequest>() => Some(self::load),
                _ => None,
            };
            if let Some(weight) = weight {
                // What came packed was counted packed.
                let unpacked = if tab.is_packed() { len } else { 0 };
                tab.keep(0, unpacked);
                tab.add(weight(from.chunk()).saturating_add(unpacked))?;
            } else if len > FEW {
                let expected = format!("at most {FEW} bytes");
                return Err(Error::expected("message", expected, format!("{len} bytes")).into());
            }
        }
        self.0.decode(from)
    }
}

/// The fields of a message: their numbers and what they hold, nothing for groups, which the decoder
/// skips. Ends where it is malformed, which the decoder tells.
struct Fields<'a>(&'a [u8]);

/// What a field holds.
enum Field<'a> {
    /// A number of any size, or a group.
    Number,
    /// Bytes, a text, a message or packed numbers.
    Bytes(&'a [u8]),
}

impl<'a> Fields<'a> {
    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    /// Skips what of a group is behind its start; `None` where it has no end.
    fn skip_group(&mut self) -> Option<()> {
        let mut depth = 1_usize;
        while depth > 0 {
            let key = self.varint()?;
            match key & 7 {
                3 => depth += 1,
                4 => depth -= 1,
                _ => {
                    self.value(key)?;
                }
            }
        }
        Some(())
    }

    /// What the field of that key holds, which is no group; `None` where it is malformed.
    fn value(&mut self, key: u64) -> Option<Field<'a>> {
        let len = match key & 7 {
            0 => {
                self.varint()?;
                return Some(Field::Number);
            }
            1 => 8,
            2 => usize::try_from(self.varint()?).ok()?,
            5 => 4,
            _ => return None,
        };
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(match key & 7 {
            2 => Field::Bytes(bytes),
            _ => Field::Number,
        })
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = (u64, Field<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let key = self.varint()?;
        let field = match key & 7 {
            3 => {
                self.skip_group()?;
                Field::Number
            }
            _ => self.value(key)?,
        };
        Some((key >> 3, field))
    }
}

/// The model that a request for inference names, where it begins with that, as the protocol's clients
/// have it, and the version if that comes next: else there may be one further on. `message` may be a
/// part of it that is not whole.
pub fn asked(message: &[u8]) -> Option<(&str, Option<&str>)> {
    let mut fields = Fields(message);
    let Some((1, Field::Bytes(model))) = fields.next() else {
        return None;
    };
    let version = match fields.next()? {
        (2, Field::Bytes(version)) => Some(std::str::from_utf8(version).ok()?),
        _ => None,
    };
    Some((std::str::from_utf8(model).ok()?, version))
}

/// Bytes that a request for inference takes once it is decoded; its raw contents stay where they are.
fn request(message: &[u8]) -> usize {
    let of = |(number, field)| match (number, field) {
        (4, Field::Bytes(entry)) => PARAMETER * SLACK + entry.len(),
        (5, Field::Bytes(one)) => input(one),
        (6, Field::Bytes(one)) => output(one),
        (7, Field::Bytes(_)) => size_of::<bytes::Bytes>() * SLACK,
        (_, Field::Bytes(text)) => text.len(),
        (_, Field::Number) => 0,
    };
    Fields(message).map(of).fold(0, usize::saturating_add)
}

/// Bytes that a request to load takes once it is decoded; files stay where they are.
fn load(message: &[u8]) -> usize {
    let of = |(number, field)| match (number, field) {
        (3, Field::Bytes(entry)) => LOADS * SLACK + Fields(entry).map(texts).sum::<usize>(),
        (_, Field::Bytes(text)) => text.len(),
        (_, Field::Number) => 0,
    };
    Fields(message).map(of).fold(0, usize::saturating_add)
}

/// Of an entry of the table of its parameters: its name, and a value that is a text.
fn texts((number, field): (u64, Field<'_>)) -> usize {
    match (number, field) {
        (1, Field::Bytes(name)) => name.len(),
        (2, Field::Bytes(value)) => {
            let of = |(number, field)| match (number, field) {
                (3, Field::Bytes(text)) => text.len(),
                _ => 0,
            };
            Fields(value).map(of).sum()
        }
        _ => 0,
    }
}

fn input(message: &[u8]) -> usize {
    let of = |(number, field)| match (number, field) {
        (3, field) => numbers(field, 8),
        (4, Field::Bytes(entry)) => PARAMETER * SLACK + entry.len(),
        (5, Field::Bytes(all)) => contents(all),
        (_, Field::Bytes(text)) => text.len(),
        (_, Field::Number) => 0,
    };
    let own = size_of::<InferInputTensor>() * SLACK;
    Fields(message).map(of).fold(own, usize::saturating_add)
}

fn output(message: &[u8]) -> usize {
    let of = |(number, field)| match (number, field) {
        (2, Field::Bytes(entry)) => PARAMETER * SLACK + entry.len(),
        (_, Field::Bytes(text)) => text.len(),
        (_, Field::Number) => 0,
    };
    let own = size_of::<InferRequestedOutputTensor>() * SLACK;
    Fields(message).map(of).fold(own, usize::saturating_add)
}

fn contents(message: &[u8]) -> usize {
    let of = |(number, field)| match (number, field) {
        (1, field) => numbers(field, 1),
        (2 | 4, field) => numbers(field, 4),
        (3 | 5, field) => numbers(field, 8),
        (6 | 7, Field::Bytes(all)) => all.len() * SLACK,
        (6 | 7, Field::Number) => 8 * SLACK,
        (8, Field::Bytes(text)) => size_of::<Vec<u8>>() * SLACK + text.len(),
        _ => 0,
    };
    Fields(message).map(of).fold(0, usize::saturating_add)
}

/// Numbers of `size` bytes, packed or one.
fn numbers(field: Field<'_>, size: usize) -> usize {
    let num = match field {
        Field::Number => 1,
        Field::Bytes(packed) => packed.iter().filter(|&&byte| byte < 0x80).count(),
    };
    num.saturating_mul(size * SLACK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::InferTensorContents;

    fn of(message: &ModelInferRequest) -> (usize, usize) {
        let bytes = message.encode_to_vec();
        (bytes.len(), request(&bytes))
    }

    #[test]
    fn what_grows_weighs_more_than_its_bytes() {
        let empty = ModelInferRequest {
            inputs: vec![InferInputTensor::default(); 1000],
            ..ModelInferRequest::default()
        };
        let (len, weight) = of(&empty);
        assert_eq!(len, 2000);
        assert!(weight >= 1000 * size_of::<InferInputTensor>(), "{weight}");
        let contents = InferTensorContents {
            int64_contents: vec![1; 1000],
            bytes_contents: vec![Vec::new(); 1000],
            uint_contents: vec![1; 1000],
            bool_contents: vec![true; 1000],
            ..InferTensorContents::default()
        };
        let typed = ModelInferRequest {
            inputs: vec![InferInputTensor {
                shape: vec![1; 1000],
                contents: Some(contents),
                ..InferInputTensor::default()
            }],
            raw_input_contents: vec![bytes::Bytes::new(); 1000],
            ..ModelInferRequest::default()
        };
        let (len, weight) = of(&typed);
        let held = 1000 * (8 + 24 + 4 + 1 + 8 + size_of::<bytes::Bytes>());
        assert!(len < 10_000 && weight >= held, "{len} {weight}");
    }

    #[test]
    fn a_group_hides_nothing_behind_it() {
        let bomb = [0x2a, 0].repeat(1000);
        let weight = request(&bomb);
        assert!(weight >= 1000 * size_of::<InferInputTensor>(), "{weight}");
        let groups: [&[u8]; 3] = [
            &[0xa3, 6, 0xa4, 6],
            // Another one in it, and fields of all kinds.
            &[
                0xa3, 6, 0xab, 6, 0x08, 1, 0xac, 6, 0x12, 1, 9, 0x25, 1, 2, 3, 4, 0xa4, 6,
            ],
            &[0xa3, 6, 0x21, 1, 2, 3, 4, 5, 6, 7, 8, 0xa4, 6],
        ];
        for group in groups {
            let message = [group, &bomb].concat();
            ModelInferRequest::decode(&message[..]).expect("the decoder skips the group");
            assert_eq!(request(&message), weight, "{group:?}");
            let input = [&[0x2a, u8::try_from(group.len()).unwrap()], group].concat();
            assert_eq!(request(&input), request(&[0x2a, 0]), "{group:?}");
        }
        let mut many = [0xa3, 6].repeat(100_000);
        many.extend(&bomb);
        assert_eq!(request(&many), 0, "without an end");
    }

    #[test]
    fn raw_contents_weigh_next_to_nothing() {
        let raw = ModelInferRequest {
            model_name: "m".into(),
            raw_input_contents: vec![vec![0; 1 << 20].into()],
            ..ModelInferRequest::default()
        };
        let (len, weight) = of(&raw);
        assert!(len > 1 << 20 && weight < 200, "{len} {weight}");
    }

    #[test]
    fn files_of_a_load_weigh_next_to_nothing_and_texts_as_much_as_they_are_long() {
        use crate::proto::model_repository_parameter::ParameterChoice;
        let of = |name: &str, choice| {
            let value = ModelRepositoryParameter {
                parameter_choice: Some(choice),
            };
            let call = RepositoryModelLoadRequest {
                model_name: "m".into(),
                parameters: [(name.to_owned(), value)].into(),
                ..RepositoryModelLoadRequest::default()
            };
            load(&call.encode_to_vec())
        };
        let file = of(
            "file:1/a",
            ParameterChoice::BytesParam(vec![0; 1 << 20].into()),
        );
        assert!((LOADS * SLACK..1000).contains(&file), "{file}");
        let text = of("config", ParameterChoice::StringParam(" ".repeat(1 << 20)));
        assert!((1 << 20..(1 << 20) + 1000).contains(&text), "{text}");
        let name = of(&" ".repeat(1 << 20), ParameterChoice::BoolParam(true));
        assert!((1 << 20..(1 << 20) + 1000).contains(&name), "{name}");
    }

    #[test]
    fn malformed_messages_end_where_they_are() {
        for bytes in [
            &[0xff; 40][..],
            &[0x2a],
            &[0x2a, 0xff, 0x7f],
            &[0x0b],
            &[0x29, 1],
        ] {
            assert_eq!(request(bytes), 0, "{bytes:?}");
        }
    }
}
