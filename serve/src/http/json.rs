//! The JSON of requests, read without a tree of values.
//!
//! Elements go into the bytes of their tensor as they are parsed, and those are put on the call's tab
//! before they are taken; lists and names are bounded. Where a tensor's elements come before its type,
//! the text is parsed a second time, with the types that the first time has found.
//!
//! Plain requests are read by [`super::plain`] instead.

use std::cell::{Cell, RefCell};
use std::fmt;

use indexmap::IndexMap;
use serde::Deserialize;
use serde::de::{
    DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};

use super::element::{Element, with_words, write};
use crate::dtype::DataType;
use crate::error::{Error, Result};
use crate::infer::{LOOKED_AT, MAX_LISTED, Param, Params};
use crate::memory::Tab;

/// Most dimensions of a tensor.
pub const MAX_DIMS: usize = 64;

/// An inference request.
pub struct Body {
    pub id: String,
    pub params: Params,
    pub inputs: Vec<Input>,
    pub outputs: Vec<Output>,
}

/// An input of it.
pub struct Input {
    pub name: String,
    pub datatype: Named,
    pub shape: Vec<u64>,
    pub params: Params,
    pub data: Option<Elements>,
}

/// The type that a tensor is said to have, or a name that is none's.
pub struct Named(pub std::result::Result<DataType, String>);

impl<'de> Deserialize<'de> for Named {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        from.deserialize_str(NamedVisitor)
    }
}

struct NamedVisitor;

impl Visitor<'_> for NamedVisitor {
    type Value = Named;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E>(self, name: &str) -> std::result::Result<Named, E> {
        Ok(Named(DataType::parse(name).ok_or_else(|| name.to_owned())))
    }
}

/// An output that it asks for.
pub struct Output {
    pub name: String,
    pub params: Params,
}

/// Elements of a tensor, however nested they were.
#[derive(Default)]
pub struct Elements {
    /// How many.
    pub num: usize,
    /// Their bytes, if all are of its type.
    pub bytes: Vec<u8>,
    /// The first that is not.
    pub wrong: Option<String>,
}

/// Reads an inference request.
///
/// # Errors
/// What is wrong with it, or no memory for it.
pub fn body(text: &[u8], tab: &Tab) -> Result<Body> {
    if let Some(plain) = super::plain::body(text) {
        return Ok(plain);
    }
    let first = parsed(text, tab);
    let is_word = |part: &[u8]| part == b"NaN" || part == b"Inf";
    if !matches!(first, Err(Error::Invalid(_))) || !text.windows(3).any(is_word) {
        return first;
    }
    // A word takes a few bytes more as a text.
    let own = tab.other();
    own.add(text.len().saturating_mul(4))?;
    with_words(text).map_or(first, |text| parsed(&text, tab))
}

/// The same of any request.
pub(super) fn parsed(text: &[u8], tab: &Tab) -> Result<Body> {
    let mut known = Vec::new();
    for _ in 0..2 {
        let reader = Reader::new(tab, &known);
        let body: Body = reader.parse(text, BodySeed(&reader))?;
        if !reader.again.get() {
            tab.join(reader.tab);
            return Ok(body);
        }
        let types = body.inputs.iter();
        known = types.map(|i| i.datatype.0.as_ref().ok().copied()).collect();
    }
    Err(Error::Internal("types were found and not used".into()))
}

/// A value of an object that is small by nature.
#[derive(Clone, Debug, PartialEq)]
pub enum Small {
    /// A boolean, a number or a string.
    Param(Param),
    /// A list: its first element, and how many there are.
    List(Option<Param>, usize),
    /// An object of parameters.
    Object(Params),
    /// `null`.
    Null,
}

impl fmt::Display for Small {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Param(param) => write!(f, "{param}"),
            Self::List(_, num) => write!(f, "a list of {num}"),
            Self::Object(_) => f.write_str("an object"),
            Self::Null => f.write_str("null"),
        }
    }
}

