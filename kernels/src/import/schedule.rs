//! Cuts a list of items into the blocks of a program.
//!
//! Items stand in stages: even ones run once, odd ones are loops over the positions, and what
//! depends on a decoder's step comes last, in a loop until it stops. A recurrent layer stands in
//! the first loop behind all that it reads; one that reads another layer of its direction stands
//! beside it. What crosses from one stage to another goes through a state of the request.
//!
//! What follows a layer position by position up to the outputs, with small weights, stands in the
//! layer's loop: its rows are then handed out as they come, where they would cross to a stage of
//! their own.

use std::collections::{BTreeMap, BTreeSet};

use lazybatch_graph::tensor_op::held_as;
use lazybatch_graph::{
    Act as Function, At, Bin, Dim, Error, Fused, Op, Program, ProgramBuilder, Repeat, StateId,
    Tensor, ValueId,
};

use super::items::{Arg, Cell, CellKind, CellStates, Item, Items, Kind, Src};

/// Stage of what depends on a decoder's step.
const DECODER: usize = usize::MAX;

/// Most elements of an item's weights that are read at every step of a loop rather than once for all
/// positions: the caches hold them beside those of the layer.
const FEW_WEIGHTS: usize = 16 << 10;

/// Sizes that the items do not say.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Most positions of a sequence.
    pub max_len: usize,
    /// Most steps of a decoder.
    pub max_steps: u32,
}

/// Builds the program of `items`; inputs and outputs are declared in `builder`.
///
/// # Errors
/// What the builder refuses: a bug of the lowering.
pub(super) fn build(
    items: &Items,
    builder: ProgramBuilder,
    bounds: Bounds,
) -> Result<Program, Error> {
    let mut stages = stages(&items.items);
    move_into_loops(items, &mut stages);
    let crossing = crossing(&items.items, &stages);
    let mut cutter = Cutter {
        items,
        stages,
        crossing,
        b: builder,
        bounds,
        weights: Vec::new(),
        kept: Vec::new(),
        caches: Vec::new(),
        cells: BTreeMap::new(),
        states: BTreeMap::new(),
        here: BTreeMap::new(),
        reads: 0,
    };
    cutter.run();
    cutter.b.finish()
}

fn args(item: &Item) -> impl Iterator<Item = (usize, Src)> + '_ {
    item.args
        .iter()
        .enumerate()
        .filter_map(|(i, arg)| match arg {
            Arg::Item(src) => Some((i, *src)),
            Arg::Weight(_) => None,
        })
}

/// Stage of each item.
fn stages(items: &[Item]) -> Vec<usize> {
    let mut stages: Vec<usize> = Vec::with_capacity(items.len());
    // By layer: the stage behind which its first state is set.
    let mut starts: BTreeMap<usize, usize> = BTreeMap::new();
    for (at, item) in items.iter().enumerate() {
        if item.looped {
            stages.push(DECODER);
            continue;
        }
        let mut stage = 0;
        for (_, src) in args(item) {
            let from = &items[src.item];
            let is_input = matches!(from.kind, Kind::Input(_));
            let own = stages[src.item];
            let least = match (&item.kind, &from.kind) {
                (Kind::Layer(_), _) if is_input => 1,
                (Kind::Layer(a), Kind::Layer(b)) if a.reverse == b.reverse => own,
                (Kind::Layer(_), Kind::Layer(_)) => own + 2,
                (Kind::Layer(_), _) => own + 1,
                (_, Kind::Layer(_)) => own + 1,
                _ => own,
            };
            stage = stage.max(least);
        }
        match &item.kind {
            Kind::Layer(_) => {
                let start = starts.get(&at).map_or(1, |s| s + 1);
                stage = stage.max(start);
            }
            Kind::Start { of, .. } => {
                let start = starts.entry(*of).or_default();
                *start = (*start).max(stage);
            }
            _ => {}
        }
        stages.push(stage);
    }
    stages
}

