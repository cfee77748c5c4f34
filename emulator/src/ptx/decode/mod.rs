//! A parsed module to programs: names to rows, calls inlined, opcodes to operations.
//!
//! A call is replaced by the body of what it calls, with registers of its own; so there is no
//! stack, and recursion does not load.

mod flow;
mod memory;
mod names;
mod warp;

use std::collections::HashMap;

use super::LoadError;
use super::ast::{Function, Instruction, Module, Operand, Space, Statement, Variable};
use super::forms;
use super::program::{Address, Dest, Inst, Op, Program, Reg, SharedVariable, Special};
use super::types::Type;
use names::Names;

pub use memory::{atomic_forms, load_forms};

/// First address of shared memory among generic addresses.
pub const SHARED_BASE: u64 = 1 << 40;
/// First address of a thread's own memory among generic addresses.
pub const LOCAL_BASE: u64 = 3 << 39;
/// First address of parameters among generic addresses.
pub const PARAM_BASE: u64 = 7 << 38;
/// First byte of device memory; nothing of the spaces above reaches it.
pub const DEVICE_BASE: u64 = 1 << 41;
/// Bytes between two variables of shared memory.
const SHARED_GAP: u64 = 1024;

type Result<T> = std::result::Result<T, LoadError>;

/// Makes the programs of a module's kernels.
///
/// `addresses` gives the device addresses of the module's own variables.
///
/// # Errors
/// An instruction, name or call that is not known, with its line.
pub fn programs(module: &Module, addresses: &HashMap<String, u64>) -> Result<Vec<Program>> {
    let kernels = module.functions.iter().filter(|f| f.is_entry && f.has_body);
    kernels
        .map(|kernel| Decoder::new(module, addresses).kernel(kernel))
        .collect()
}

/// Work on one kernel.
struct Decoder<'a> {
    module: &'a Module,
    addresses: &'a HashMap<String, u64>,
    code: Vec<Inst>,
    num_rows: u32,
    constants: HashMap<u64, Reg>,
    specials: HashMap<Special, Reg>,
    shared: Vec<SharedVariable>,
    next_shared: u64,
    static_shared: u64,
    local_bytes: usize,
    /// The carry of `add.cc` and its kin.
    carry: Dest,
    /// Functions whose bodies are being put in.
    stack: Vec<String>,
}

impl<'a> Decoder<'a> {
    fn new(module: &'a Module, addresses: &'a HashMap<String, u64>) -> Self {
        Self {
            module,
            addresses,
            code: Vec::new(),
            num_rows: 1,
            constants: HashMap::new(),
            specials: HashMap::new(),
            shared: Vec::new(),
            next_shared: 0,
            static_shared: 0,
            local_bytes: 0,
            carry: Dest { reg: 0, mask: 1 },
            stack: Vec::new(),
        }
    }

    fn kernel(mut self, function: &Function) -> Result<Program> {
        let mut params = Vec::new();
        let mut names = Names::default();
        let mut end = 0usize;
        for param in &function.params {
            let offset = end.next_multiple_of(param.align);
            end = offset + param.bytes;
            params.push((offset, param.bytes));
            names.variable(&param.name, Space::Param, offset as u64);
        }
        self.body(function, names)?;
        let mut constants: Vec<_> = self.constants.into_iter().map(|(v, r)| (r, v)).collect();
        let mut specials: Vec<_> = self.specials.into_iter().map(|(s, r)| (r, s)).collect();
        constants.sort_unstable();
        specials.sort_unstable_by_key(|(reg, _)| *reg);
        let words = function
            .registers
            .iter()
            .filter(|(_, ty)| *ty != Type::Pred);
        Ok(Program {
            name: function.name.clone(),
            code: self.code,
            num_rows: self.num_rows as usize,
            constants,
            specials,
            params,
            shared: self.shared,
            static_shared: self.static_shared,
            local_bytes: self.local_bytes,
            max_threads: function.max_threads,
            num_registers: words.map(|(_, ty)| ty.bytes().div_ceil(4) as u32).sum(),
        })
    }

    fn row(&mut self) -> Reg {
        self.num_rows += 1;
        self.num_rows - 1
    }

    /// The row of a constant.
    fn constant(&mut self, value: u64) -> Reg {
        if let Some(reg) = self.constants.get(&value) {
            return *reg;
        }
        let reg = self.row();
        self.constants.insert(value, reg);
        reg
    }

    fn special(&mut self, special: Special) -> Reg {
        if let Some(reg) = self.specials.get(&special) {
            return *reg;
        }
        let reg = self.row();
        self.specials.insert(special, reg);
        reg
    }

    fn emit(&mut self, op: Op, guard: Option<(Reg, bool)>, line: u32) {
        self.code.push(Inst { op, guard, line });
    }

