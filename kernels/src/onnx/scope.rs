//! Named values of a graph under evaluation.

use std::collections::BTreeMap;

use lazybatch_graph::onnx::{Array, Error, Graph};

/// The values of one graph, and those of the graphs around it.
pub struct Scope<'a> {
    values: BTreeMap<String, Array>,
    graph: &'a Graph,
    parent: Option<&'a Scope<'a>>,
}

impl<'a> Scope<'a> {
    /// A scope with nothing but the initializers of `graph`.
    pub fn new(graph: &'a Graph, parent: Option<&'a Scope<'a>>) -> Self {
        Self {
            values: BTreeMap::new(),
            graph,
            parent,
        }
    }

    /// Defines `name`.
    pub fn set(&mut self, name: &str, value: Array) {
        self.values.insert(name.to_owned(), value);
    }

    /// The value `name`, from here or further out.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an input that was not given.
    pub fn get(&self, name: &str) -> Result<&Array, Error> {
        let mut scope = Some(self);
        while let Some(s) = scope {
            let own = s.values.get(name);
            if let Some(value) = own.or_else(|| s.graph.initializers.get(name)) {
                return Ok(value);
            }
            scope = s.parent;
        }
        Err(Error::invalid(
            format!("value {name:?}"),
            "tensor",
            "one",
            "none given",
        ))
    }
}