/// Moves what follows a layer up to the outputs into the layer's loop, where all of it can be there and
/// nobody else reads any of it.
fn move_into_loops(items: &Items, stages: &mut [usize]) {
    let list = &items.items;
    let mut readers = vec![Vec::new(); list.len()];
    for (at, item) in list.iter().enumerate() {
        for (_, src) in args(item).filter(|(_, src)| src.out == 0) {
            readers[src.item].push(at);
        }
    }
    // By item: the loop that it is in or could be in. Items stand behind what they read.
    let mut loops: Vec<Option<usize>> = vec![None; list.len()];
    for (at, item) in list.iter().enumerate() {
        loops[at] = match &item.kind {
            Kind::Layer(cell) => Some(stages[at]).filter(|_| !cell.reverse),
            _ if !is_by_position(items, item) => None,
            _ => args(item)
                .filter(|(_, src)| !matches!(list[src.item].kind, Kind::Input(_)))
                .map(|(_, src)| loops[src.item])
                .reduce(|a, b| a.filter(|_| a == b))
                .flatten(),
        };
    }
    // One that stays away keeps those away that it reads and that read it.
    let is_layer = |at: usize| matches!(list[at].kind, Kind::Layer(_));
    loop {
        let goes = |at: usize| {
            let own = loops[at];
            let read = args(&list[at]).all(|(_, src)| {
                matches!(list[src.item].kind, Kind::Input(_)) || loops[src.item] == own
            });
            let by = readers[at]
                .iter()
                .all(|&r| loops[r] == own || (is_layer(r) && Some(stages[r]) == own));
            (is_layer(at) || read) && by
        };
        let found = (0..list.len()).find(|&at| loops[at].is_some() && !goes(at));
        match found {
            Some(at) => loops[at] = None,
            None => break,
        }
    }
    for (at, stage) in stages.iter_mut().enumerate() {
        *stage = loops[at].unwrap_or(*stage);
    }
}

/// Whether each row of an item's results, or what it hands out, depends on the same rows of its
/// operands and few weights.
fn is_by_position(items: &Items, item: &Item) -> bool {
    let is_known = match &item.kind {
        Kind::Emit(_) => true,
        Kind::Op(op) => matches!(
            op,
            Op::Linear { .. }
                | Op::Binary(_)
                | Op::Unary(_)
                | Op::Elementwise(_)
                | Op::Scale(_)
                | Op::LayerNorm { .. }
                | Op::RmsNorm { .. }
                | Op::Softmax
                | Op::Reshape { .. }
                | Op::Concat
                | Op::Slice { .. }
        ),
        _ => false,
    };
    let elems = |tensor: &Tensor| tensor.dims.iter().product::<usize>();
    let mut num_weights = 0;
    let are_rows = item.args.iter().all(|arg| match arg {
        Arg::Item(src) => {
            let reads = &items.items[src.item];
            let is_state = matches!(reads.kind, Kind::Layer(_)) && src.out > 0;
            !is_state && reads.outs[src.out].lead == Dim::Rows
        }
        Arg::Weight(w) => {
            num_weights += elems(&items.weights[*w].1);
            true
        }
    });
    let gives_rows = item.outs.iter().all(|out| out.lead == Dim::Rows);
    is_known && !item.looped && are_rows && gives_rows && num_weights <= FEW_WEIGHTS
}

/// Whether an input can be read anew in a stage.
fn rereads(items: &[Item], src: Src, stage: usize) -> bool {
    let item = &items[src.item];
    let is_rows = item.outs[src.out].lead == Dim::Rows;
    let legal = stage != DECODER && (stage.is_multiple_of(2) || is_rows);
    matches!(item.kind, Kind::Input(_)) && legal
}

/// Results that are read in another stage than theirs, or as a state.
fn crossing(items: &[Item], stages: &[usize]) -> BTreeSet<Src> {
    let mut found = BTreeSet::new();
    for (at, item) in items.iter().enumerate() {
        for (i, src) in args(item) {
            let as_state = matches!(item.kind, Kind::Lookup(_)) && i > 0;
            let away = stages[src.item] != stages[at] && !rereads(items, src, stages[at]);
            if as_state || away {
                found.insert(src);
            }
        }
    }
    found
}

struct Cutter<'a> {
    items: &'a Items,
    stages: Vec<usize>,
    crossing: BTreeSet<Src>,
    b: ProgramBuilder,
    bounds: Bounds,
    weights: Vec<ValueId>,
    kept: Vec<StateId>,
    caches: Vec<StateId>,
    cells: BTreeMap<usize, CellStates>,
    states: BTreeMap<Src, StateId>,
    /// Values of the block that is being built, by source and direction of the reader.
    here: BTreeMap<(Src, bool), ValueId>,
    reads: usize,
}

