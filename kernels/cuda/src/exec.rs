//! From the nodes of a launch to work in a stream, in two steps.
//!
//! First the nodes are *walked*: each writes the tables that its kernels need and puts its kernels
//! into a stream that records; what the host knows of states and outputs (lengths, pages) goes on
//! as if the nodes had run. Then the tables are copied to the device, all at once, and the record is
//! *played*, or the graph that does the same is run ([`crate::graphs`]). Walking makes no call of
//! the driver, but for loading kernels.

use std::fmt;

use lazybatch_graph::{Dim, Node, NodeId, Op, Repeat, StateId, TensorType};
use lazybatch_kernels::frames::{self, Mem};
use lazybatch_kernels::host_nodes::{Faults, has_failed};
use lazybatch_kernels::slots::Slots;
use lazybatch_sla::{RequestId, Slot};
use smallvec::SmallVec;

use crate::context::{DevicePtr, Stream};
use crate::error::CudaError;
use crate::gemm::Products;
use crate::graphs::{bucket, grid_bound};
use crate::host::{self, HostScratch};
use crate::kernels::rows::Span;
use crate::kernels::states::{PAGE, Paged};
use crate::kernels::{Kernels, Member, Weights};
use crate::memory::{Arena, ELEM, HostPool};
use crate::model::Model;
use crate::open::Open;
use crate::ops;
use crate::record::{Operation, Owners, Record};
use crate::states::{Pool, States};
use crate::tables::Stage;

/// A frame whose values are in the arena.
pub type Frame = frames::Frame<Arena>;

/// Why a node did not run.
#[derive(Debug)]
pub enum Fault {
    /// CUDA.
    Cuda(CudaError),
    /// CUDA, in a node of that name.
    At(String, CudaError),
    /// The node itself.
    Node(String),
}

impl Fault {
    /// The fault with the name of the node in which it came.
    pub fn at(self, node: &str) -> Self {
        match self {
            Self::Cuda(error) => Self::At(node.to_owned(), error),
            Self::Node(why) => Self::Node(format!("node {node}: {why}")),
            Self::At(..) => self,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cuda(error) => error.fmt(f),
            Self::At(node, error) => write!(f, "node {node}: {error}"),
            Self::Node(why) => f.write_str(why),
        }
    }
}

impl From<String> for Fault {
    fn from(why: String) -> Self {
        Self::Node(why)
    }
}

impl From<&str> for Fault {
    fn from(why: &str) -> Self {
        Self::Node(why.to_owned())
    }
}

impl From<CudaError> for Fault {
    fn from(error: CudaError) -> Self {
        Self::Cuda(error)
    }
}

/// What launchers are called with while a node is walked: their work is recorded.
pub struct Issue<'a> {
    /// The kernels.
    pub kernels: &'a Kernels,
    /// A stream that records.
    pub stream: &'a Stream,
    /// Products.
    pub products: &'a mut Products,
}

/// What a record is played with.
pub struct Play<'a> {
    /// Where work goes.
    pub stream: &'a Stream,
    /// Products.
    pub products: &'a mut Products,
    /// Memory of nodes that run on the host.
    pub host: &'a mut HostScratch,
    /// The model.
    pub model: &'a Model,
    /// Members of the launch.
    pub members: &'a [Mem],
    /// Those that failed alone.
    pub faults: &'a mut Faults,
}

impl Play<'_> {
    /// Puts the work of a record into the stream.
    ///
    /// # Errors
    /// The node, of `owners`, and the cause.
    pub fn run(&mut self, record: &Record, owners: &Owners) -> Result<(), Fault> {
        for (i, operation) in record.operations.iter().enumerate() {
            let result = match operation {
                Operation::Host(call) => host::run(self, call),
                other => issue(record, other, self.stream, self.products).map_err(Fault::from),
            };
            let name = |id: NodeId| self.model.program.node(id).name.as_str();
            result.map_err(|fault| match owners.of(i) {
                Some(id) => fault.at(name(id)),
                None => fault,
            })?;
        }
        Ok(())
    }
}