/// Reads an object of such values.
///
/// # Errors
/// What is wrong with it.
pub fn object(text: &[u8], tab: &Tab) -> Result<IndexMap<String, Small>> {
    let reader = Reader::new(tab, &[]);
    let all = reader.parse(text, ObjectSeed(&reader, true))?;
    Ok(all.into_iter().collect())
}

/// What reading goes by.
struct Reader<'a> {
    tab: Tab,
    /// Types of inputs, by their place, where they are known.
    known: &'a [Option<DataType>],
    /// Whether elements came before their type.
    again: Cell<bool>,
    /// Why it ends, if not for what the parser says.
    stop: RefCell<Option<Error>>,
}

impl<'a> Reader<'a> {
    fn new(tab: &Tab, known: &'a [Option<DataType>]) -> Self {
        Self {
            tab: tab.other(),
            known,
            again: Cell::new(false),
            stop: RefCell::new(None),
        }
    }

    fn parse<'de, S: DeserializeSeed<'de>>(&self, text: &'de [u8], seed: S) -> Result<S::Value> {
        let mut parser = serde_json::Deserializer::from_slice(text);
        let parsed = seed.deserialize(&mut parser);
        let parsed = parsed.and_then(|value| parser.end().map(|()| value));
        parsed.map_err(|e| {
            let own = self.stop.borrow_mut().take();
            own.unwrap_or_else(|| {
                Error::Invalid(format!("failed to parse the request JSON buffer: {e}"))
            })
        })
    }

    /// Ends reading for a reason of its own.
    fn stop<E: serde::de::Error>(&self, why: Error) -> E {
        let text = E::custom(&why);
        *self.stop.borrow_mut() = Some(why);
        text
    }

    fn bounded<E: serde::de::Error>(
        &self,
        what: &str,
        num: usize,
        most: usize,
    ) -> std::result::Result<(), E> {
        if num < most {
            return Ok(());
        }
        let error = Error::expected(what, format!("at most {most}"), "more");
        Err(self.stop(error))
    }
}

/// Fills a field that may come once.
fn once<T, E: serde::de::Error>(
    field: &mut Option<T>,
    name: &'static str,
    value: T,
) -> std::result::Result<(), E> {
    if field.replace(value).is_some() {
        return Err(E::duplicate_field(name));
    }
    Ok(())
}

struct BodySeed<'r, 'a>(&'r Reader<'a>);

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "lowercase")]
enum BodyKey {
    Id,
    Parameters,
    Inputs,
    Outputs,
    #[serde(other)]
    Other,
}

impl<'de> DeserializeSeed<'de> for BodySeed<'_, '_> {
    type Value = Body;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> std::result::Result<Body, D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for BodySeed<'_, '_> {
    type Value = Body;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an inference request")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Body, A::Error> {
        let (mut id, mut params, mut inputs, mut outputs) = (None, None, None, None);
        while let Some(key) = map.next_key::<BodyKey>()? {
            match key {
                BodyKey::Id => once(&mut id, "id", map.next_value()?)?,
                BodyKey::Parameters => {
                    once(
                        &mut params,
                        "parameters",
                        map.next_value_seed(ParamsSeed(self.0))?,
                    )?;
                }
                BodyKey::Inputs => {
                    let seed = |at| InputSeed(self.0, at);
                    once(
                        &mut inputs,
                        "inputs",
                        map.next_value_seed(List(self.0, "inputs", seed))?,
                    )?;
                }
                BodyKey::Outputs => {
                    let seed = |_| OutputSeed(self.0);
                    let list = List(self.0, "outputs", seed);
                    once(&mut outputs, "outputs", map.next_value_seed(list)?)?;
                }
                BodyKey::Other => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(Body {
            id: id.unwrap_or_default(),
            params: params.unwrap_or_default(),
            inputs: inputs.ok_or_else(|| A::Error::missing_field("inputs"))?,
            outputs: outputs.unwrap_or_default(),
        })
    }
}

/// A bounded list of what seeds, made by place, read.
struct List<'r, 'a, F>(&'r Reader<'a>, &'static str, F);

impl<'de, S, F> DeserializeSeed<'de> for List<'_, '_, F>
where
    S: DeserializeSeed<'de>,
    F: Fn(usize) -> S,
{
    type Value = Vec<S::Value>;

    fn deserialize<D: Deserializer<'de>>(
        self,
        from: D,
    ) -> std::result::Result<Self::Value, D::Error> {
        from.deserialize_seq(self)
    }
}

impl<'de, S, F> Visitor<'de> for List<'_, '_, F>
where
    S: DeserializeSeed<'de>,
    F: Fn(usize) -> S,
{
    type Value = Vec<S::Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of {}", self.1)
    }

    fn visit_seq<A: SeqAccess<'de>>(
        self,
        mut seq: A,
    ) -> std::result::Result<Self::Value, A::Error> {
        let mut list = Vec::new();
        while let Some(one) = seq.next_element_seed(self.2(list.len()))? {
            self.0.bounded(self.1, list.len(), MAX_LISTED)?;
            list.push(one);
        }
        Ok(list)
    }
}

