//! Whether what steps read and write can be that of one program.

use super::Step;
use super::wires::{Ports, Source, Wires, told};
use crate::error::Error;
use crate::op::Op;
use crate::program::{Def, InputDecl, Node, Program, Repeat};
use crate::shape::{Dim, TensorType};

/// What is checked, and for whom.
struct Checks<'a> {
    ensemble: &'a str,
    inputs: &'a [String],
    steps: &'a [Step<'a>],
    ports: &'a [Ports<'a>],
}

/// Checks the wiring of `steps`: first all that would be wrong however they were run, then what one
/// program cannot express.
///
/// # Errors
/// [`Error::Join`], [`Error::Apart`].
pub(super) fn wiring(
    ensemble: &str,
    inputs: &[String],
    steps: &[Step<'_>],
    outputs: &[String],
) -> Result<Wires, Error> {
    let ports: Vec<Ports<'_>> = steps.iter().map(ports).collect();
    let wires = Wires::of(ensemble, inputs, &ports, outputs)?;
    let checks = Checks {
        ensemble,
        inputs,
        steps,
        ports: &ports,
    };
    let of_all = |check: &dyn Fn(usize, usize) -> Result<(), Error>| {
        let mut all = wires.order.iter().flat_map(|&step| {
            let inputs = 0..wires.sources[step].len();
            inputs.map(move |input| (step, input))
        });
        all.try_for_each(|(step, input)| check(step, input))
    };
    of_all(&|step, input| checks.fits(&wires.sources, step, input))?;
    checks.no_states()?;
    of_all(&|step, input| checks.is_one(wires.sources[step][input], step, input))?;
    Ok(wires)
}

fn ports<'a>(step: &'a Step<'_>) -> Ports<'a> {
    let program = step.program;
    Ports {
        name: &step.name,
        inputs: program.inputs.iter().map(|d| d.name.as_str()).collect(),
        outputs: program.outputs.iter().map(|d| d.name.as_str()).collect(),
        reads: &step.inputs,
        makes: &step.outputs,
    }
}

impl Checks<'_> {
    fn place(&self, step: usize, decl: &InputDecl) -> String {
        let own = &self.steps[step];
        let tensor = &own.inputs[&decl.name];
        format!("step {}: input {}: tensor {tensor}", own.name, decl.name)
    }

    fn told(&self, source: Source) -> String {
        told(self.inputs, self.ports, source)
    }

    fn apart<T>(
        &self,
        place: String,
        expected: impl Into<String>,
        got: String,
    ) -> Result<T, Error> {
        Err(Error::Apart {
            ensemble: self.ensemble.to_owned(),
            place,
            expected: expected.into(),
            got,
        })
    }

    /// Whether no step hands state on from request to request.
    fn no_states(&self) -> Result<(), Error> {
        for step in self.steps {
            let p = step.program;
            if let Some(carry) = p.carries.first() {
                let (output, input) = (p.output(carry.output), p.input(carry.input));
                let got = format!("{} handed on to {}", output.name, input.name);
                return self.apart(
                    format!("step {}", step.name),
                    "no state between requests",
                    got,
                );
            }
        }
        Ok(())
    }

    /// Whether an input is of the type of what it is wired to.
    fn fits(&self, sources: &[Vec<Source>], step: usize, input: usize) -> Result<(), Error> {
        let decl = &self.steps[step].program.inputs[input];
        let source = sources[step][input];
        let got = if let Source::Output { step: s, output } = source {
            let made = &self.steps[s].program.outputs[output];
            if alike(&made.ty, &decl.ty) {
                return Ok(());
            }
            format!("{} {}", made.ty, self.told(source))
        } else {
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
            format!(
                "{} for input {} of step {}",
                other.ty, other.name, self.steps[s].name
            )
        };
        Err(Error::Join {
            ensemble: self.ensemble.to_owned(),
            place: self.place(step, decl),
            expected: decl.ty.to_string(),
            got,
        })
    }

    /// Whether one program, whose requests have one length, can hand an input what it reads.
    fn is_one(&self, source: Source, step: usize, input: usize) -> Result<(), Error> {
        let (own, decl) = (&self.steps[step], &self.steps[step].program.inputs[input]);
        let Source::Output { step: s, output } = source else {
            return Ok(());
        };
        let from = self.steps[s].program;
        let (place, what) = (self.place(step, decl), self.told(source));
        if decl.ty.lead().is_some() {
            if let Err(rows) = per_position(from, output) {
                let expected = "a row for each position of the request";
                return self.apart(place, expected, format!("{what}, which has {rows}"));
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
                return self.apart(place, "a step that reads every position", got);
            }
        }
        let Some(wanted) = decl.id_bound else {
            return Ok(());
        };
        match ids_below(from, output) {
            Some(bound) if bound <= wanted => Ok(()),
            Some(bound) => {
                let got = format!("{what}, whose ids are below {bound}");
                self.apart(place, format!("ids below {wanted}"), got)
            }
            None => {
                let got = format!("{what}, whose numbers nothing bounds");
                self.apart(place, format!("ids below {wanted}"), got)
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