/// Puts an operation of a record that is not the host's into the stream.
fn issue(
    record: &Record,
    operation: &Operation,
    stream: &Stream,
    products: &mut Products,
) -> Result<(), CudaError> {
    match operation {
        Operation::Product(product) => products.issue(stream, product),
        // SAFETY: the walk recorded it for a launch whose values are in place.
        other => unsafe { record.issue(stream, other) },
    }
}

/// A member whose loop ends if a flag is set.
#[derive(Clone, Copy, Debug)]
pub struct Stop {
    /// The flag.
    pub flag: usize,
    /// The member.
    pub request: RequestId,
    /// Its slot.
    pub slot: Slot,
    /// Its pass.
    pub step: usize,
}

/// How far an output is when the launch is over.
#[derive(Clone, Copy, Debug)]
pub struct Emitted {
    /// Whose output.
    pub slot: Slot,
    /// Which.
    pub output: usize,
    /// In which pass.
    pub step: usize,
    /// Its elements.
    pub elems: usize,
}

/// What a launch leaves to be done when it is over.
#[derive(Debug, Default)]
pub struct Effects {
    /// Flags to look at.
    pub stops: Vec<Stop>,
    /// Outputs that have grown.
    pub emitted: Vec<Emitted>,
    /// Members that failed alone: nothing above is theirs.
    pub faults: Faults,
}

impl Effects {
    /// Takes out what is of members that failed alone.
    pub fn leave_out(&mut self, faults: Faults, members: &[Mem]) {
        if faults.is_empty() {
            return;
        }
        for mem in members.iter().filter(|m| has_failed(&faults, m.request)) {
            self.stops.retain(|s| s.slot != mem.slot);
            self.emitted.retain(|e| e.slot != mem.slot);
        }
        self.faults = faults;
    }
}

/// A walk over the nodes of a launch.
pub struct Walk<'a> {
    /// The model.
    pub model: &'a Model,
    /// Its states.
    pub states: &'a States,
    /// Open requests.
    pub slots: &'a mut Slots<Open>,
    /// Where inputs and outputs are.
    pub pool: &'a HostPool,
    /// Tables.
    pub stage: &'a mut Stage,
    /// Values.
    pub frame: &'a mut Frame,
    /// What is left to be done.
    pub effects: &'a mut Effects,
    /// Whose the work in the record is.
    pub owners: Owners,
    /// Memory that nodes work in: first address, elements, elements taken by this node.
    pub scratch: (DevicePtr, usize, usize),
    /// Whether products are this crate's own.
    pub deterministic: bool,
    /// Fill memory with NaN before it is written.
    pub poison: bool,
    /// Round sizes that are not in tables up to few.
    pub rounds: bool,
    issue: Issue<'a>,
    /// What a launcher refused.
    fault: Option<CudaError>,
    /// The node that is walked.
    id: NodeId,
    node: &'a Node,
    repeat: Repeat,
    block: usize,
    shared: Shared,
}

/// Tables that several nodes of a launch use.
#[derive(Default)]
struct Shared {
    members: [Option<DevicePtr>; 2],
    positions: [Option<DevicePtr>; 2],
    sequences: [Option<DevicePtr>; 2],
    state_rows: Option<(DevicePtr, DevicePtr)>,
    pages: SmallVec<[(StateId, DevicePtr); 4]>,
}

const fn kind(lead: Option<Dim>) -> usize {
    matches!(lead, Some(Dim::Rows)) as usize
}

impl<'a> Walk<'a> {
    /// A walk that stands before the first node.
    pub fn new(
        model: &'a Model,
        states: &'a States,
        (slots, pool): (&'a mut Slots<Open>, &'a HostPool),
        stage: &'a mut Stage,
        frame: &'a mut Frame,
        effects: &'a mut Effects,
        scratch: (DevicePtr, usize),
        (deterministic, poison, rounds): (bool, bool, bool),
        issue: Issue<'a>,
        block: usize,
    ) -> Self {
        let first = model.program.blocks[block].nodes[0];
        Self {
            model,
            states,
            slots,
            pool,
            stage,
            frame,
            effects,
            owners: Owners::default(),
            scratch: (scratch.0, scratch.1, 0),
            deterministic,
            poison,
            rounds,
            issue,
            fault: None,
            id: first,
            node: model.program.node(first),
            repeat: model.program.blocks[block].repeat,
            block,
            shared: Shared::default(),
        }
    }

