//! The JSON of plain requests, read in one pass over its bytes.
//!
//! Most requests say little in their JSON: names without escapes, whole numbers, `true` and `false`,
//! while elements come behind it or lie in regions. That is read here, several times as fast as by
//! the parser of [`super::json`]. All else is left to it: elements, escapes, fractions, numbers below
//! 0, fields that are unknown or come twice, and whatever is wrong, of which it tells.
//!
//! Invariant: what is read here is what that parser would have made of it.

use super::json::{Body, Input, MAX_DIMS, Named, Output};
use crate::dtype::DataType;
use crate::infer::{MAX_LISTED, Param, Params};

/// Most digits of a number that cannot overflow.
const MOST_DIGITS: usize = 18;

/// Reads an inference request, if it is a plain one.
pub fn body(text: &[u8]) -> Option<Body> {
    let text = std::str::from_utf8(text).ok()?;
    let mut reader = Reader { text, at: 0 };
    let body = reader.body()?;
    reader.space();
    (reader.at == text.len()).then_some(body)
}

/// A text, and how far it was read. What returns `None` has met what is not plain.
struct Reader<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> Reader<'t> {
    fn body(&mut self) -> Option<Body> {
        let (mut id, mut params, mut inputs, mut outputs) = (None, None, None, None);
        self.object(|this, key| match key {
            "id" => once(&mut id, this.string()?),
            "parameters" => once(&mut params, this.params()?),
            "inputs" => once(&mut inputs, this.list(MAX_LISTED, Self::input)?),
            "outputs" => once(&mut outputs, this.list(MAX_LISTED, Self::output)?),
            _ => None,
        })?;
        Some(Body {
            id: id.unwrap_or_default().to_owned(),
            params: params.unwrap_or_default(),
            inputs: inputs?,
            outputs: outputs.unwrap_or_default(),
        })
    }

    fn input(&mut self) -> Option<Input> {
        let (mut name, mut datatype, mut shape, mut params) = (None, None, None, None);
        self.object(|this, key| match key {
            "name" => once(&mut name, this.string()?),
            "datatype" => once(&mut datatype, this.string()?),
            "shape" => once(&mut shape, this.list(MAX_DIMS, Self::number)?),
            "parameters" => once(&mut params, this.params()?),
            _ => None,
        })?;
        let datatype = datatype?;
        Some(Input {
            name: name?.to_owned(),
            datatype: Named(DataType::parse(datatype).ok_or_else(|| datatype.to_owned())),
            shape: shape?,
            params: params.unwrap_or_default(),
            data: None,
        })
    }

    fn output(&mut self) -> Option<Output> {
        let (mut name, mut params) = (None, None);
        self.object(|this, key| match key {
            "name" => once(&mut name, this.string()?),
            "parameters" => once(&mut params, this.params()?),
            _ => None,
        })?;
        Some(Output {
            name: name?.to_owned(),
            params: params.unwrap_or_default(),
        })
    }

    fn params(&mut self) -> Option<Params> {
        let mut all = Vec::new();
        self.object(|this, key| {
            let value = this.param()?;
            (all.len() < MAX_LISTED).then(|| all.push((key.to_owned(), value)))
        })?;
        Some(all.into_iter().collect())
    }

    fn param(&mut self) -> Option<Param> {
        self.space();
        match self.peek()? {
            b'"' => self.string().map(|text| Param::Text(text.to_owned())),
            b't' => self.word("true").map(|()| Param::Bool(true)),
            b'f' => self.word("false").map(|()| Param::Bool(false)),
            _ => Some(Param::Int(i64::try_from(self.number()?).ok()?)),
        }
    }

    /// Reads an object, of whose fields `field` reads the values.
    fn object(&mut self, mut field: impl FnMut(&mut Self, &'t str) -> Option<()>) -> Option<()> {
        self.take(b'{')?;
        if self.is_next(b'}') {
            return Some(());
        }
        loop {
            let key = self.string()?;
            self.take(b':')?;
            field(self, key)?;
            if !self.is_next(b',') {
                return self.take(b'}');
            }
        }
    }

    fn list<T>(&mut self, most: usize, one: impl Fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        self.take(b'[')?;
        let mut all = Vec::new();
        if self.is_next(b']') {
            return Some(all);
        }
        // Mostly there are no more.
        all.reserve_exact(if size_of::<T>() > 16 { 1 } else { 4 });
        loop {
            all.push(one(self)?);
            if all.len() > most {
                return None;
            }
            if !self.is_next(b',') {
                self.take(b']')?;
                return Some(all);
            }
        }
    }

    fn string(&mut self) -> Option<&'t str> {
        self.take(b'"')?;
        let rest = &self.text.as_bytes()[self.at..];
        let len = num_plain(rest);
        let text = self.text.get(self.at..self.at + len)?;
        self.at += len + 1;
        (rest.get(len) == Some(&b'"')).then_some(text)
    }

    /// A whole number of 0 or more.
    fn number(&mut self) -> Option<u64> {
        self.space();
        let rest = &self.text.as_bytes()[self.at..];
        let len = rest.iter().take_while(|b| b.is_ascii_digit()).count();
        let leads_with_0 = len > 1 && rest[0] == b'0';
        // Behind a part of another number comes nothing that may come here.
        if len == 0 || len > MOST_DIGITS || leads_with_0 {
            return None;
        }
        self.at += len;
        let digits = rest[..len].iter();
        Some(digits.fold(0, |n, b| 10 * n + u64::from(b - b'0')))
    }

    fn word(&mut self, word: &str) -> Option<()> {
        let is_there = self.text[self.at..].starts_with(word);
        is_there.then(|| self.at += word.len())
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\n' | b'\r' | b'\t')) {
            self.at += 1;
        }
    }

    /// Goes on behind `byte` if that comes next.
    #[inline]
    fn is_next(&mut self, byte: u8) -> bool {
        // Mostly there are no spaces.
        if self.peek().is_some_and(|b| b <= b' ') {
            self.space();
        }
        let is_next = self.peek() == Some(byte);
        self.at += usize::from(is_next);
        is_next
    }

    fn take(&mut self, byte: u8) -> Option<()> {
        self.is_next(byte).then_some(())
    }
}

