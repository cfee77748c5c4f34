//! Which tensor comes from where, by names alone, whatever it is that the steps run.

use std::collections::BTreeMap;

use crate::error::Error;

/// A step as its wiring sees it.
#[derive(Clone, Debug)]
pub struct Ports<'a> {
    /// Name of the step, its own.
    pub name: &'a str,
    /// Names of its inputs, each of which needs a tensor.
    pub inputs: Vec<&'a str>,
    /// Names of its outputs.
    pub outputs: Vec<&'a str>,
    /// The tensor that each input reads, by input.
    pub reads: &'a BTreeMap<String, String>,
    /// The tensor that each output makes, by output.
    pub makes: &'a BTreeMap<String, String>,
}

/// Where a tensor comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
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

/// Wiring in which every name is sound.
#[derive(Debug)]
pub struct Wires {
    /// Steps, each behind those that it reads from.
    pub order: Vec<usize>,
    /// Where inputs come from, by step and input.
    pub sources: Vec<Vec<Source>>,
    /// Steps and outputs that the ensemble's outputs are.
    pub outputs: Vec<(usize, usize)>,
}

impl Wires {
    /// Checks the wiring of `steps` between these inputs and outputs of an ensemble.
    ///
    /// # Errors
    /// [`Error::Join`] for what is not sound: it names step and tensor.
    pub fn of(
        ensemble: &str,
        inputs: &[String],
        steps: &[Ports<'_>],
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
        Ok(Self {
            order,
            sources,
            outputs,
        })
    }
}

/// What is checked, and for whom.
struct Checks<'a> {
    ensemble: &'a str,
    inputs: &'a [String],
    steps: &'a [Ports<'a>],
}

/// A source in words.
pub(super) fn told(inputs: &[String], steps: &[Ports<'_>], source: Source) -> String {
    match source {
        Source::Input(i) => format!("the ensemble's input {}", inputs[i]),
        Source::Output { step, output } => {
            let step = &steps[step];
            format!("output {} of step {}", step.outputs[output], step.name)
        }
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

    fn told(&self, source: Source) -> String {
        told(self.inputs, self.steps, source)
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
                return self.fail(format!("step {i}"), "a name of its own", step.name);
            }
            self.names(&place, "input", step.reads, &step.inputs)?;
            self.names(&place, "output", step.makes, &step.outputs)?;
            if let Some(missing) = step.inputs.iter().find(|i| !step.reads.contains_key(**i)) {
                let place = format!("{place}: input {missing}");
                return self.fail(place, "a tensor for it", "none");
            }
            if step.makes.is_empty() {
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
        known: &[&str],
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
            for (name, tensor) in step.makes {
                let output = step.outputs.iter().position(|own| own == name);
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

    fn sources(&self, made: &BTreeMap<&str, Source>) -> Result<Vec<Vec<Source>>, Error> {
        let of_step = |step: &Ports<'_>| {
            let of_input = |name: &&str| {
                let tensor = step.reads[*name].as_str();
                made.get(tensor).copied().map_or_else(
                    || {
                        let place = format!("step {}: input {name}", step.name);
                        let expected = "an input of the ensemble or a tensor that a step makes";
                        self.fail(place, expected, format!("tensor {tensor}"))
                    },
                    Ok,
                )
            };
            step.inputs.iter().map(of_input).collect()
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
                let names: Vec<_> = left.map(|s| self.steps[s].name).collect();
                let expected = "an order in which each reads from those before it";
                return self.fail(format!("steps {}", names.join(", ")), expected, "a cycle");
            };
            order.push(next);
        }
        Ok(order)
    }
}