    /// Walks nodes `first..end` of the block; the stream must record.
    ///
    /// # Errors
    /// The node and the cause.
    pub fn run(&mut self, first: usize, end: usize) -> Result<(), Fault> {
        let model = self.model;
        let plan = &model.places.blocks[self.block];
        for pos in first..end {
            self.id = model.program.blocks[self.block].nodes[pos];
            self.node = model.program.node(self.id);
            self.scratch.2 = 0;
            for &value in &self.node.outputs {
                let local = model.places.local[value.index()];
                // SAFETY: the plan gives a result memory that no living value has, but for an
                // operand in whose place its kernel can compute it.
                let at = unsafe { self.frame.make(plan, local) };
                self.frame.values[local] = Some(at);
                if self.poison && plan.in_place[pos].is_none() {
                    let bytes = plan.range(local, self.frame.rows, self.frame.samples).1 * ELEM;
                    self.poison(at, bytes);
                }
            }
            let walked = ops::walk(self).map_err(Fault::Node);
            let fault = self.fault.take().map_or(walked, |e| Err(Fault::Cuda(e)));
            fault.map_err(|fault| fault.at(&self.node.name))?;
            self.owners.push(self.issue.stream.num_recorded(), self.id);
            for &dead in &plan.dead_after[pos] {
                self.frame.values[dead] = None;
            }
        }
        self.frame.next = end as u32;
        Ok(())
    }

    fn poison(&mut self, at: DevicePtr, bytes: usize) {
        self.issue(move |i| {
            // SAFETY: the memory of a result of this node.
            unsafe { i.stream.fill(at, 0xff, bytes) }
        });
    }

    /// Records work of this node. What a launcher refuses fails the node.
    pub fn issue(&mut self, launch: impl FnOnce(&mut Issue<'_>) -> Result<(), CudaError>) {
        if let Err(error) = launch(&mut self.issue) {
            self.fault.get_or_insert(error);
        }
    }

    /// Records an operation of this node.
    pub fn keep(&mut self, operation: Operation) {
        let kept = self.issue.stream.keep(operation);
        debug_assert!(kept.is_none(), "the stream records while nodes are walked");
    }

    /// A size that is no row's, such as the length of the longest sequence, rounded up.
    pub fn rounded(&self, size: usize) -> usize {
        if self.rounds { bucket(size) } else { size }
    }

    /// A size that only bounds a grid, whose blocks beyond what there is end at once, rounded up further.
    pub fn bounded(&self, size: usize) -> usize {
        if self.rounds { grid_bound(size) } else { size }
    }

    /// Positions that a member's sequence state holds; none for rows of nobody.
    pub fn held(&self, mem: &Mem, state: StateId) -> usize {
        let open = self.slots.get(mem.slot);
        open.map_or(0, |open| open.sequences[state.index()].len)
    }

    /// The op of this node.
    pub fn op(&self) -> &'a Op {
        &self.node.op
    }