/// How many bytes there are before the first that does not stand for itself in a text of JSON.
pub fn num_plain(text: &[u8]) -> usize {
    /// A byte in all places of a word.
    const fn all(byte: u8) -> u64 {
        u64::from_le_bytes([byte; 8])
    }
    // Eight at a time. The lowest byte whose highest bit a difference sets is one that is less than what
    // was taken away; of bytes from 128 on none is looked for.
    let (words, rest) = text.as_chunks::<8>();
    for (at, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        let less = |word: u64, than: u8| word.wrapping_sub(all(than)) & !word;
        let is_byte = |byte: u8| less(word ^ all(byte), 1);
        let found = (less(word, b' ') | is_byte(b'"') | is_byte(b'\\')) & all(0x80);
        if found != 0 {
            return 8 * at + found.trailing_zeros() as usize / 8;
        }
    }
    let is_plain = |b: &u8| *b >= b' ' && *b != b'"' && *b != b'\\';
    let end = rest.iter().take_while(|b| is_plain(b)).count();
    8 * words.len() + end
}

/// Fills a field that may come once.
fn once<T>(field: &mut Option<T>, value: T) -> Option<()> {
    field.replace(value).is_none().then_some(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::http::json;
    use crate::memory::Memory;

    fn parsed(text: &str) -> Option<String> {
        let memory = Arc::new(Memory::new(1 << 20, 1 << 20));
        let body = json::parsed(text.as_bytes(), &memory.tab()).ok()?;
        Some(told(&body))
    }

    fn told(body: &Body) -> String {
        let inputs = body.inputs.iter().map(|i| {
            let elements = i.data.as_ref().map(|d| (d.num, &d.bytes, &d.wrong));
            (&i.name, &i.datatype.0, &i.shape, &i.params, elements)
        });
        let outputs = body.outputs.iter().map(|o| (&o.name, &o.params));
        let (inputs, outputs): (Vec<_>, Vec<_>) = (inputs.collect(), outputs.collect());
        format!("{:?} {:?} {inputs:?} {outputs:?}", body.id, body.params)
    }

    /// Whether it is plain; then the parser makes the same of it.
    fn is_read(text: &str) -> bool {
        let Some(body) = body(text.as_bytes()) else {
            return false;
        };
        assert_eq!(Some(told(&body)), parsed(text), "{text}");
        true
    }

    #[test]
    fn bytes_that_stand_for_themselves_are_counted() {
        for len in 0..20_usize {
            for other in [b'a', 0x7f, 0x80, 0xa0, 0xff, b'!', b'#', b'[', b']'] {
                let mut text = vec![other; len];
                assert_eq!(num_plain(&text), len, "{other} {len}");
                for at in 0..len {
                    for special in [b'"', b'\\', 0, 1, b'\n', 0x1f] {
                        text[at] = special;
                        let behind = text.get(at + 1).copied();
                        assert_eq!(num_plain(&text), at, "{other} {special} {behind:?}");
                        text[at] = other;
                    }
                }
            }
        }
    }

    #[test]
    fn plain_requests_are_read() {
        for text in [
            r#"{"parameters":{"binary_data_output":true},"inputs":[{"name":"x","shape":[1, 256],"datatype":"FP32","parameters":{"binary_data_size":1024}}]}"#,
            r#"{"id":"7","inputs":[{"name":"x","shape":[],"datatype":"none"}],"outputs":[{"name":"y","parameters":{"binary_data":false,"n":0}},{"name":"z"}]}"#,
            " { \"inputs\" : [ ] , \"outputs\" : [\t] , \"parameters\" : { } }\r\n",
            r#"{"inputs":[{"parameters":{"ä":"ö","ä":1},"shape":[999999999999999999],"name":"","datatype":"BF16"}]}"#,
        ] {
            assert!(is_read(text), "{text}");
            assert!(parsed(text).is_some(), "{text}");
        }
    }

    #[test]
    fn what_is_not_plain_is_left_alone() {
        let bodies = [
            r#"{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1]}]}"#,
            r#"{"inputs":[],"other":1}"#,
            r#"{"inputs":[],"inputs":[]}"#,
            r#"{"inputs":[],"id":"a\n"}"#,
            "{\"inputs\":[],\"id\":\"a\n\"}",
            r#"{"inputs":[],"id":null}"#,
            r#"{"inputs":[]} x"#,
            r#"{"inputs":[],}"#,
            r#"{"inputs":[{"name":"x","datatype":"FP32"}]}"#,
            r#"{"id":"x"}"#,
            r#"{"inputs":["#,
            "",
        ];
        for text in bodies {
            assert!(!is_read(text), "{text}");
        }
        for value in [
            "-1",
            "01",
            "1.0",
            "1e3",
            "9999999999999999999",
            "null",
            "[1]",
            "{}",
            "truth",
            "tru",
            "\"",
        ] {
            let text = format!(r#"{{"inputs":[],"parameters":{{"p":{value}}}}}"#);
            assert!(!is_read(&text), "{text}");
        }
        let (most, one) = (vec!["1"; MAX_DIMS].join(","), ",1");
        let shaped =
            |dims| format!(r#"{{"inputs":[{{"name":"x","datatype":"INT8","shape":[{dims}]}}]}}"#);
        assert!(is_read(&shaped(most.clone())));
        assert!(!is_read(&shaped(most + one)));
        assert!(body(b"{\"inputs\":[],\"id\":\"\xff\"}").is_none());
    }

    /// Pieces of requests, most of them where they belong.
    fn values() -> impl Strategy<Value = String> {
        prop::sample::select(vec![
            "0",
            "12",
            "-3",
            "1.5",
            "01",
            "true",
            "false",
            "null",
            "\"a\"",
            "\"\\u0041\"",
            "[1,2]",
            "[]",
            "{}",
            "{\"a\":1}",
            "{\"a\":true,\"a\":\"b\"}",
            "[{}]",
            " 7 ",
        ])
        .prop_map(str::to_owned)
    }

    fn object(
        keys: &'static [&'static str],
        inner: BoxedStrategy<String>,
    ) -> BoxedStrategy<String> {
        let field = (prop::sample::select(keys), inner);
        let field = field.prop_map(|(key, value)| format!("\"{key}\":{value}"));
        let fields = prop::collection::vec(field, 0..5);
        fields
            .prop_map(|all| format!("{{{}}}", all.join(",")))
            .boxed()
    }

    fn requests() -> impl Strategy<Value = String> {
        let params = object(&["a", "b", "binary_data_size"], values().boxed());
        let plain = |name: &'static str| {
            let params = params.clone();
            (prop::collection::vec(0..300_u32, 0..3), params).prop_map(move |(shape, params)| {
                format!(
                    r#"{{"name":"{name}","shape":{shape:?},"datatype":"INT8","parameters":{params}}}"#
                )
            })
        };
        let any = object(
            &["name", "datatype", "shape", "parameters", "data"],
            values().boxed(),
        );
        let one = prop_oneof![plain("x"), plain("y"), any];
        let list = prop::collection::vec(one, 0..3);
        let list = list.prop_map(|all| format!("[{}]", all.join(",")));
        let value = prop_oneof![3 => list, 1 => params, 1 => values()];
        object(&["id", "parameters", "inputs", "outputs"], value.boxed())
    }

    /// Fields of a kind that is read, each once, in any order.
    fn plain_requests() -> impl Strategy<Value = String> {
        let number = (0..1_000_000_000_u64).prop_map(|n| n.to_string());
        let value = prop_oneof![number, Just("true".into()), Just("\"a b\"".into())];
        let params = prop::collection::btree_map("[a-z_]{1,8}", value, 0..3).prop_map(|params| {
            let fields = params
                .iter()
                .map(|(key, value)| format!("\"{key}\": {value}"));
            format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
        });
        let shape = prop::collection::vec(0..300_u32, 0..4);
        let tensor = ("[a-z]{0,5}", shape, params.clone()).prop_map(|(name, shape, params)| {
            vec![
                format!(r#""name":"{name}""#),
                format!(r#""shape": {shape:?}"#),
                r#""datatype":"FP32""#.to_owned(),
                format!(r#""parameters":{params}"#),
            ]
        });
        let shuffled = |fields: Vec<String>| Just(fields).prop_shuffle();
        let tensor = tensor.prop_flat_map(shuffled);
        let object = |fields: Vec<String>| format!("{{{}}}", fields.join(","));
        let inputs = prop::collection::vec(tensor.prop_map(object), 0..3);
        ("[a-z0-9-]{0,9}", params, inputs)
            .prop_map(|(id, params, inputs)| {
                vec![
                    format!(r#""id":"{id}""#),
                    format!(r#""parameters":{params}"#),
                    format!(r#""inputs":[{}]"#, inputs.join(" , ")),
                    r#""outputs":[{"name":"y"}]"#.to_owned(),
                ]
            })
            .prop_flat_map(shuffled)
            .prop_map(object)
    }

    proptest! {
        #[test]
        fn requests_of_all_plain_fields_are_read(text in plain_requests()) {
            prop_assert!(is_read(&text), "{text}");
        }

        #[test]
        fn what_is_read_is_what_the_parser_makes_of_it(text in requests()) {
            is_read(&text);
        }
    }
}