impl Cutter<'_> {
    fn run(&mut self) {
        for (name, tensor) in &self.items.weights {
            let weight = self.b.data(name, tensor.clone());
            self.weights.push(weight);
        }
        for state in &self.items.kept {
            let dtype = held_as(state.elem);
            let id = self
                .b
                .vector_state(&state.name, dtype, &state.dims, state.init);
            self.kept.push(id);
        }
        for cache in &self.items.caches {
            let most = self.bounds.max_steps as usize;
            let id = self.b.sequence_state(&cache.name, cache.features, most);
            self.caches.push(id);
        }
        let used: BTreeSet<usize> = self.stages.iter().copied().collect();
        for stage in used {
            let (name, repeat) = match stage {
                DECODER => {
                    let max = self.bounds.max_steps;
                    ("decoder".to_owned(), Repeat::UntilStop { max })
                }
                n if n.is_multiple_of(2) => (format!("once{}", n / 2), Repeat::Once),
                n => {
                    let repeat = Repeat::PerInputStep { stride: 1 };
                    (format!("steps{}", n / 2), repeat)
                }
            };
            self.here.clear();
            let members: Vec<usize> = (0..self.items.items.len())
                .filter(|&i| self.stages[i] == stage && self.is_wanted(i))
                .collect();
            if members.is_empty() {
                continue;
            }
            self.b.begin_block(&name, repeat);
            for i in members {
                self.item(i, stage);
            }
        }
    }

    /// Inputs stand where they are read; here only where they cross as a state.
    fn is_wanted(&self, i: usize) -> bool {
        let is_input = matches!(self.items.items[i].kind, Kind::Input(_));
        !is_input || self.crossing.contains(&Src { item: i, out: 0 })
    }

    fn item(&mut self, i: usize, stage: usize) {
        let item = &self.items.items[i];
        let reverse = match &item.kind {
            Kind::Layer(cell) => cell.reverse,
            _ => false,
        };
        let lookup = matches!(item.kind, Kind::Lookup(_));
        let mut operands = Vec::new();
        for (at, arg) in item.args.iter().enumerate() {
            match arg {
                Arg::Weight(w) => operands.push(self.weights[*w]),
                Arg::Item(_) if lookup && at > 0 => {}
                Arg::Item(src) => operands.push(self.fetch(*src, stage, reverse)),
            }
        }
        let name = item.name.as_str();
        let results: Vec<ValueId> = match &item.kind {
            Kind::Op(op) => {
                let op = op.clone();
                self.b.node(name, op, &operands).to_vec()
            }
            Kind::Input(_) => vec![self.fetch(Src { item: i, out: 0 }, stage, reverse)],
            Kind::Emit(output) => {
                self.b.emit(name, *output, operands[0]);
                Vec::new()
            }
            Kind::Stop(token) => {
                self.b.stop(name, operands[0], *token);
                Vec::new()
            }
            Kind::Kept(at) => vec![self.b.vec_read(name, self.kept[*at])],
            Kind::Keep(at) | Kind::Seed(at) => {
                self.b.vec_write(name, self.kept[*at], operands[0]);
                Vec::new()
            }
            Kind::Append(at) => {
                let cache = self.caches[*at];
                self.b.seq_write(name, cache, At::End, operands[0]);
                Vec::new()
            }
            Kind::LookupCache(heads, keys, values) => {
                let (keys, values) = (self.caches[*keys], self.caches[*values]);
                let y = self
                    .b
                    .state_attention(name, operands[0], *heads, keys, values);
                vec![y]
            }
            Kind::Start { of, which } => {
                let states = self.cell_states(*of);
                let state = if *which == 0 {
                    Some(states.h)
                } else {
                    states.c
                };
                if let Some(state) = state {
                    self.b.vec_write(name, state, operands[0]);
                }
                Vec::new()
            }
            Kind::Layer(cell) => {
                let states = self.cell_states(i);
                vec![self.cell(name, cell, states, &operands)]
            }
            Kind::Step { of, cell } => {
                let states = self.cell_states(*of);
                let h = self.cell(name, cell, states, &operands);
                // The state as it is now: a later step may overwrite it.
                let mut results = vec![h, h];
                if let Some(c) = states.c {
                    results.push(self.b.vec_read(&format!("{name}.c"), c));
                }
                results
            }
            Kind::Lookup(heads) => {
                let state = |at: usize| match item.args[at] {
                    Arg::Item(src) => self.states.get(&src).copied(),
                    Arg::Weight(_) => None,
                };
                let (Some(keys), Some(values)) = (state(1), state(2)) else {
                    unreachable!("keys and values stand in earlier items and cross");
                };
                vec![
                    self.b
                        .state_attention(name, operands[0], *heads, keys, values),
                ]
            }
        };
        for (out, value) in results.into_iter().enumerate() {
            let src = Src { item: i, out };
            self.here.insert((src, reverse), value);
            if self.crossing.contains(&src) {
                self.keep(src, stage, reverse, value);
            }
        }
    }

    /// Writes a result to a state.
    fn keep(&mut self, src: Src, stage: usize, reverse: bool, value: ValueId) {
        let (name, out) = (&self.items.items[src.item].name, self.items.out(src));
        let name = format!("{name}.kept{}", src.out);
        if out.lead == Dim::Rows {
            let width: usize = out.dims.iter().product();
            let state = self.b.sequence_state(&name, width, self.bounds.max_len);
            self.states.insert(src, state);
            let value = self.flat(&name, value, &[width]);
            let at = match (stage.is_multiple_of(2), reverse) {
                (true, _) => At::All,
                (false, false) => At::Step,
                (false, true) => At::Reverse,
            };
            self.b.seq_write(&name, state, at, value);
        } else {
            let dtype = held_as(out.elem);
            let state = self.b.vector_state(&name, dtype, &out.dims, 0.0);
            self.states.insert(src, state);
            self.b.vec_write(&name, state, value);
        }
    }

    fn flat(&mut self, name: &str, value: ValueId, dims: &[usize]) -> ValueId {
        if self.b.ty(value).fixed_dims()[..] == *dims {
            return value;
        }
        self.reads += 1;
        let name = format!("{name}.rows{}", self.reads);
        self.b.reshape(&name, value, dims)
    }

    /// A result in the block that is being built.
    fn fetch(&mut self, src: Src, stage: usize, reverse: bool) -> ValueId {
        if let Some(&value) = self.here.get(&(src, reverse)) {
            return value;
        }
        let item = &self.items.items[src.item];
        let out = self.items.out(src).clone();
        self.reads += 1;
        let name = format!("{}.read{}", item.name, self.reads);
        let at = match (stage.is_multiple_of(2) || stage == DECODER, reverse) {
            (true, _) => At::All,
            (false, false) => At::Step,
            (false, true) => At::Reverse,
        };
        let value = match (&item.kind, self.states.get(&src)) {
            (Kind::Input(id), _) if stage != DECODER => self.b.read_input_at(&name, *id, at),
            // A layer's last states are those of its cell.
            (Kind::Layer(_), _) if src.out > 0 => {
                let states = self.cell_states(src.item);
                let state = if src.out == 1 {
                    Some(states.h)
                } else {
                    states.c
                };
                self.b.vec_read(&name, state.unwrap_or(states.h))
            }
            (_, Some(&state)) if out.lead == Dim::Rows => {
                let value = self.b.seq_read(&name, state, at);
                self.flat(&name, value, &out.dims)
            }
            (_, Some(&state)) => self.b.vec_read(&name, state),
            (_, None) => unreachable!("{name} crosses without a state"),
        };
        self.here.insert((src, reverse), value);
        value
    }

    /// States of the cell whose item is `of`.
    fn cell_states(&mut self, of: usize) -> CellStates {
        if let Some(states) = self.cells.get(&of) {
            return *states;
        }
        let item = &self.items.items[of];
        let (Kind::Layer(cell) | Kind::Step { cell, .. }) = &item.kind else {
            unreachable!("{} has no state", item.name);
        };
        let dtype = lazybatch_graph::DType::F32;
        let mut state = |what: &str, init: f32| {
            let name = format!("{}.{what}", item.name);
            self.b.vector_state(&name, dtype, &[cell.hidden], init)
        };
        let h = state("h", cell.init[0]);
        let c = (cell.kind == CellKind::Lstm).then(|| state("c", cell.init[1]));
        let states = CellStates { h, c };
        self.cells.insert(of, states);
        states
    }

    /// One step of a cell; `v` is x and the weights.
    fn cell(&mut self, name: &str, cell: &Cell, states: CellStates, v: &[ValueId]) -> ValueId {
        let b = &mut self.b;
        match cell.kind {
            CellKind::Lstm => {
                let c = states.c.unwrap_or(states.h);
                b.lstm_cell(name, v[0], [v[1], v[2], v[3]], None, states.h, c)
            }
            CellKind::Gru => b.gru_cell(name, v[0], [v[1], v[2], v[3], v[4]], states.h),
            CellKind::Rnn(function) => b.scope(name, |b| {
                let h = b.vec_read("h", states.h);
                let from_h = b.linear("hh", h, v[2], Fused::default());
                let sum = b.linear("ih", v[0], v[1], Fused::bias(v[3]).residual(from_h));
                let h = b.unary("act", function, sum);
                b.vec_write("keep", states.h, h);
                h
            }),
            CellKind::GruBefore => b.scope(name, |b| {
                let h = b.vec_read("h", states.h);
                let gate = |b: &mut ProgramBuilder, what: &str, at: usize, h: ValueId, f| {
                    let from_h = b.linear(&format!("{what}.hh"), h, v[at + 1], Fused::default());
                    let fused = Fused::bias(v[at + 2]).residual(from_h);
                    let sum = b.linear(&format!("{what}.ih"), v[0], v[at], fused);
                    b.unary(what, f, sum)
                };
                let r = gate(b, "r", 1, h, Function::Sigmoid);
                let z = gate(b, "z", 4, h, Function::Sigmoid);
                let left = b.binary("reset", Bin::Mul, r, h);
                let n = gate(b, "n", 7, left, Function::Tanh);
                // (1 - z) n + z h
                let change = b.binary("change", Bin::Sub, h, n);
                let change = b.binary("update", Bin::Mul, z, change);
                let h = b.binary("sum", Bin::Add, n, change);
                b.vec_write("keep", states.h, h);
                h
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use lazybatch_graph::onnx::Elem;
    use lazybatch_graph::{InputId, OutputId};

    use super::*;
    use crate::import::items::Out;

    /// An input, a layer, a product with a weight of `columns` columns, and an output of that; then what
    /// `more` adds, of which each reads the item that it names. Gives the stages of all.
    fn staged(reverse: bool, columns: usize, more: &[(Kind, usize)]) -> Vec<usize> {
        let mut items = Items::default();
        let rows = |width: usize| Out {
            lead: Dim::Rows,
            dims: vec![width],
            elem: Elem::F32,
        };
        let weight = Tensor::from_f32(&[4, columns], &vec![0.0; 4 * columns]);
        items.weights.push(("w".into(), weight));
        let read = |item| Arg::Item(Src { item, out: 0 });
        let linear = Op::Linear {
            bias: false,
            act: None,
            residual: false,
        };
        let cell = Cell {
            kind: CellKind::Lstm,
            hidden: 4,
            reverse,
            init: [0.0; 2],
        };
        items.push("x", Kind::Input(InputId::new(0)), vec![], vec![rows(3)]);
        items.push("layer", Kind::Layer(cell), vec![read(0)], vec![rows(4); 3]);
        let args = vec![read(1), Arg::Weight(0)];
        items.push("linear", Kind::Op(linear), args, vec![rows(columns)]);
        let emit = || Kind::Emit(OutputId::new(0));
        items.push("emit", emit(), vec![read(2)], vec![]);
        for (kind, of) in more {
            let outs = match kind {
                Kind::Emit(_) => vec![],
                _ => vec![rows(4); 3],
            };
            items.push("more", kind.clone(), vec![read(*of)], outs);
        }
        let mut stages = stages(&items.items);
        move_into_loops(&items, &mut stages);
        stages
    }

    #[test]
    fn what_follows_a_layer_to_the_outputs_is_in_its_loop() {
        let emit = Kind::Emit(OutputId::new(1));
        let relu = Kind::Op(Op::Unary(Function::Relu));
        assert_eq!(staged(false, 5, &[])[1..], [1, 1, 1]);
        let more = [(relu, 2), (emit.clone(), 4), (emit, 1)];
        assert_eq!(staged(false, 5, &more)[1..], [1; 6]);
    }

    #[test]
    fn what_reads_many_weights_or_is_read_elsewhere_is_behind_the_loop() {
        let few = FEW_WEIGHTS / 4;
        assert_eq!(staged(false, few, &[])[1..], [1, 1, 1]);
        assert_eq!(staged(false, few + 1, &[])[1..], [1, 2, 2]);
        assert_eq!(staged(true, 5, &[])[1..], [1, 2, 2], "from the last on");
        // A mean over positions is not by position.
        let mean = Kind::Op(Op::MeanRows);
        for of in [1, 2] {
            let stages = staged(false, 5, &[(mean.clone(), of)]);
            assert_eq!(stages[1..], [1, 2, 2, 2], "{of} is read");
        }
    }
}
