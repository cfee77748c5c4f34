//! Which tensor comes from where, and whether it can.

use std::collections::BTreeMap;

use super::Step;
use crate::error::Error;
use crate::op::Op;
use crate::program::{Def, InputDecl, Node, Program, Repeat};
use crate::shape::{Dim, TensorType};

/// Where a tensor comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Source {
    /// An input of the ensemble.
    Input(usize),
    /// An output of a step.
    Output {
        /// Which step.
        step: usize,
        /// Which of its outputs.
        output: usize,
    },
}

/// Wiring that is sound.
#[derive(Debug)]
pub(super) struct Wiring {
    /// Steps, each behind those that it reads from.
    pub order: Vec<usize>,
    /// Where inputs come from, by step and input.
    pub sources: Vec<Vec<Source>>,
    /// Steps and outputs that the ensemble's outputs are.
    pub outputs: Vec<(usize, usize)>,
}

/// What is checked, and for whom.
struct Checks<'a> {
    ensemble: &'a str,
    inputs: &'a [String],
    steps: &'a [Step<'a>],
}

impl Wiring {
    /// Checks the wiring of `steps`.
    pub fn of(
        ensemble: &str,
        inputs: &[String],
        steps: &[Step<'_>],
        outputs: &[String],
    ) -> Result<Self, Error> {
        let checks = Checks {
            ensemble,
            inputs,
            steps,
        };
        checks.steps_alone()?;
        let made = checks.made()?;
        let sources = checks.sources(&made)?;
        let outputs = checks.outputs(outputs, &made)?;
        checks.all_used(&made, &sources, &outputs)?;
        let order = checks.order(&sources)?;
        for &step in &order {
            for input in 0..sources[step].len() {
                checks.fits(&sources, step, input)?;
            }
        }
        Ok(Self {
            order,
            sources,
            outputs,
        })
    }
}

impl<'a> Checks<'a> {
    fn fail<T>(
        &self,
        place: impl Into<String>,
        expected: impl Into<String>,
        got: impl Into<String>,
    ) -> Result<T, Error> {
        Err(Error::Join {
            ensemble: self.ensemble.to_owned(),
            place: place.into(),
            expected: expected.into(),
            got: got.into(),
        })
    }

    /// What is asked of each step by itself.
    fn steps_alone(&self) -> Result<(), Error> {
        if self.steps.is_empty() {
            return self.fail("steps", "one or more", "none");
        }
        for (i, step) in self.steps.iter().enumerate() {
            let place = format!("step {}", step.name);
            let before = &self.steps[..i];
            if step.name.is_empty() || before.iter().any(|s| s.name == step.name) {
                return self.fail(format!("step {i}"), "a name of its own", &step.name);
            }
            let p = step.program;
            if let Some(carry) = p.carries.first() {
                let (output, input) = (p.output(carry.output), p.input(carry.input));
                let got = format!("{} handed on to {}", output.name, input.name);
                return self.fail(place, "no state between requests", got);
            }
            let inputs = p.inputs.iter().map(|d| d.name.as_str());
            self.names(&place, "input", &step.inputs, inputs.collect())?;
            let outputs = p.outputs.iter().map(|d| d.name.as_str());
            self.names(&place, "output", &step.outputs, outputs.collect())?;
            if let Some(missing) = p.inputs.iter().find(|d| !step.inputs.contains_key(&d.name)) {
                let place = format!("{place}: input {}", missing.name);
                return self.fail(place, "a tensor for it", "none");
            }
            if step.outputs.is_empty() {
                return self.fail(place, "a tensor for one of its outputs", "none");
            }
        }
        Ok(())
    }

    fn names(
        &self,
        place: &str,
        kind: &str,
        map: &BTreeMap<String, String>,
        known: Vec<&str>,
    ) -> Result<(), Error> {
        match map.iter().find(|(name, _)| !known.contains(&name.as_str())) {
            None => Ok(()),
            Some((name, tensor)) => {
                let place = format!("{place}: tensor {tensor}");
                let expected = format!("one of the {kind}s {}", known.join(", "));
                self.fail(place, expected, name)
            }
        }
    }

    /// Where each tensor comes from.
    fn made(&self) -> Result<BTreeMap<&'a str, Source>, Error> {
        let mut made = BTreeMap::new();
        for (i, name) in self.inputs.iter().enumerate() {
            if made.insert(name.as_str(), Source::Input(i)).is_some() {
                return self.fail(format!("input {name}"), "it once", "it twice");
            }
        }
        for (s, step) in self.steps.iter().enumerate() {
            for (name, tensor) in &step.outputs {
                let decls = step.program.outputs.iter();
                let output = decls.clone().position(|d| d.name == *name);
                let output = output.expect("names were checked");
                let source = Source::Output { step: s, output };
                if let Some(before) = made.insert(tensor.as_str(), source) {
                    let place = format!("tensor {tensor}");
                    let got = format!("{} and {}", self.told(before), self.told(source));
                    return self.fail(place, "one place that it comes from", got);
                }
            }
        }
        Ok(made)
    }

