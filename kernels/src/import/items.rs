//! What a graph is lowered to before it is cut into blocks: nodes of a program and recurrent layers
//! as a list in which everything stands behind what it reads.

use std::collections::BTreeMap;

use lazybatch_graph::onnx::Elem;
use lazybatch_graph::{Dim, Heads, InputId, Layout, Op, OutputId, StateId, Tensor};

/// A result of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Src {
    /// Position in the list.
    pub item: usize,
    /// Which of its results.
    pub out: usize,
}

/// An operand.
#[derive(Clone, Copy, Debug)]
pub(super) enum Arg {
    /// A result of an earlier item.
    Item(Src),
    /// A weight.
    Weight(usize),
}

/// A recurrent cell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum CellKind {
    /// Operands x, w_ih, w_hh, bias; results y, h, c.
    Lstm,
    /// Operands x, w_ih, w_hh, b_ih, b_hh; results y, h.
    Gru,
    /// A GRU that resets the state before its product. Operands x, then for r, z, n each w_ih,
    /// w_hh, bias; results y, h.
    GruBefore,
    /// Operands x, w_ih, w_hh, bias; results y, h.
    Rnn(lazybatch_graph::Act),
}

impl CellKind {
    /// Nodes of one step.
    fn num_nodes(self) -> usize {
        match self {
            Self::Lstm | Self::Gru => 1,
            Self::Rnn(_) => 5,
            Self::GruBefore => 15,
        }
    }
}

/// A recurrent layer in one direction, over positions or over a fixed number of steps.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    /// What it computes.
    pub kind: CellKind,
    /// Features of its state.
    pub hidden: usize,
    /// From the last position to the first.
    pub reverse: bool,
    /// First values of h and c where [`Kind::Start`] sets none.
    pub init: [f32; 2],
}

/// What an item does.
#[derive(Clone, Debug)]
pub(super) enum Kind {
    /// One node.
    Op(Op),
    /// Reads an input of the request.
    Input(InputId),
    /// Hands a value to an output.
    Emit(OutputId),
    /// A layer over the positions: x is rows, y too.
    Layer(Cell),
    /// One step of a cell whose state is that of the layer item `of`, in order.
    Step {
        /// The item that holds the state; itself for the first step.
        of: usize,
        /// The cell.
        cell: Cell,
    },
    /// Sets state `which` (0 is h, 1 is c) of the layer or first step `of` to its operand.
    Start {
        /// The item that holds the state.
        of: usize,
        /// Which state.
        which: usize,
    },
    /// Attention of samples (operand 0) over rows of keys and values (operands 1, 2).
    Lookup(Heads),
    /// Reads a state that the decoder keeps.
    Kept(usize),
    /// Overwrites it, at every step.
    Keep(usize),
    /// Overwrites it, before the first step.
    Seed(usize),
    /// Appends a row to a cache.
    Append(usize),
    /// Attention over two caches, of keys and of values.
    LookupCache(Heads, usize, usize),
    /// Ends the loop on a token.
    Stop(i32),
}

/// Type of a result.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Out {
    /// `Rows` or `Batch`.
    pub lead: Dim,
    /// Fixed dims of a row.
    pub dims: Vec<usize>,
    /// Element type in the graph.
    pub elem: Elem,
}

/// One item.
#[derive(Clone, Debug)]
pub(super) struct Item {
    /// Unique name.
    pub name: String,
    /// What it does.
    pub kind: Kind,
    /// Operands.
    pub args: Vec<Arg>,
    /// Results.
    pub outs: Vec<Out>,
    /// Whether it depends on the step of a decoder.
    pub looped: bool,
}

/// A state that a decoder keeps from step to step.
#[derive(Clone, Debug)]
pub(super) struct KeptState {
    /// Name.
    pub name: String,
    /// Element type in the graph.
    pub elem: Elem,
    /// Dimensions.
    pub dims: Vec<usize>,
    /// First value of every element, where the encoder sets none.
    pub init: f32,
}

/// Rows that a decoder appends to, one at each step.
#[derive(Clone, Debug)]
pub(super) struct CacheState {
    /// Name.
    pub name: String,
    /// Features of a row.
    pub features: usize,
    /// Whether this step has appended its row.
    pub appended: bool,
}

/// A cache as a graph sees it: the rows of earlier steps, and that of this one once it is behind
/// them.
#[derive(Clone, Debug)]
pub(super) struct Cache {
    /// Which cache.
    pub at: usize,
    /// The row of this step.
    pub new: Option<Act>,
    /// Its axes; the sequence stands for the steps.
    pub layout: Layout,
}