    /// This node's id.
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// This node.
    pub fn node(&self) -> &'a Node {
        self.node
    }

    /// Repeat rule of the block.
    pub fn repeat(&self) -> Repeat {
        self.repeat
    }

    /// Type of operand `i`.
    pub fn ty(&self, i: usize) -> &'a TensorType {
        &self.model.program.value(self.node.inputs[i]).ty
    }

    /// Type of result `i`.
    pub fn out_ty(&self, i: usize) -> &'a TensorType {
        &self.model.program.value(self.node.outputs[i]).ty
    }

    /// Last fixed dimension of operand `i`.
    pub fn last_dim(&self, i: usize) -> usize {
        self.ty(i).fixed_dims().last().copied().unwrap_or(1)
    }

    /// Elements of a value of that type in this launch.
    pub fn elems(&self, ty: &TensorType) -> usize {
        self.frame.num_rows(ty) * ty.row_elems()
    }

    /// Rows under a leading dimension.
    pub fn num_rows(&self, ty: &TensorType) -> usize {
        self.frame.num_rows(ty)
    }

    /// Whether operand `i` is a weight.
    pub fn is_weight(&self, i: usize) -> bool {
        self.model.program.as_weight(self.node.inputs[i]).is_some()
    }

    /// Where operand `i` is.
    pub fn arg(&self, i: usize) -> DevicePtr {
        let value = self.node.inputs[i];
        let found = match self.model.program.as_weight(value) {
            Some(w) => self.model.weights[w.index()].plain,
            None => self.frame.values[self.model.places.local[value.index()]],
        };
        found.expect("operands are alive, and weights are prepared at load")
    }

    /// Operand `i` as the right side of a product.
    pub fn right(&self, i: usize) -> Weights {
        let weight = self.model.program.as_weight(self.node.inputs[i]);
        let weight = weight.expect("checked at load");
        let right = self.model.weights[weight.index()].right;
        right.expect("prepared at load")
    }

    /// Operand `i` as filters of a convolution by matrix instructions, if it was prepared as such.
    pub fn filters(&self, i: usize) -> Option<Weights> {
        let weight = self.model.program.as_weight(self.node.inputs[i])?;
        let filters = self.model.weights[weight.index()].filters;
        filters.map(|(_, weights)| weights)
    }

    /// Where result `i` goes.
    pub fn out(&self, i: usize) -> DevicePtr {
        let local = self.model.places.local[self.node.outputs[i].index()];
        self.frame.values[local].expect("made before its node is walked")
    }

    /// `elems` elements with any content, until the node ends.
    ///
    /// # Panics
    /// If a node takes more than was planned for it.
    pub fn temporary(&mut self, elems: usize) -> DevicePtr {
        let (base, have, used) = self.scratch;
        let end = used + elems.next_multiple_of(lazybatch_kernels::arena::LINE);
        assert!(end <= have, "a node takes {end} of {have} elements");
        self.scratch.2 = end;
        base.add(used * ELEM)
    }

    /// Members with first row and number of rows under a leading dimension.
    pub fn spans(&self, lead: Option<Dim>) -> SmallVec<[(Mem, usize, usize); 16]> {
        let spans = self.frame.members.iter().map(|m| {
            let (start, num) = m.span(lead);
            (*m, start, num)
        });
        spans.collect()
    }

    /// Copies spans in one launch.
    ///
    /// # Errors
    /// No room for the table.
    pub fn copy_spans(&mut self, spans: Vec<Span>) -> Result<(), String> {
        let mut spans = spans;
        let most = most_elems(&spans);
        let most = self.bounded(most);
        // Members that nobody is have none here.
        let num = self.rounded(spans.len().max(self.frame.members.len()));
        spans.resize(num, Span::default());
        let table = self.stage.push(spans)?;
        self.issue(move |i| i.kernels.copy_spans(i.stream, table, num, most));
        Ok(())
    }

    /// Table of the members under a leading dimension.
    ///
    /// # Errors
    /// No room for it.
    pub fn members(&mut self, lead: Option<Dim>) -> Result<DevicePtr, String> {
        if let Some(at) = self.shared.members[kind(lead)] {
            return Ok(at);
        }
        let members = self.frame.members.iter().map(|m| {
            let (start, rows) = m.span(lead);
            Member {
                start: start as u32,
                rows: rows as u32,
                own: m.own(lead) as u32,
                sample: m.sample_start as u32,
            }
        });
        let at = self.stage.push(members)?;
        self.shared.members[kind(lead)] = Some(at);
        Ok(at)
    }

    /// Table of the positions of rows: their step in loops, else their place within their member.
    ///
    /// # Errors
    /// No room for it.
    pub fn positions(&mut self, lead: Option<Dim>) -> Result<DevicePtr, String> {
        if let Some(at) = self.shared.positions[kind(lead)] {
            return Ok(at);
        }
        let (slots, is_loop) = (&*self.slots, self.repeat.is_loop());
        let each = self.frame.members.iter().flat_map(|m| {
            // Rows of nobody may be more than a table of positions has.
            let stays = is_loop || slots.get(m.slot).is_none();
            let step = m.step as i32;
            (0..m.span(lead).1 as i32).map(move |r| if stays { step } else { r })
        });
        let at = self.stage.push(each)?;
        self.shared.positions[kind(lead)] = Some(at);
        Ok(at)
    }

    /// Table of the members that rows belong to.
    ///
    /// # Errors
    /// No room for it.
    pub fn sequences(&mut self, lead: Option<Dim>) -> Result<DevicePtr, String> {
        if let Some(at) = self.shared.sequences[kind(lead)] {
            return Ok(at);
        }
        let members = self.frame.members.iter().enumerate();
        let each = members.flat_map(|(i, m)| (0..m.span(lead).1).map(move |_| i as i32));
        let at = self.stage.push(each)?;
        self.shared.sequences[kind(lead)] = Some(at);
        Ok(at)
    }

    /// Tables of the rows of vector states: where samples read, and where they write (idle members
    /// nowhere).
    ///
    /// # Errors
    /// No room for them.
    pub fn state_rows(&mut self) -> Result<(DevicePtr, DevicePtr), String> {
        if let Some(tables) = self.shared.state_rows {
            return Ok(tables);
        }
        let (members, slots) = (&self.frame.members, &*self.slots);
        let initial = self.states.init_row;
        let rows = |m: &Mem| {
            let own = slots.get(m.slot).map_or(&[][..], |open| &open.rows[..]);
            let all = own.iter().copied().chain(std::iter::repeat(initial));
            all.take(m.samples).map(|row| row as i32)
        };
        let from = self.stage.push(members.iter().flat_map(rows))?;
        let to = members.iter().flat_map(|m| {
            let is_idle = m.idle;
            rows(m).map(move |row| if is_idle { -1 } else { row })
        });
        let tables = (from, self.stage.push(to)?);
        self.shared.state_rows = Some(tables);
        Ok(tables)
    }

    /// Pool and row elements of a vector state.
    pub fn vector(&self, state: StateId) -> (DevicePtr, usize) {
        match self.states.pools[state.index()] {
            Pool::Vector { at, elems, .. } => (at, elems),
            Pool::Sequence { .. } => unreachable!("programs are verified"),
        }
    }

    /// Pool and row elements of a sequence state.
    pub fn sequence(&self, state: StateId) -> (DevicePtr, usize) {
        match self.states.pools[state.index()] {
            Pool::Sequence { at, features } => (at, features),
            Pool::Vector { .. } => unreachable!("programs are verified"),
        }
    }

    /// A sequence state with the pages of the members.
    ///
    /// # Errors
    /// No room for the table.
    pub fn paged(&mut self, state: StateId) -> Result<Paged, String> {
        let (pool, width) = self.sequence(state);
        let slots = &*self.slots;
        let pages = |m: &Mem| {
            let open = slots.get(m.slot);
            open.map_or(&[][..], |open| &open.sequences[state.index()].pages[..])
        };
        let most = self.frame.members.iter().map(|m| pages(m).len()).max();
        let most = self.rounded(most.unwrap_or(0).max(1));
        let found = self.shared.pages.iter().find(|(s, _)| *s == state);
        let table = match found {
            Some((_, at)) => *at,
            None => {
                let each = self.frame.members.iter().flat_map(|m| {
                    let own = pages(m).iter().map(|p| *p as i32);
                    own.chain(std::iter::repeat(-1)).take(most)
                });
                let at = self.stage.push(each)?;
                self.shared.pages.push((state, at));
                at
            }
        };
        Ok(Paged {
            pool,
            pages: table,
            max_pages: most as u32,
            width,
        })
    }

    /// Rows `first..first + num` of a member's sequence state, in runs that lie together: address
    /// and rows.
    pub fn runs(
        &self,
        mem: &Mem,
        state: StateId,
        first: usize,
        num: usize,
    ) -> SmallVec<[(DevicePtr, usize); 4]> {
        let mut runs = SmallVec::new();
        if num == 0 {
            return runs;
        }
        let (pool, features) = self.sequence(state);
        let pages = &self.slots.open(mem.slot).sequences[state.index()].pages;
        let mut pos = first;
        while pos < first + num {
            let page = pages[pos / PAGE] as usize;
            let rows = (PAGE - pos % PAGE).min(first + num - pos);
            let at = (page * PAGE + pos % PAGE) * features * ELEM;
            runs.push((pool.add(at), rows));
            pos += rows;
        }
        runs
    }
}

/// Elements of the largest of spans.
pub fn most_elems(spans: &[Span]) -> usize {
    let elems = spans.iter().map(|s| s.copied.max(s.zeroed) as usize);
    elems.max().unwrap_or(0)
}
