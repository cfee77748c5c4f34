//! A loaded module: its kernels, its variables in device memory, its text for reports.

use std::collections::HashMap;

use crate::exec::{BadAddress, Memory};
use crate::ptx::ast::{Space, Variable};
use crate::ptx::program::Program;
use crate::ptx::{LoadError, decode, parse};

/// A loaded module.
pub struct Module {
    lines: Vec<String>,
    programs: Vec<Program>,
    /// Address and size of each variable.
    variables: HashMap<String, (u64, usize)>,
}

impl Module {
    /// Reads PTX text and puts its variables into device memory.
    ///
    /// # Errors
    /// Whatever the emulator does not know, with its line.
    pub fn load(text: &str, memory: &mut Memory) -> Result<Self, LoadError> {
        let text = text.trim_end_matches('\0');
        let parsed = parse::parse(text)?;
        let mut variables = HashMap::new();
        let is_placed = |v: &&Variable| matches!(v.space, Space::Global | Space::Const);
        for variable in parsed.variables.iter().filter(is_placed) {
            let mut bytes = variable.init.clone();
            bytes.resize(variable.bytes, 0);
            // The host fills constants too, but kernels do not write them.
            let at = memory.alloc_filled(bytes, variable.space == Space::Const);
            variables.insert(variable.name.clone(), (at, variable.bytes));
        }
        let addresses = variables
            .iter()
            .map(|(name, (at, _))| (name.clone(), *at))
            .collect();
        let result = decode::programs(&parsed, &addresses);
        let module = Self {
            lines: text.lines().map(str::to_owned).collect(),
            programs: Vec::new(),
            variables,
        };
        match result {
            Ok(programs) => Ok(Self { programs, ..module }),
            Err(e) => {
                let _ = module.unload(memory);
                Err(e)
            }
        }
    }

    /// Gives the memory of its variables back.
    ///
    /// # Errors
    /// They were given back before.
    pub fn unload(&self, memory: &mut Memory) -> Result<(), BadAddress> {
        self.variables
            .values()
            .try_for_each(|(at, _)| memory.free(*at))
    }

    /// The kernel of that name.
    pub fn kernel(&self, name: &str) -> Option<&Program> {
        self.programs.iter().find(|program| program.name == name)
    }

    /// All kernels.
    pub fn kernels(&self) -> &[Program] {
        &self.programs
    }

    /// Address and size of the variable of that name.
    pub fn variable(&self, name: &str) -> Option<(u64, usize)> {
        self.variables.get(name).copied()
    }

    /// The text of a line, from 1.
    pub fn line(&self, line: u32) -> &str {
        self.lines
            .get(line.saturating_sub(1) as usize)
            .map_or("", |l| l.trim())
    }
}
