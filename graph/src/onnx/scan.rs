//! Counts the messages of a file before it is decoded.
//!
//! A message of two bytes decodes to hundreds: without a count, a file of some megabytes could
//! fill the memory. What is no protobuf is left to the decoder, which says so.

use prost::encoding::{WireType, decode_key, decode_varint};

use super::{Error, Limits};

/// Messages of the format that hold others.
#[derive(Clone, Copy)]
enum Kind {
    Model,
    Graph,
    Node,
    Attr,
    /// What is said of a value, its type, and its shape.
    Info,
    Type,
    TensorType,
    Shape,
    Tensor,
    Other,
}

impl Kind {
    /// What field `tag` of such a message is; `None` for plain bytes.
    fn field(self, tag: u32) -> Option<Self> {
        Some(match (self, tag) {
            (Self::Model, 7) => Self::Graph,
            (Self::Graph, 1) => Self::Node,
            (Self::Node, 5) => Self::Attr,
            (Self::Attr, 6) => Self::Graph,
            (Self::Graph, 11 | 12) => Self::Info,
            (Self::Info, 2) => Self::Type,
            (Self::Type, 1) => Self::TensorType,
            (Self::TensorType, 2) => Self::Shape,
            (Self::Shape, 1) => Self::Other,
            (Self::Graph | Self::Attr, 5) => Self::Tensor,
            (Self::Model, 8 | 25) | (Self::Graph, 15) | (Self::Tensor, 13) => Self::Other,
            // Names and texts: each takes a string.
            (Self::Node, 1 | 2) | (Self::Attr, 9) => Self::Other,
            _ => return None,
        })
    }
}

/// Checks that `bytes`, a model, hold no more messages than the limit.
///
/// # Errors
/// [`Error::Invalid`] if they do.
pub fn check(bytes: &[u8], limits: &Limits) -> Result<(), Error> {
    let mut left = limits.messages;
    if count(bytes, Kind::Model, 0, &mut left) {
        return Ok(());
    }
    let expected = format!("at most {}", limits.messages);
    Err(Error::invalid("file", "messages", expected, "more"))
}

/// Takes the messages in `bytes` off `left`; `false` when there are too many.
fn count(mut bytes: &[u8], kind: Kind, depth: usize, left: &mut usize) -> bool {
    // The decoder refuses what is nested deeper than this.
    if depth > 100 {
        return true;
    }
    while !bytes.is_empty() {
        let Ok((tag, wire)) = decode_key(&mut bytes) else {
            return true;
        };
        let skipped = match wire {
            WireType::Varint => {
                if decode_varint(&mut bytes).is_err() {
                    return true;
                }
                0
            }
            WireType::ThirtyTwoBit => 4,
            WireType::SixtyFourBit => 8,
            WireType::LengthDelimited => {
                let Ok(len) = decode_varint(&mut bytes) else {
                    return true;
                };
                usize::try_from(len).unwrap_or(usize::MAX)
            }
            WireType::StartGroup | WireType::EndGroup => 0,
        };
        let Some((part, rest)) = bytes.split_at_checked(skipped) else {
            return true;
        };
        bytes = rest;
        if let Some(inner) = kind
            .field(tag)
            .filter(|_| wire == WireType::LengthDelimited)
        {
            match left.checked_sub(1) {
                Some(fewer) => *left = fewer,
                None => return false,
            }
            let holds_others = !matches!(inner, Kind::Other);
            if holds_others && !count(part, inner, depth + 1, left) {
                return false;
            }
        }
    }
    true
}