/// An activation as a graph sees it.
#[derive(Clone, Debug)]
pub(super) struct Act {
    /// Where it is.
    pub src: Src,
    /// Fixed dims of its packed rows.
    pub dims: Vec<usize>,
    /// Its axes.
    pub layout: Layout,
    /// Element type in the graph.
    pub elem: Elem,
}

/// The list, with the weights and states that it names.
#[derive(Debug, Default)]
pub(super) struct Items {
    /// Items in order.
    pub items: Vec<Item>,
    /// Weights by number.
    pub weights: Vec<(String, Tensor)>,
    /// States that a decoder keeps.
    pub kept: Vec<KeptState>,
    /// Caches that a decoder appends to.
    pub caches: Vec<CacheState>,
    /// What the names of nodes and weights begin with: one graph's apart from another's.
    pub prefix: String,
    /// Names that are taken, each with the number of the last that derives from it.
    names: BTreeMap<String, usize>,
    num_nodes: usize,
    weight_names: BTreeMap<String, usize>,
}

impl Items {
    /// Adds an item under a name that derives from `name`; returns its position.
    pub fn push(&mut self, name: &str, kind: Kind, args: Vec<Arg>, outs: Vec<Out>) -> usize {
        let looped = args.iter().any(|a| match a {
            Arg::Item(src) => self.items[src.item].looped,
            Arg::Weight(_) => false,
        });
        let by_itself = matches!(
            kind,
            Kind::Kept(_) | Kind::Keep(_) | Kind::Stop(_) | Kind::Append(_) | Kind::LookupCache(..)
        );
        let looped = looped || by_itself;
        let name = self.unique(&format!("{}{name}", self.prefix));
        self.num_nodes += match &kind {
            Kind::Step { cell, .. } => cell.kind.num_nodes(),
            _ => 1,
        };
        self.items.push(Item {
            name,
            kind,
            args,
            outs,
            looped,
        });
        self.items.len() - 1
    }

    /// Nodes that the items become, without those that hand values from block to block.
    pub fn num_nodes(&self) -> usize {
        self.num_nodes
    }

    fn unique(&mut self, name: &str) -> String {
        let Some(mut i) = self.names.get(name).copied() else {
            self.names.insert(name.to_owned(), 1);
            return name.to_owned();
        };
        loop {
            i += 1;
            let unique = format!("{name}~{i}");
            if !self.names.contains_key(&unique) {
                self.names.insert(unique.clone(), 1);
                self.names.insert(name.to_owned(), i);
                return unique;
            }
        }
    }

    /// Adds a node with one result.
    pub fn node(&mut self, name: &str, op: Op, args: Vec<Arg>, like: Act) -> Act {
        let out = Out {
            lead: like.layout.lead(),
            dims: like.dims.clone(),
            elem: like.elem,
        };
        let item = self.push(name, Kind::Op(op), args, vec![out]);
        Act {
            src: Src { item, out: 0 },
            ..like
        }
    }

    /// The weight `name`, made by `make` where it is not there yet.
    pub fn weight(&mut self, name: &str, make: impl FnOnce() -> Tensor) -> Arg {
        let name = format!("{}{name}", self.prefix);
        if let Some(&at) = self.weight_names.get(&name) {
            return Arg::Weight(at);
        }
        let at = self.weights.len();
        self.weights.push((name.clone(), make()));
        self.weight_names.insert(name, at);
        Arg::Weight(at)
    }

    /// `act` with rows of the fixed dims `dims`, of equal product.
    pub fn shaped(&mut self, act: &Act, dims: &[usize]) -> Act {
        if act.dims == dims {
            return act.clone();
        }
        let name = self.items[act.src.item].name.strip_prefix(&self.prefix);
        let name = format!("{}.rows", name.unwrap_or("value"));
        let op = Op::Reshape {
            dims: dims.to_vec(),
        };
        let like = Act {
            dims: dims.to_vec(),
            ..act.clone()
        };
        self.node(&name, op, vec![Arg::Item(act.src)], like)
    }

    /// Type of a result.
    pub fn out(&self, src: Src) -> &Out {
        &self.items[src.item].outs[src.out]
    }
}

/// States of a cell in a program.
#[derive(Clone, Copy, Debug)]
pub(super) struct CellStates {
    /// h.
    pub h: StateId,
    /// c, of an LSTM.
    pub c: Option<StateId>,
}