    /// Room for a variable of the thread's own memory.
    fn local(&mut self, variable: &Variable) -> u64 {
        let offset = self.local_bytes.next_multiple_of(variable.align.max(1));
        self.local_bytes = offset + variable.bytes;
        offset as u64
    }

    /// Room for a variable of shared memory.
    fn shared(&mut self, variable: &Variable) -> u64 {
        if let Some(known) = self.shared.iter().find(|v| v.name == variable.name) {
            return known.offset;
        }
        let offset = self
            .next_shared
            .next_multiple_of(variable.align.max(256) as u64);
        let is_dynamic = variable.bytes == 0;
        let static_offset = self.static_shared.next_multiple_of(variable.align as u64);
        self.static_shared = static_offset + variable.bytes as u64;
        // The array that a launch sizes may take all that a block can have.
        let room = if is_dynamic {
            1 << 20
        } else {
            variable.bytes as u64
        };
        self.next_shared = offset + room + SHARED_GAP;
        let (name, bytes) = (variable.name.clone(), variable.bytes as u64);
        self.shared.push(SharedVariable {
            name,
            offset,
            bytes,
            is_dynamic,
        });
        offset
    }

    /// The code of a function's body, with `names` for its parameters. Ends at what follows it.
    fn body(&mut self, function: &Function, mut names: Names) -> Result<()> {
        for (name, ty) in &function.registers {
            let reg = self.row();
            let mask = if *ty == Type::Pred {
                1
            } else {
                u64::MAX >> (64 - 8 * ty.bytes().min(8))
            };
            names.register(name, Dest { reg, mask });
        }
        for variable in &function.variables {
            let offset = match variable.space {
                Space::Shared => self.shared(variable),
                Space::Local | Space::Param => self.local(variable),
                _ => {
                    return Err(LoadError::new(
                        function.line,
                        format!("`{}`: space", variable.name),
                    ));
                }
            };
            let space = if variable.space == Space::Shared {
                Space::Shared
            } else {
                Space::Local
            };
            names.variable(&variable.name, space, offset);
        }
        let mut body = Body {
            function,
            names,
            labels: HashMap::new(),
            tables: HashMap::new(),
            fixes: Vec::new(),
        };
        for pair in function.body.windows(2) {
            if let [Statement::Label(name), Statement::Instruction(i)] = pair
                && i.opcode == ".branchtargets"
            {
                body.tables.insert(name, i);
            }
        }
        for statement in &function.body {
            match statement {
                Statement::Label(name) => {
                    body.labels.insert(name, self.code.len());
                }
                Statement::Instruction(i) if i.opcode == ".branchtargets" => {}
                Statement::Instruction(instruction) => self.instruction(instruction, &mut body)?,
            }
        }
        body.labels.insert(flow::END, self.code.len());
        self.resolve_labels(&body)?;
        if function.is_entry {
            self.emit(Op::Exit, None, function.line);
        }
        Ok(())
    }

    fn instruction(&mut self, i: &Instruction, body: &mut Body<'_>) -> Result<()> {
        let guard = match &i.guard {
            Some((name, is_negated)) => Some((body.names.dest(name, i.line)?.reg, *is_negated)),
            None => None,
        };
        if flow::branch(self, i, guard, body)? {
            return Ok(());
        }
        let mut found = self.registers_only(i, body)?;
        if found.is_none() {
            found = memory::decode(self, i, body)?;
        }
        if found.is_none() {
            found = warp::decode(self, i, body)?;
        }
        let op = found.ok_or_else(|| {
            LoadError::new(
                i.line,
                format!("instruction `{}` is not known to the emulator", i.opcode),
            )
        })?;
        self.emit(op, guard, i.line);
        Ok(())
    }

    /// Instructions of [`forms`], and moves that they do not have.
    fn registers_only(&mut self, i: &Instruction, body: &mut Body<'_>) -> Result<Option<Op>> {
        if let Some(op) = self.moves(i, body)? {
            return Ok(Some(op));
        }
        let Some(form) = forms::find(&i.opcode) else {
            return Ok(None);
        };
        let uses_carry = |types: &[Type]| {
            types.last() == Some(&Type::Pred) && i.opcode.contains('c') && {
                let base = i.opcode.split('.').next().unwrap_or_default();
                matches!(base, "addc" | "subc" | "madc") || i.opcode.contains(".cc.")
            }
        };
        let writes_carry = i.opcode.contains(".cc.");
        let reads_carry = uses_carry(&form.sources);
        let num_sources = form.sources.len() - usize::from(reads_carry);
        let expected = 1 + num_sources;
        check_count(i, expected)?;
        let mut dests = self.results(&i.operands[0], i, body)?;
        if writes_carry {
            dests[1] = Some(self.carry);
        } else if dests[1].is_some() && form.dests.len() < 2 {
            return Err(LoadError::new(
                i.line,
                format!("`{}`: expected one result, got two", i.opcode),
            ));
        }
        let mut sources = [0; 4];
        for (n, operand) in i.operands[1..].iter().enumerate() {
            sources[n] = self.source(operand, form.sources[n], i, body)?;
        }
        if reads_carry {
            sources[num_sources] = self.carry.reg;
        }
        Ok(Some(Op::Alu {
            form,
            dests,
            sources,
        }))
    }