    /// A source in words.
    fn told(&self, source: Source) -> String {
        match source {
            Source::Input(i) => format!("the ensemble's input {}", self.inputs[i]),
            Source::Output { step, output } => {
                let step = &self.steps[step];
                let name = &step.program.outputs[output].name;
                format!("output {name} of step {}", step.name)
            }
        }
    }

    fn sources(&self, made: &BTreeMap<&str, Source>) -> Result<Vec<Vec<Source>>, Error> {
        let of_step = |step: &Step<'_>| {
            let of_input = |decl: &InputDecl| {
                let tensor = step.inputs[&decl.name].as_str();
                made.get(tensor).copied().map_or_else(
                    || {
                        let place = format!("step {}: input {}", step.name, decl.name);
                        let expected = "an input of the ensemble or a tensor that a step makes";
                        self.fail(place, expected, format!("tensor {tensor}"))
                    },
                    Ok,
                )
            };
            step.program.inputs.iter().map(of_input).collect()
        };
        self.steps.iter().map(of_step).collect()
    }

    fn outputs(
        &self,
        names: &[String],
        made: &BTreeMap<&str, Source>,
    ) -> Result<Vec<(usize, usize)>, Error> {
        if names.is_empty() {
            return self.fail("outputs", "one or more", "none");
        }
        let of = |(i, name): (usize, &String)| {
            let place = format!("output {name}");
            if names[..i].contains(name) {
                return self.fail(place, "it once", "it twice");
            }
            match made.get(name.as_str()) {
                Some(Source::Output { step, output }) => Ok((*step, *output)),
                Some(input @ Source::Input(_)) => {
                    self.fail(place, "a tensor that a step makes", self.told(*input))
                }
                None => self.fail(place, "a tensor that a step makes", "nothing makes it"),
            }
        };
        names.iter().enumerate().map(of).collect()
    }

    /// Every tensor is read or an output.
    fn all_used(
        &self,
        made: &BTreeMap<&str, Source>,
        sources: &[Vec<Source>],
        outputs: &[(usize, usize)],
    ) -> Result<(), Error> {
        let used = |source: &Source| {
            let is_output = |s: &Source| {
                let at = |&(step, output): &(usize, usize)| *s == Source::Output { step, output };
                outputs.iter().any(at)
            };
            is_output(source) || sources.iter().flatten().any(|s| s == source)
        };
        match made.iter().find(|(_, source)| !used(source)) {
            None => Ok(()),
            Some((tensor, source)) => {
                let place = format!("tensor {tensor}");
                let expected = "a step that reads it, or it among the outputs";
                self.fail(place, expected, format!("{}, unused", self.told(*source)))
            }
        }
    }

    /// The steps as they are stated, but each behind those that it reads from.
    fn order(&self, sources: &[Vec<Source>]) -> Result<Vec<usize>, Error> {
        let mut order: Vec<usize> = Vec::new();
        while order.len() < self.steps.len() {
            let ready = |s: &usize| {
                let there = |source: &Source| match source {
                    Source::Input(_) => true,
                    Source::Output { step, .. } => order.contains(step),
                };
                !order.contains(s) && sources[*s].iter().all(there)
            };
            let next = (0..self.steps.len()).find(ready);
            let Some(next) = next else {
                let left = (0..self.steps.len()).filter(|s| !order.contains(s));
                let names: Vec<_> = left.map(|s| self.steps[s].name.as_str()).collect();
                let expected = "an order in which each reads from those before it";
                return self.fail(format!("steps {}", names.join(", ")), expected, "a cycle");
            };
            order.push(next);
        }
        Ok(order)
    }

    /// Whether an input can read what it is wired to.
    fn fits(&self, sources: &[Vec<Source>], step: usize, input: usize) -> Result<(), Error> {
        let (own, decl) = (&self.steps[step], &self.steps[step].program.inputs[input]);
        let tensor = &own.inputs[&decl.name];
        let place = format!("step {}: input {}: tensor {tensor}", own.name, decl.name);
        let source = sources[step][input];
        let Source::Output { step: s, output } = source else {
            // All that read an input of the ensemble see one declaration.
            let first = sources.iter().enumerate().find_map(|(s, of)| {
                let at = of.iter().position(|x| *x == source)?;
                Some((s, at))
            });
            let (s, at) = first.expect("this one, at the latest");
            let other = &self.steps[s].program.inputs[at];
            if alike(&other.ty, &decl.ty) {
                return Ok(());
            }
            let got = format!(
                "{} for input {} of step {}",
                other.ty, other.name, self.steps[s].name
            );
            return self.fail(place, decl.ty.to_string(), got);
        };
        let from = self.steps[s].program;
        let made = &from.outputs[output];
        let what = self.told(source);
        if !alike(&made.ty, &decl.ty) {
            return self.fail(place, decl.ty.to_string(), format!("{} {what}", made.ty));
        }
        if decl.ty.lead().is_some() {
            if let Err(rows) = per_position(from, output) {
                let expected = "a row for each position of the request";
                return self.fail(place, expected, format!("{what}, which has {rows}"));
            }
            let strided = own.program.blocks.iter().find_map(|b| match b.repeat {
                Repeat::PerInputStep { stride } if stride != 1 => {
                    let reads =
                        |n: &Node| matches!(n.op, Op::Input { input: i, .. } if i.index() == input);
                    let mut nodes = b.nodes.iter().map(|&n| own.program.node(n));
                    nodes.any(reads).then_some(stride)
                }
                _ => None,
            });
            if let Some(stride) = strided {
                let got = format!("one that reads every position at a multiple of {stride}");
                return self.fail(place, "a step that reads every position", got);
            }
        }
        let Some(wanted) = decl.id_bound else {
            return Ok(());
        };
        match ids_below(from, output) {
            Some(bound) if bound <= wanted => Ok(()),
            Some(bound) => {
                let got = format!("{what}, whose ids are below {bound}");
                self.fail(place, format!("ids below {wanted}"), got)
            }
            None => {
                let got = format!("{what}, whose numbers nothing bounds");
                self.fail(place, format!("ids below {wanted}"), got)
            }
        }
    }
}

