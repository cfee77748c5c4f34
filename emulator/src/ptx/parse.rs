//! Tokens to modules.
//!
//! Names of registers, variables and labels are made unique across the scopes of a function: the
//! second `param0` becomes `param0#1`. Debug sections and source locations are left out.

use std::collections::{HashMap, HashSet};

use super::LoadError;
use super::ast::{Function, Instruction, Module, Operand, Space, Statement, Variable};
use super::lex::{Located, Token, tokens};
use super::types::Type;

/// Reads a module.
///
/// # Errors
/// Text that is no PTX, with its line.
pub fn parse(text: &str) -> Result<Module> {
    let mut parser = Parser {
        tokens: tokens(text)?,
        at: 0,
        scopes: Vec::new(),
        used: HashSet::new(),
    };
    let mut module = Module::default();
    while parser.at < parser.tokens.len() {
        parser.item(&mut module)?;
    }
    Ok(module)
}

struct Parser {
    tokens: Vec<Located>,
    at: usize,
    /// Names of the scopes that are open, innermost last.
    scopes: Vec<HashMap<String, String>>,
    /// Names that the function has had, in whatever scope.
    used: HashSet<String>,
}

/// What a declaration says before its name.
#[derive(Default)]
struct Head {
    space: Option<Space>,
    ty: Option<Type>,
    align: Option<usize>,
    is_extern: bool,
    lanes: usize,
}

type Result<T> = std::result::Result<T, LoadError>;

impl Parser {
    fn line(&self) -> u32 {
        let last = self.tokens.get(self.at).or(self.tokens.last());
        last.map_or(1, |t| t.line)
    }