struct InputSeed<'r, 'a>(&'r Reader<'a>, usize);

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "lowercase")]
enum InputKey {
    Name,
    Datatype,
    Shape,
    Parameters,
    Data,
    #[serde(other)]
    Other,
}

impl<'de> DeserializeSeed<'de> for InputSeed<'_, '_> {
    type Value = Input;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> std::result::Result<Input, D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for InputSeed<'_, '_> {
    type Value = Input;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an input")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Input, A::Error> {
        let Self(reader, at) = self;
        let (mut name, mut datatype, mut shape): (Option<String>, Option<Named>, _) =
            (None, None, None);
        let (mut params, mut data) = (None, None);
        while let Some(key) = map.next_key::<InputKey>()? {
            match key {
                InputKey::Name => once(&mut name, "name", map.next_value()?)?,
                InputKey::Datatype => once(&mut datatype, "datatype", map.next_value()?)?,
                InputKey::Shape => {
                    once(&mut shape, "shape", map.next_value_seed(ShapeSeed(reader))?)?;
                }
                InputKey::Parameters => {
                    once(
                        &mut params,
                        "parameters",
                        map.next_value_seed(ParamsSeed(reader))?,
                    )?;
                }
                InputKey::Data => {
                    let known = reader.known.get(at).copied().flatten();
                    let data_type = match &datatype {
                        Some(Named(named)) => named.as_ref().ok().copied(),
                        None => known,
                    };
                    if datatype.is_none() && reader.known.is_empty() {
                        reader.again.set(true);
                    }
                    let mut filling = Filling {
                        reader,
                        what: name
                            .as_ref()
                            .map_or_else(|| format!("input {at}"), |n| format!("input '{n}'")),
                        data_type: data_type.filter(|t| t.has_numbers()),
                        into: Elements::default(),
                    };
                    let is_there = map.next_value_seed(Data(&mut filling))?;
                    once(&mut data, "data", is_there.then_some(filling.into))?;
                }
                InputKey::Other => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(Input {
            name: name.ok_or_else(|| A::Error::missing_field("name"))?,
            datatype: datatype.ok_or_else(|| A::Error::missing_field("datatype"))?,
            shape: shape.ok_or_else(|| A::Error::missing_field("shape"))?,
            params: params.unwrap_or_default(),
            data: data.flatten(),
        })
    }
}

struct OutputSeed<'r, 'a>(&'r Reader<'a>);

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "lowercase")]
enum OutputKey {
    Name,
    Parameters,
    #[serde(other)]
    Other,
}