    /// Vector moves, address conversions, and reads of counters.
    fn moves(&mut self, i: &Instruction, body: &mut Body<'_>) -> Result<Option<Op>> {
        let parts: Vec<&str> = i.opcode.split('.').collect();
        match (parts.as_slice(), i.operands.as_slice()) {
            (["mov", ty], [Operand::Vector(to), from]) => {
                let ty = type_of(ty, i)?;
                let dests = to
                    .iter()
                    .map(|d| Ok(self.results(d, i, body)?[0]))
                    .collect::<Result<Vec<_>>>()?;
                let source = self.source(from, ty, i, body)?;
                let bits = 8 * ty.bytes() as u32 / dests.len().max(1) as u32;
                Ok(Some(Op::Unpack {
                    dests,
                    source,
                    bits,
                }))
            }
            (["mov", ty], [to, Operand::Vector(from)]) => {
                let ty = type_of(ty, i)?;
                let dest = self.result(to, i, body)?;
                let sources = from
                    .iter()
                    .map(|s| self.source(s, ty, i, body))
                    .collect::<Result<Vec<_>>>()?;
                let bits = 8 * ty.bytes() as u32 / sources.len().max(1) as u32;
                Ok(Some(Op::Pack {
                    dest,
                    sources,
                    bits,
                }))
            }
            (["mov", _], [to, Operand::Name(name)]) if names::is_clock(name) => {
                Ok(Some(Op::Clock(self.result(to, i, body)?)))
            }
            (["cvta", rest @ ..], [to, from]) => {
                let is_to = rest.first() == Some(&"to");
                let space = rest[usize::from(is_to)..]
                    .first()
                    .copied()
                    .unwrap_or_default();
                let base = match space {
                    "global" | "const" => 0,
                    "shared" | "shared::cta" => SHARED_BASE,
                    "local" => LOCAL_BASE,
                    "param" => PARAM_BASE,
                    _ => return Ok(None),
                };
                let base = if is_to { base.wrapping_neg() } else { base };
                let (Some(form), Some("u64")) = (forms::find("add.u64"), rest.last().copied())
                else {
                    return Ok(None);
                };
                let dests = [Some(self.result(to, i, body)?), None];
                let base = self.constant(base);
                let sources = [self.source(from, Type::U64, i, body)?, base, 0, 0];
                Ok(Some(Op::Alu {
                    form,
                    dests,
                    sources,
                }))
            }
            (["isspacep", space], [to, from]) => {
                let space = match *space {
                    "global" => Space::Global,
                    "shared" | "shared::cta" => Space::Shared,
                    "local" => Space::Local,
                    "const" => Space::Const,
                    _ => return Ok(None),
                };
                let dest = self.result(to, i, body)?;
                let address = self.source(from, Type::U64, i, body)?;
                Ok(Some(Op::IsSpace {
                    dest,
                    space,
                    address,
                }))
            }
            _ => Ok(None),
        }
    }

    /// One or two results: a register, a pair, or none.
    fn results(
        &mut self,
        operand: &Operand,
        i: &Instruction,
        body: &Body<'_>,
    ) -> Result<[Option<Dest>; 2]> {
        match operand {
            Operand::Name(name) => Ok([Some(body.names.dest(name, i.line)?), None]),
            Operand::Pair(a, b) => {
                let of = |name: &str| match name {
                    "_" => Ok(None),
                    name => body.names.dest(name, i.line).map(Some),
                };
                Ok([of(a)?, of(b)?])
            }
            Operand::Sink => Ok([None, None]),
            _ => Err(LoadError::new(
                i.line,
                format!("`{}`: expected a register for its result", i.opcode),
            )),
        }
    }

    fn result(&mut self, operand: &Operand, i: &Instruction, body: &Body<'_>) -> Result<Dest> {
        self.results(operand, i, body)?[0]
            .ok_or_else(|| LoadError::new(i.line, format!("`{}`: expected a result", i.opcode)))
    }