    fn error<T>(&self, expected: &str) -> Result<T> {
        let got = match self.tokens.get(self.at) {
            Some(t) => match &t.token {
                Token::Word(word) => format!("`{word}`"),
                Token::Mark(mark) => format!("`{mark}`"),
                other => format!("{other:?}"),
            },
            None => "the end".to_owned(),
        };
        Err(LoadError::new(
            self.line(),
            format!("expected {expected}, got {got}"),
        ))
    }

    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at).map(|t| &t.token)
    }

    fn peek_word(&self) -> Option<&str> {
        match self.peek() {
            Some(Token::Word(word)) => Some(word),
            _ => None,
        }
    }

    fn is_mark(&self, mark: char) -> bool {
        self.peek() == Some(&Token::Mark(mark))
    }

    /// Takes the mark if it is next.
    fn take(&mut self, mark: char) -> bool {
        let found = self.is_mark(mark);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, mark: char) -> Result<()> {
        if self.take(mark) {
            Ok(())
        } else {
            self.error(&format!("`{mark}`"))
        }
    }

    fn word(&mut self) -> Result<String> {
        match self.peek() {
            Some(Token::Word(word)) => {
                let word = word.clone();
                self.at += 1;
                Ok(word)
            }
            _ => self.error("a name"),
        }
    }

    fn integer(&mut self) -> Result<u64> {
        let is_negative = self.take('-');
        match self.peek() {
            Some(&Token::Integer(value)) => {
                self.at += 1;
                Ok(if is_negative {
                    value.wrapping_neg()
                } else {
                    value
                })
            }
            _ => self.error("an integer"),
        }
    }

    /// Declares a name in the innermost scope and answers its unique form.
    fn declare(&mut self, name: &str) -> String {
        let mut unique = name.to_owned();
        if !self.used.insert(unique.clone()) {
            unique = format!("{name}#{}", self.used.len());
            self.used.insert(unique.clone());
        }
        if let Some(scope) = self.scopes.last_mut() {
            scope.insert(name.to_owned(), unique.clone());
        }
        unique
    }

    fn resolve(&self, name: String) -> String {
        let found = self.scopes.iter().rev().find_map(|scope| scope.get(&name));
        found.cloned().unwrap_or(name)
    }

    /// A directive, variable or function of the module.
    fn item(&mut self, module: &mut Module) -> Result<()> {
        match self.peek_word() {
            Some(".version" | ".address_size") => {
                self.at += 2;
                Ok(())
            }
            Some(".target") => {
                self.at += 2;
                while self.take(',') {
                    self.at += 1;
                }
                Ok(())
            }
            Some(".file" | ".loc") => {
                self.skip_line();
                Ok(())
            }
            Some(".pragma") => self.skip_past(';'),
            Some(".section") => {
                self.skip_past('{')?;
                self.skip_past('}')
            }
            Some(_) => self.declaration(module),
            None => self.error("a directive"),
        }
    }

    fn skip_line(&mut self) {
        let line = self.line();
        while self.at < self.tokens.len() && self.line() == line {
            self.at += 1;
        }
    }

    fn skip_past(&mut self, mark: char) -> Result<()> {
        while self.at < self.tokens.len() {
            if self.take(mark) {
                return Ok(());
            }
            self.at += 1;
        }
        self.error(&format!("`{mark}`"))
    }

    fn declaration(&mut self, module: &mut Module) -> Result<()> {
        let mut head = Head {
            lanes: 1,
            ..Head::default()
        };
        loop {
            let word = self.word()?;
            match word.as_str() {
                ".visible" | ".weak" | ".common" => {}
                ".extern" => head.is_extern = true,
                ".entry" | ".func" => {
                    let function = self.function(word == ".entry")?;
                    module.functions.push(function);
                    return Ok(());
                }
                _ => {
                    if !self.head_word(&word, &mut head)? {
                        self.at -= 1;
                        let variables = self.variables(&head, &|n| n.to_owned())?;
                        module.variables.extend(variables);
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Reads a word of a variable's head; `false` when it is no such word.
    fn head_word(&mut self, word: &str, head: &mut Head) -> Result<bool> {
        match word {
            ".global" => head.space = Some(Space::Global),
            ".const" => head.space = Some(Space::Const),
            ".shared" => head.space = Some(Space::Shared),
            ".local" => head.space = Some(Space::Local),
            ".param" => head.space = Some(Space::Param),
            ".align" => head.align = Some(self.integer()? as usize),
            // A pointer's attributes: `.ptr .global .align 4`.
            ".ptr" => {
                while let Some(".global" | ".const" | ".shared" | ".local") = self.peek_word() {
                    self.at += 1;
                }
                if self.peek_word() == Some(".align") {
                    self.at += 2;
                }
            }
            ".v2" => head.lanes = 2,
            ".v4" => head.lanes = 4,
            _ => {
                let ty = word.strip_prefix('.').and_then(Type::parse);
                if ty.is_none() && word.starts_with('.') {
                    self.at -= 1;
                    return self.error("a space, type or alignment");
                }
                head.ty = ty.or(head.ty);
                return Ok(ty.is_some());
            }
        }
        Ok(true)
    }

    /// The names of a declaration with sizes and values, up to the semicolon.
    fn variables(
        &mut self,
        head: &Head,
        name_of: &dyn Fn(&str) -> String,
    ) -> Result<Vec<Variable>> {
        let mut out = Vec::new();
        loop {
            let variable = self.variable(head, name_of)?;
            out.push(variable);
            if !self.take(',') {
                break;
            }
        }
        self.expect(';')?;
        Ok(out)
    }

    fn variable(&mut self, head: &Head, name_of: &dyn Fn(&str) -> String) -> Result<Variable> {
        let line = self.line();
        let name = self.word()?;
        let (Some(space), Some(ty)) = (head.space, head.ty) else {
            return Err(LoadError::new(
                line,
                format!("`{name}`: expected a space and a type"),
            ));
        };
        let mut count = head.lanes;
        let mut is_sized = true;
        while self.take('[') {
            if self.is_mark(']') {
                is_sized = false;
            } else {
                count *= self.integer()? as usize;
            }
            self.expect(']')?;
        }
        let mut init = Vec::new();
        if self.take('=') {
            self.initial(ty, &mut init)?;
        }
        if !is_sized {
            count = init.len() / ty.bytes();
        }
        let natural = ty.bytes() * head.lanes;
        Ok(Variable {
            name: name_of(&name),
            space,
            ty,
            align: head.align.unwrap_or(natural).max(1),
            bytes: count * ty.bytes(),
            init,
            is_extern: head.is_extern,
        })
    }

    fn initial(&mut self, ty: Type, out: &mut Vec<u8>) -> Result<()> {
        if self.take('{') {
            while !self.take('}') {
                self.initial(ty, out)?;
                self.take(',');
            }
            return Ok(());
        }
        let value = match self.operand()? {
            Operand::Integer(value) | Operand::Double(value) => value,
            Operand::Single(value) => value.into(),
            _ => return self.error("a number (addresses as initial values are not supported)"),
        };
        out.extend_from_slice(&value.to_le_bytes()[..ty.bytes().min(8)]);
        Ok(())
    }

    fn function(&mut self, is_entry: bool) -> Result<Function> {
        self.scopes = vec![HashMap::new()];
        self.used.clear();
        let line = self.line();
        let returns = if self.is_mark('(') {
            self.parameters()?
        } else {
            Vec::new()
        };
        let name = self.word()?;
        let params = if self.is_mark('(') {
            self.parameters()?
        } else {
            Vec::new()
        };
        let mut function = Function {
            name,
            is_entry,
            has_body: false,
            params,
            returns,
            registers: Vec::new(),
            variables: Vec::new(),
            body: Vec::new(),
            max_threads: 0,
            line,
        };
        loop {
            match self.peek() {
                Some(Token::Mark('{')) => break,
                Some(Token::Mark(';')) => {
                    self.at += 1;
                    return Ok(function);
                }
                Some(Token::Word(word)) => {
                    let word = word.clone();
                    self.at += 1;
                    self.bound(&word, &mut function)?;
                }
                _ => return self.error("`{` or `;`"),
            }
        }
        function.has_body = true;
        self.at += 1;
        self.scope(&mut function)?;
        Ok(function)
    }

    /// A directive between a function's head and its body.
    fn bound(&mut self, word: &str, function: &mut Function) -> Result<()> {
        match word {
            ".maxntid" | ".reqntid" => {
                let mut threads = self.integer()?;
                while self.take(',') {
                    threads *= self.integer()?;
                }
                function.max_threads = threads as u32;
            }
            ".minnctapersm" | ".maxnreg" => self.at += 1,
            ".noreturn" => {}
            ".pragma" => self.skip_past(';')?,
            _ => {
                self.at -= 1;
                return self.error("a directive of a function");
            }
        }
        Ok(())
    }

    fn parameters(&mut self) -> Result<Vec<Variable>> {
        self.expect('(')?;
        let mut out = Vec::new();
        while !self.take(')') {
            let mut head = Head {
                lanes: 1,
                ..Head::default()
            };
            loop {
                let word = self.word()?;
                if word == ".reg" {
                    head.space = Some(Space::Param);
                } else if !self.head_word(&word, &mut head)? {
                    self.at -= 1;
                    break;
                }
            }
            let name = match self.peek() {
                Some(Token::Word(word)) => self.declare(&word.clone()),
                _ => return self.error("a parameter's name"),
            };
            out.push(self.variable(&head, &|_| name.clone())?);
            self.take(',');
        }
        Ok(out)
    }

    /// Statements up to the closing brace.
    fn scope(&mut self, function: &mut Function) -> Result<()> {
        // Labels may be used before they stand: declare those of this scope first.
        self.scopes.push(HashMap::new());
        self.declare_labels();
        while !self.take('}') {
            self.statement(function)?;
        }
        self.scopes.pop();
        Ok(())
    }

    fn declare_labels(&mut self) {
        let (mut depth, mut at) = (0, self.at);
        while let Some(located) = self.tokens.get(at) {
            match &located.token {
                Token::Mark('{') => depth += 1,
                Token::Mark('}') if depth == 0 => break,
                Token::Mark('}') => depth -= 1,
                Token::Word(name) if depth == 0 && !name.starts_with(['.', '%']) => {
                    let next = self.tokens.get(at + 1).map(|t| &t.token);
                    if next == Some(&Token::Mark(':')) {
                        let name = name.clone();
                        self.declare(&name);
                    }
                }
                _ => {}
            }
            at += 1;
        }
    }

    fn statement(&mut self, function: &mut Function) -> Result<()> {
        if self.take('{') {
            return self.scope(function);
        }
        if self.take(';') {
            return Ok(());
        }
        match self.peek_word() {
            Some(".reg") => self.registers(function),
            Some(".loc") => {
                self.skip_line();
                Ok(())
            }
            Some(".pragma") => self.skip_past(';'),
            // The targets of an indexed branch belong to the label before them.
            Some(".branchtargets") => {
                let line = self.line();
                self.at += 1;
                let operands = self.list(';')?;
                let opcode = ".branchtargets".to_owned();
                let targets = Instruction {
                    guard: None,
                    opcode,
                    operands,
                    line,
                };
                function.body.push(Statement::Instruction(targets));
                Ok(())
            }
            Some(word) if word.starts_with('.') => {
                let mut head = Head {
                    lanes: 1,
                    ..Head::default()
                };
                loop {
                    let word = self.word()?;
                    if word == ".extern" {
                        head.is_extern = true;
                    } else if !self.head_word(&word, &mut head)? {
                        self.at -= 1;
                        break;
                    }
                }
                loop {
                    let name = match self.peek_word() {
                        Some(word) => word.to_owned(),
                        None => return self.error("a variable's name"),
                    };
                    let unique = self.declare(&name);
                    let variable = self.variable(&head, &|_| unique.clone())?;
                    function.variables.push(variable);
                    if !self.take(',') {
                        break;
                    }
                }
                self.expect(';')
            }
            Some(_)
                if self.tokens.get(self.at + 1).map(|t| &t.token) == Some(&Token::Mark(':')) =>
            {
                let name = self.word()?;
                self.at += 1;
                let name = self.resolve(name);
                function.body.push(Statement::Label(name));
                Ok(())
            }
            _ => {
                let instruction = self.instruction()?;
                function.body.push(Statement::Instruction(instruction));
                Ok(())
            }
        }
    }

    fn registers(&mut self, function: &mut Function) -> Result<()> {
        self.at += 1;
        let word = self.word()?;
        let Some(ty) = word.strip_prefix('.').and_then(Type::parse) else {
            self.at -= 1;
            return self.error("a type of registers");
        };
        loop {
            let name = self.word()?;
            if self.take('<') {
                let count = self.integer()?;
                self.expect('>')?;
                for i in 0..count {
                    let unique = self.declare(&format!("{name}{i}"));
                    function.registers.push((unique, ty));
                }
            } else {
                let unique = self.declare(&name);
                function.registers.push((unique, ty));
            }
            if !self.take(',') {
                break;
            }
        }
        self.expect(';')
    }

    fn instruction(&mut self) -> Result<Instruction> {
        let line = self.line();
        let mut guard = None;
        if self.take('@') {
            let is_negated = self.take('!');
            let name = self.word()?;
            guard = Some((self.resolve(name), is_negated));
        }
        let opcode = self.word()?;
        let mut operands = Vec::new();
        while !self.take(';') {
            operands.push(self.operand()?);
            if !self.take(',') && !self.is_mark(';') {
                return self.error("`,` or `;`");
            }
        }
        Ok(Instruction {
            guard,
            opcode,
            operands,
            line,
        })
    }

    fn list(&mut self, end: char) -> Result<Vec<Operand>> {
        let mut out = Vec::new();
        while !self.take(end) {
            out.push(self.operand()?);
            if !self.take(',') && !self.is_mark(end) {
                return self.error(&format!("`,` or `{end}`"));
            }
        }
        Ok(out)
    }

    fn operand(&mut self) -> Result<Operand> {
        let Some(located) = self.tokens.get(self.at) else {
            return self.error("an operand");
        };
        let token = located.token.clone();
        self.at += 1;
        match token {
            Token::Integer(value) => Ok(Operand::Integer(value)),
            Token::Single(bits) => Ok(Operand::Single(bits)),
            Token::Double(bits) => Ok(Operand::Double(bits)),
            Token::Mark('-') => match self.operand()? {
                Operand::Integer(value) => Ok(Operand::Integer(value.wrapping_neg())),
                Operand::Single(bits) => Ok(Operand::Single(bits ^ 1 << 31)),
                Operand::Double(bits) => Ok(Operand::Double(bits ^ 1 << 63)),
                _ => self.error("a number"),
            },
            Token::Mark('!') => {
                let name = self.word()?;
                Ok(Operand::Not(self.resolve(name)))
            }
            Token::Mark('{') => Ok(Operand::Vector(self.list('}')?)),
            Token::Mark('(') => Ok(Operand::Group(self.list(')')?)),
            Token::Mark('[') => self.address(),
            Token::Word(word) if word == "_" => Ok(Operand::Sink),
            Token::Word(word) => {
                let name = self.resolve(word);
                if self.take('|') {
                    let other = self.word()?;
                    return Ok(Operand::Pair(name, self.resolve(other)));
                }
                if self.is_mark('+') {
                    self.at += 1;
                    let offset = self.integer()?;
                    return Ok(Operand::Address(Some(name), offset as i64));
                }
                Ok(Operand::Name(name))
            }
            _ => {
                self.at -= 1;
                self.error("an operand")
            }
        }
    }

    fn address(&mut self) -> Result<Operand> {
        let base = match self.peek() {
            Some(Token::Word(_)) => {
                let name = self.word()?;
                Some(self.resolve(name))
            }
            _ => None,
        };
        let mut offset = 0i64;
        if base.is_none() || self.take('+') || self.is_mark('-') {
            offset = self.integer()? as i64;
        }
        self.expect(']')?;
        Ok(Operand::Address(base, offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "
.version 8.8
.target sm_80
.address_size 64
.extern .shared .align 16 .b8 pool[];
.const .align 4 .f32 table[2] = {0f3F800000, 0f40000000};
.visible .entry k(.param .u64 k_param_0, .param .u32 k_param_1)
.maxntid 128, 2, 1
{
    .reg .pred %p<2>;
    .reg .b32 %r<3>;
    @!%p1 bra $L__1;
    { .reg .b32 t; mov.b32 t, -1; }
    { .reg .b32 t; ld.param.u32 t, [k_param_1+4]; setp.lt.s32 %p0|%p1, t, %r2; }
$L__1:
    ret;
}";

    #[test]
    fn a_module_with_scopes() {
        let module = parse(TEXT).unwrap();
        assert_eq!(module.variables[1].init.len(), 8);
        assert!(module.variables[0].is_extern && module.variables[0].bytes == 0);
        let kernel = &module.functions[0];
        assert_eq!((kernel.params.len(), kernel.max_threads), (2, 256));
        let registers: std::collections::BTreeSet<_> =
            kernel.registers.iter().map(|(name, _)| name).collect();
        assert_eq!(registers.len(), 2 + 3 + 2);
        assert_eq!(kernel.body.len(), 6);
    }

    #[test]
    fn a_missing_mark_names_its_line() {
        let message = parse("\n.visible .entry k(\n)\n{ ret }")
            .unwrap_err()
            .to_string();
        assert_eq!(message, "line 4: expected an operand, got `}`");
    }
}