/// Whether types are the same, but for how a single number is written.
fn alike(a: &TensorType, b: &TensorType) -> bool {
    let single = |t: &TensorType| t.fixed_dims().iter().all(|&n| n == 1);
    let (x, y) = (a.lead(), b.lead());
    let same = a.fixed_dims() == b.fixed_dims() || single(a) && single(b);
    a.dtype == b.dtype && x == y && same
}

/// The nodes that emit an output, each with the rule of its block.
pub(super) fn emits(program: &Program, output: usize) -> Vec<(usize, &Node)> {
    let all = program.blocks.iter().enumerate();
    let all = all.flat_map(|(b, block)| block.nodes.iter().map(move |&n| (b, program.node(n))));
    let own = |n: &Node| matches!(n.op, Op::Emit { output: o } if o.index() == output);
    all.filter(|(_, n)| own(n)).collect()
}

/// Whether a sequence output has one row for each position of the input, in order; else what rows
/// it has.
fn per_position(program: &Program, output: usize) -> Result<(), String> {
    let [(block, node)] = emits(program, output)[..] else {
        return Err("rows from several places".into());
    };
    let lead = program.value(node.inputs[0]).ty.lead();
    match program.blocks[block].repeat {
        Repeat::Once if lead == Some(Dim::Rows) => Ok(()),
        Repeat::Once => Err("a single row".into()),
        Repeat::PerInputStep { stride: 1 } => Ok(()),
        Repeat::PerInputStep { stride } => Err(format!("a row for every {stride} positions")),
        Repeat::UntilStop { .. } => Err("a row for each pass of a loop until it stops".into()),
    }
}

/// A number below which all elements of a whole output lie.
fn ids_below(program: &Program, output: usize) -> Option<usize> {
    let emits = emits(program, output);
    let mut bounds = emits.iter().map(|(_, n)| value_below(program, n, 8));
    bounds.try_fold(0, |most, b| Some(most.max(b?)))
}

/// The same of a node's first operand; `depth` bounds how far is looked.
fn value_below(program: &Program, node: &Node, depth: usize) -> Option<usize> {
    let depth = depth.checked_sub(1)?;
    let Def::Node { node, .. } = program.value(*node.inputs.first()?).def else {
        return None;
    };
    let node = program.node(node);
    match node.op {
        Op::ArgMax | Op::Sample => Some(program.value(node.inputs[0]).ty.row_elems()),
        Op::TopK { .. } => program
            .value(node.inputs[0])
            .ty
            .fixed_dims()
            .last()
            .copied(),
        Op::Input { input, .. } => program.input(input).id_bound,
        Op::Reshape { .. } => value_below(program, node, depth),
        _ => None,
    }
}