impl<'de> DeserializeSeed<'de> for OutputSeed<'_, '_> {
    type Value = Output;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> std::result::Result<Output, D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for OutputSeed<'_, '_> {
    type Value = Output;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an output")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Output, A::Error> {
        let (mut name, mut params) = (None, None);
        while let Some(key) = map.next_key::<OutputKey>()? {
            match key {
                OutputKey::Name => once(&mut name, "name", map.next_value()?)?,
                OutputKey::Parameters => {
                    once(
                        &mut params,
                        "parameters",
                        map.next_value_seed(ParamsSeed(self.0))?,
                    )?;
                }
                OutputKey::Other => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(Output {
            name: name.ok_or_else(|| A::Error::missing_field("name"))?,
            params: params.unwrap_or_default(),
        })
    }
}

struct ShapeSeed<'r, 'a>(&'r Reader<'a>);

impl<'de> DeserializeSeed<'de> for ShapeSeed<'_, '_> {
    type Value = Vec<u64>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> std::result::Result<Vec<u64>, D::Error> {
        from.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for ShapeSeed<'_, '_> {
    type Value = Vec<u64>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a shape")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> std::result::Result<Vec<u64>, A::Error> {
        let mut shape = Vec::new();
        while let Some(dim) = seq.next_element()? {
            self.0
                .bounded("dimensions of a tensor", shape.len(), MAX_DIMS)?;
            shape.push(dim);
        }
        Ok(shape)
    }
}

/// Parameters: an object without further ones.
struct ParamsSeed<'r, 'a>(&'r Reader<'a>);

impl<'de> DeserializeSeed<'de> for ParamsSeed<'_, '_> {
    type Value = Params;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> std::result::Result<Params, D::Error> {
        let all = ObjectSeed(self.0, false).deserialize(from)?;
        let params = params(all).map_err(|e| self.0.stop(e))?;
        Ok(params)
    }
}

/// The values of an object as parameters, but for lists, objects and `null` of names that nobody looks
/// at.
///
/// # Errors
/// One of these of another name.
pub fn looked_at(from: impl IntoIterator<Item = (String, Small)>) -> Result<Params> {
    let is_free = |(key, value): &(String, Small)| {
        matches!(value, Small::Param(_)) || LOOKED_AT.contains(&key.as_str())
    };
    params(from.into_iter().filter(is_free))
}

/// The values of an object as parameters.
///
/// # Errors
/// A list, an object or `null`.
fn params(from: impl IntoIterator<Item = (String, Small)>) -> Result<Params> {
    let param = |(key, value)| match value {
        Small::Param(param) => Ok((key, param)),
        other => {
            let what = format!("parameter '{key}'");
            Err(Error::expected(
                what,
                "a boolean, a number or a string",
                other,
            ))
        }
    };
    from.into_iter().map(param).collect()
}

/// An object as it is written, in which there may be further ones or not.
struct ObjectSeed<'r, 'a>(&'r Reader<'a>, bool);

impl<'de> DeserializeSeed<'de> for ObjectSeed<'_, '_> {
    type Value = Vec<(String, Small)>;

    fn deserialize<D: Deserializer<'de>>(
        self,
        from: D,
    ) -> std::result::Result<Self::Value, D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for ObjectSeed<'_, '_> {
    type Value = Vec<(String, Small)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(
        self,
        mut map: A,
    ) -> std::result::Result<Self::Value, A::Error> {
        let mut all = Vec::new();
        while let Some(key) = map.next_key::<String>()? {
            self.0.bounded("parameters", all.len(), MAX_LISTED)?;
            all.push((key, map.next_value_seed(SmallSeed(self.0, self.1))?));
        }
        Ok(all)
    }
}

struct SmallSeed<'r, 'a>(&'r Reader<'a>, bool);

impl<'de> DeserializeSeed<'de> for SmallSeed<'_, '_> {
    type Value = Small;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> std::result::Result<Small, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for SmallSeed<'_, '_> {
    type Value = Small;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E>(self, value: bool) -> std::result::Result<Small, E> {
        Ok(Small::Param(Param::Bool(value)))
    }

    fn visit_i64<E>(self, value: i64) -> std::result::Result<Small, E> {
        Ok(Small::Param(Param::Int(value)))
    }

    fn visit_u64<E>(self, value: u64) -> std::result::Result<Small, E> {
        let param = i64::try_from(value).map_or(Param::Uint(value), Param::Int);
        Ok(Small::Param(param))
    }

    fn visit_f64<E>(self, value: f64) -> std::result::Result<Small, E> {
        Ok(Small::Param(Param::Double(value)))
    }

    fn visit_str<E>(self, value: &str) -> std::result::Result<Small, E> {
        Ok(Small::Param(Param::Text(value.to_owned())))
    }

    fn visit_unit<E>(self) -> std::result::Result<Small, E> {
        Ok(Small::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> std::result::Result<Small, A::Error> {
        let first = seq.next_element_seed(SmallSeed(self.0, false))?;
        let mut num = usize::from(first.is_some());
        while seq.next_element::<IgnoredAny>()?.is_some() {
            num += 1;
        }
        let first = first.and_then(|first| match first {
            Small::Param(param) => Some(param),
            _ => None,
        });
        Ok(Small::List(first, num))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Small, A::Error> {
        if self.1 {
            let all = ObjectSeed(self.0, false).visit_map(map)?;
            let params = looked_at(all).map_err(|e| self.0.stop(e))?;
            return Ok(Small::Object(params));
        }
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Small::Object(Params::default()))
    }
}

/// Elements as they are parsed.
struct Filling<'r, 'a> {
    reader: &'r Reader<'a>,
    what: String,
    /// `None` where they are only counted.
    data_type: Option<DataType>,
    into: Elements,
}

impl Filling<'_, '_> {
    fn put<E: serde::de::Error>(&mut self, element: Element<'_>) -> std::result::Result<(), E> {
        self.into.num += 1;
        let Some(data_type) = self.data_type.filter(|_| self.into.wrong.is_none()) else {
            return Ok(());
        };
        let need = match &element {
            Element::Text(text) => 4 + text.len(),
            _ => data_type.size().unwrap_or(0),
        };
        self.room(need).map_err(|e| self.reader.stop(e))?;
        if !write(&mut self.into.bytes, data_type, &element) {
            self.into.wrong = Some(element.to_string());
            self.into.bytes = Vec::new();
        }
        Ok(())
    }

    /// Makes room for so many bytes more, which go on the tab first.
    fn room(&mut self, need: usize) -> Result<()> {
        let bytes = &mut self.into.bytes;
        let len = bytes.len() + need;
        if len <= bytes.capacity() {
            return Ok(());
        }
        let tab = &self.reader.tab;
        tab.check_tensor(&self.what, len)?;
        let capacity = (2 * bytes.capacity()).max(len).max(64);
        tab.add(capacity - bytes.capacity())?;
        bytes.reserve_exact(capacity - bytes.len());
        Ok(())
    }
}

/// Elements, or `null` for none.
struct Data<'f, 'r, 'a>(&'f mut Filling<'r, 'a>);

impl<'de> DeserializeSeed<'de> for Data<'_, '_, '_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> std::result::Result<bool, D::Error> {
        from.deserialize_option(self)
    }
}

impl<'de> Visitor<'de> for Data<'_, '_, '_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("elements")
    }

    fn visit_none<E>(self) -> std::result::Result<bool, E> {
        Ok(false)
    }

    fn visit_unit<E>(self) -> std::result::Result<bool, E> {
        Ok(false)
    }

    fn visit_some<D: Deserializer<'de>>(self, from: D) -> std::result::Result<bool, D::Error> {
        Nested(self.0).deserialize(from).map(|()| true)
    }
}

/// One level of nested elements.
struct Nested<'f, 'r, 'a>(&'f mut Filling<'r, 'a>);

impl<'de> DeserializeSeed<'de> for Nested<'_, '_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> std::result::Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Nested<'_, '_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("numbers, booleans or strings, or lists of them")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> std::result::Result<(), A::Error> {
        while seq.next_element_seed(Nested(&mut *self.0))?.is_some() {}
        Ok(())
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> std::result::Result<(), E> {
        self.0.put(Element::Bool(value))
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> std::result::Result<(), E> {
        self.0.put(Element::Int(value.into()))
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> std::result::Result<(), E> {
        self.0.put(Element::Int(value.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> std::result::Result<(), E> {
        self.0.put(Element::Float(value))
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> std::result::Result<(), E> {
        self.0.put(Element::Text(value))
    }

    fn visit_unit<E: serde::de::Error>(self) -> std::result::Result<(), E> {
        self.0.put(Element::Null)
    }
}