    /// The row of a source: a register, a constant of type `ty`, a special register or an address.
    fn source(
        &mut self,
        operand: &Operand,
        ty: Type,
        i: &Instruction,
        body: &Body<'_>,
    ) -> Result<Reg> {
        let mask = if ty == Type::Pred {
            1
        } else {
            u64::MAX >> (64 - 8 * ty.bytes().min(8))
        };
        match operand {
            Operand::Integer(value) => Ok(self.constant(value & mask)),
            Operand::Single(bits) if ty == Type::F64 => {
                Ok(self.constant(f64::from(f32::from_bits(*bits)).to_bits()))
            }
            Operand::Single(bits) => Ok(self.constant((*bits).into())),
            Operand::Double(bits) if ty == Type::F32 => {
                Ok(self.constant((f64::from_bits(*bits) as f32).to_bits().into()))
            }
            Operand::Double(bits) => Ok(self.constant(*bits)),
            Operand::Name(name) => self.named(name, i, body),
            Operand::Not(name) => {
                // A negated predicate as a source: a row that holds its opposite.
                let source = body.names.dest(name, i.line)?.reg;
                let reg = self.row();
                if let Some(form) = forms::find("not.pred") {
                    let dests = [Some(Dest { reg, mask: 1 }), None];
                    self.emit(
                        Op::Alu {
                            form,
                            dests,
                            sources: [source, 0, 0, 0],
                        },
                        None,
                        i.line,
                    );
                }
                Ok(reg)
            }
            // The address of a part of a variable.
            Operand::Address(Some(name), offset) => match body.names.find(name) {
                Some(names::Name::Variable(_, start)) => {
                    Ok(self.constant(start.wrapping_add_signed(*offset)))
                }
                _ => match self.addresses.get(name) {
                    Some(start) => Ok(self.constant(start.wrapping_add_signed(*offset))),
                    None => Err(LoadError::new(i.line, format!("`{name}` is not known"))),
                },
            },
            _ => Err(LoadError::new(i.line, format!("`{}`: operand", i.opcode))),
        }
    }

    fn named(&mut self, name: &str, i: &Instruction, body: &Body<'_>) -> Result<Reg> {
        match body.names.find(name) {
            Some(names::Name::Register(dest)) => return Ok(dest.reg),
            Some(names::Name::Variable(_, offset)) => return Ok(self.constant(offset)),
            None => {}
        }
        if let Some(special) = names::special(name) {
            return Ok(self.special(special));
        }
        if name == "WARP_SZ" {
            return Ok(self.constant(32));
        }
        if let Some((_, offset)) = self.module_variable(name) {
            return Ok(self.constant(offset));
        }
        Err(LoadError::new(i.line, format!("`{name}` is not known")))
    }

    /// Space and address of a variable outside functions.
    fn module_variable(&mut self, name: &str) -> Option<(Space, u64)> {
        let variable = self.module.variables.iter().find(|v| v.name == name)?;
        if variable.space == Space::Shared {
            return Some((Space::Shared, self.shared(variable)));
        }
        self.addresses.get(name).map(|at| (variable.space, *at))
    }

    /// An address operand, with the space of the variable that it names, if it names one.
    fn address(
        &mut self,
        operand: &Operand,
        i: &Instruction,
        body: &Body<'_>,
    ) -> Result<(Address, Option<Space>)> {
        let Operand::Address(base, offset) = operand else {
            return Err(LoadError::new(
                i.line,
                format!("`{}`: expected an address", i.opcode),
            ));
        };
        let Some(name) = base else {
            return Ok((
                Address {
                    base: None,
                    offset: *offset,
                },
                None,
            ));
        };
        match body.names.find(name) {
            Some(names::Name::Register(dest)) => Ok((
                Address {
                    base: Some(dest.reg),
                    offset: *offset,
                },
                None,
            )),
            Some(names::Name::Variable(space, start)) => Ok((
                Address {
                    base: None,
                    offset: start as i64 + offset,
                },
                Some(space),
            )),
            None => match self.module_variable(name) {
                Some((space, start)) => Ok((
                    Address {
                        base: None,
                        offset: start as i64 + offset,
                    },
                    Some(space),
                )),
                None => Err(LoadError::new(i.line, format!("`{name}` is not known"))),
            },
        }
    }
}

/// A function while its instructions are decoded.
struct Body<'a> {
    function: &'a Function,
    names: Names,
    /// Positions of labels.
    labels: HashMap<&'a str, usize>,
    /// Targets of indexed branches, by their label.
    tables: HashMap<&'a str, &'a Instruction>,
    /// Branches whose targets are filled in at the end: position, labels.
    fixes: Vec<(usize, Vec<String>)>,
}

fn type_of(name: &str, i: &Instruction) -> Result<Type> {
    Type::parse(name)
        .ok_or_else(|| LoadError::new(i.line, format!("`{}`: type `{name}`", i.opcode)))
}

fn check_count(i: &Instruction, expected: usize) -> Result<()> {
    let got = i.operands.len();
    if got == expected {
        return Ok(());
    }
    Err(LoadError::new(
        i.line,
        format!("`{}`: expected {expected} operands, got {got}", i.opcode),
    ))
}
