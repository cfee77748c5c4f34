//! One evaluation of an op: its operands and attributes, read with checks.

use std::fmt::Display;

use lazybatch_graph::onnx::{Array, Attr, Elem, Error, Node};

use super::{Meter, index};

/// Largest magnitude of integer attributes and shape operands; larger ones count as this.
const MAX_INT: i64 = 1 << 31;

/// The operands and attributes of one node.
pub struct Call<'a> {
    /// The node.
    pub node: &'a Node,
    /// Version of its operator set.
    pub opset: i64,
    /// Its operands; `None` where an optional one is left out.
    pub inputs: Vec<Option<&'a Array>>,
    /// What it may take.
    pub meter: &'a Meter,
}

impl<'a> Call<'a> {
    /// The node as messages name it.
    pub fn place(&self) -> String {
        format!("node {} ({})", self.node.name, self.node.op)
    }

    /// An error of this node.
    pub fn bad(&self, what: impl Display, expected: impl Display, got: impl Display) -> Error {
        Error::invalid(self.place(), what, expected, got)
    }

    /// Operand `i`, if there is one.
    pub fn opt(&self, i: usize) -> Option<&'a Array> {
        self.inputs.get(i).copied().flatten()
    }

    /// Operand `i`.
    pub fn x(&self, i: usize) -> Result<&'a Array, Error> {
        self.opt(i)
            .ok_or_else(|| self.bad(format!("input {i}"), "a tensor", "none"))
    }

    /// Operand `i` of `rank` dimensions.
    pub fn ranked(&self, i: usize, rank: usize) -> Result<&'a Array, Error> {
        let x = self.x(i)?;
        if x.rank() != rank {
            let expected = format!("{rank} dimensions");
            return Err(self.bad(format!("input {i}"), expected, x));
        }
        Ok(x)
    }

    /// Operand `i` of at least `rank` dimensions.
    pub fn at_least(&self, i: usize, rank: usize) -> Result<&'a Array, Error> {
        let x = self.x(i)?;
        if x.rank() < rank {
            let expected = format!("at least {rank} dimensions");
            return Err(self.bad(format!("input {i}"), expected, x));
        }
        Ok(x)
    }

    /// Checks that operand `i` has `dims`.
    pub fn expect_dims(&self, i: usize, x: &Array, dims: &[usize]) -> Result<(), Error> {
        if x.dims() != dims {
            return Err(self.bad(format!("input {i}"), format!("{dims:?}"), x));
        }
        Ok(())
    }

    /// Checks that operand `i` has elements of type `elem`.
    pub fn expect_elem(&self, i: usize, x: &Array, elem: Elem) -> Result<(), Error> {
        if x.elem() != elem {
            return Err(self.bad(format!("input {i}"), format!("{elem} elements"), x));
        }
        Ok(())
    }

    /// The elements of the integer operand `i`, each within 32 bits.
    pub fn int_vec(&self, i: usize) -> Result<Vec<i64>, Error> {
        let x = self.x(i)?;
        if x.elem().is_float() {
            return Err(self.bad(format!("input {i}"), "integers", x));
        }
        let wide = x.data().to_i128();
        let max = i128::from(MAX_INT);
        Ok(wide
            .into_iter()
            .map(|v| v.clamp(-max, max) as i64)
            .collect())
    }

    /// The only element of the integer operand `i`, within 32 bits.
    pub fn int_scalar(&self, i: usize) -> Result<i64, Error> {
        match self.int_vec(i)?[..] {
            [v] => Ok(v),
            _ => Err(self.bad(format!("input {i}"), "one element", self.x(i)?)),
        }
    }

    /// The only element of operand `i`.
    pub fn scalar(&self, i: usize) -> Result<f64, Error> {
        match self.x(i)?.data().to_f64()[..] {
            [v] => Ok(v),
            _ => Err(self.bad(format!("input {i}"), "one element", self.x(i)?)),
        }
    }

    /// The attribute `name`.
    pub fn attr(&self, name: &str) -> Option<&'a Attr> {
        self.node.attrs.get(name)
    }

    fn wrong_kind(&self, name: &str, expected: &str, got: &Attr) -> Error {
        self.bad(format!("attribute {name:?}"), expected, got.kind())
    }

    /// The integer attribute `name`, within 32 bits.
    pub fn int(&self, name: &str, default: i64) -> Result<i64, Error> {
        match self.attr(name) {
            None => Ok(default),
            Some(Attr::Int(v)) => Ok((*v).clamp(-MAX_INT, MAX_INT)),
            Some(other) => Err(self.wrong_kind(name, "an int", other)),
        }
    }

    /// The attribute `name` as a size: not below `least`.
    pub fn size(&self, name: &str, default: i64, least: i64) -> Result<usize, Error> {
        let v = self.int(name, default)?;
        if v < least {
            let expected = format!("at least {least}");
            return Err(self.bad(format!("attribute {name:?}"), expected, v));
        }
        Ok(v as usize)
    }

    /// Whether the integer attribute `name` is not zero.
    pub fn flag(&self, name: &str, default: bool) -> Result<bool, Error> {
        Ok(self.int(name, default.into())? != 0)
    }

    /// The float attribute `name`.
    pub fn float(&self, name: &str, default: f64) -> Result<f64, Error> {
        match self.attr(name) {
            None => Ok(default),
            Some(Attr::Float(v)) => Ok(f64::from(*v)),
            Some(other) => Err(self.wrong_kind(name, "a float", other)),
        }
    }

    /// The text attribute `name`.
    pub fn text(&self, name: &str, default: &'a str) -> Result<&'a str, Error> {
        match self.attr(name) {
            None => Ok(default),
            Some(Attr::Str(v)) => Ok(v),
            Some(other) => Err(self.wrong_kind(name, "a string", other)),
        }
    }

    /// The texts of attribute `name`.
    pub fn texts(&self, name: &str) -> Result<Option<&'a [String]>, Error> {
        match self.attr(name) {
            None => Ok(None),
            Some(Attr::Strs(v)) => Ok(Some(v)),
            Some(other) => Err(self.wrong_kind(name, "strings", other)),
        }
    }

    /// The integers of attribute `name`, each within 32 bits.
    pub fn ints(&self, name: &str) -> Result<Option<Vec<i64>>, Error> {
        match self.attr(name) {
            None => Ok(None),
            Some(Attr::Ints(v)) => Ok(Some(
                v.iter().map(|v| (*v).clamp(-MAX_INT, MAX_INT)).collect(),
            )),
            Some(other) => Err(self.wrong_kind(name, "ints", other)),
        }
    }

    /// The floats of attribute `name`.
    pub fn floats(&self, name: &str) -> Result<Option<Vec<f64>>, Error> {
        match self.attr(name) {
            None => Ok(None),
            Some(Attr::Floats(v)) => Ok(Some(v.iter().map(|v| f64::from(*v)).collect())),
            Some(other) => Err(self.wrong_kind(name, "floats", other)),
        }
    }

    /// Integers from attribute `name` up to opset `last`, from operand `i` after it.
    pub fn ints_or_input(
        &self,
        name: &str,
        last: i64,
        i: usize,
    ) -> Result<Option<Vec<i64>>, Error> {
        if self.opset <= last {
            self.ints(name)
        } else if self.opt(i).is_some() {
            self.int_vec(i).map(Some)
        } else {
            Ok(None)
        }
    }

    /// The integers `v` as sizes.
    pub fn sizes(&self, what: &str, v: &[i64]) -> Result<Vec<usize>, Error> {
        let sizes: Result<_, _> = v.iter().map(|&n| usize::try_from(n)).collect();
        sizes.map_err(|_| self.bad(what, "none below zero", format!("{v:?}")))
    }

    /// `axis`, counted from the end if negative, as one of `rank` axes.
    pub fn axis_of(&self, axis: i64, rank: usize) -> Result<usize, Error> {
        let rank = rank as i64;
        if axis < -rank || axis >= rank {
            let expected = format!("-{rank} to {}", rank - 1);
            return Err(self.bad("axis", expected, axis));
        }
        Ok(axis.rem_euclid(rank.max(1)) as usize)
    }

    /// The axis that attribute `axis` names.
    pub fn axis(&self, default: i64, rank: usize) -> Result<usize, Error> {
        self.axis_of(self.int("axis", default)?, rank)
    }

    /// Several axes, each once.
    pub fn axes_of(&self, axes: &[i64], rank: usize) -> Result<Vec<usize>, Error> {
        self.meter.limits.check_rank(&self.place(), rank)?;
        let found = axes.iter().map(|&a| self.axis_of(a, rank));
        let found = found.collect::<Result<Vec<_>, _>>()?;
        let mut sorted = found.clone();
        sorted.sort_unstable();
        sorted.dedup();
        if sorted.len() != found.len() {
            return Err(self.bad("axes", "each once", format!("{axes:?}")));
        }
        Ok(found)
    }

    /// Number of elements of a tensor of `dims`, within the limit.
    pub fn num(&self, dims: &[usize]) -> Result<usize, Error> {
        self.meter.limits.num_elems(&self.place(), dims)
    }

    /// Takes as many inner steps as the product of `factors` from what is left.
    pub fn work(&self, factors: &[usize]) -> Result<(), Error> {
        self.meter.take(&self.place(), factors)
    }

    /// The dimensions that all of `dims` are broadcast to.
    pub fn broadcast(&self, dims: &[&[usize]]) -> Result<Vec<usize>, Error> {
        let common = index::broadcast(dims)
            .ok_or_else(|| self.bad("inputs", "dimensions that broadcast", format!("{dims:?}")))?;
        self.num(&common)?;
        Ok(common)
    }
}
