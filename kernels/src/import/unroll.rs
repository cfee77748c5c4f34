//! Puts the passes of `Loop` and `Scan` one after another, where their number is known and small.

use std::collections::BTreeMap;

use lazybatch_graph::onnx::{Array, Attr, Data, Error, Graph, Node};

use super::flatten::{Flattener, Looked, Names, identity, resolve};

/// Most passes of a loop that are put one after another.
const MAX_PASSES: i128 = 64;

/// A node of an op whose only result is `to`.
fn made(op: &str, inputs: Vec<String>, to: &str, axis: Option<i64>) -> Node {
    let attrs = axis.map(|axis| ("axis".to_owned(), Attr::Int(axis)));
    Node {
        name: format!("{to}.{op}"),
        op: op.into(),
        inputs,
        attrs: attrs.into_iter().collect::<BTreeMap<_, _>>(),
        ..identity("", to)
    }
}

/// Where a `Scan` cuts its operands and how it puts its results together.
struct Scan<'a> {
    body: &'a Graph,
    /// Values that are handed from pass to pass.
    carried: usize,
    /// Axis and direction of each operand that is cut; true from the end.
    cut: Vec<(i64, bool)>,
    /// Axis and direction of each result that is put together.
    joined: Vec<(i64, bool)>,
}

impl<'a> Scan<'a> {
    /// What `node` says; none where that does not fit together.
    fn of(node: &'a Node) -> Option<Self> {
        let Some(Attr::Graph(body)) = node.attrs.get("body") else {
            return None;
        };
        let Some(Attr::Int(num_cut)) = node.attrs.get("num_scan_inputs") else {
            return None;
        };
        let num_cut = usize::try_from(*num_cut).ok().filter(|&n| n > 0)?;
        let carried = node.inputs.len().checked_sub(num_cut)?;
        let num_joined = body.outputs.len().checked_sub(carried)?;
        let list = |name: &str, num: usize| match node.attrs.get(name) {
            None => Some(vec![0; num]),
            Some(Attr::Ints(v)) if v.len() == num => Some(v.clone()),
            Some(_) => None,
        };
        let pairs = |axes: &str, directions: &str, num: usize| {
            let (axes, back) = (list(axes, num)?, list(directions, num)?);
            Some(
                axes.into_iter()
                    .zip(back.into_iter().map(|b| b != 0))
                    .collect(),
            )
        };
        let fits = body.inputs.len() == node.inputs.len()
            && node.outputs.len() <= body.outputs.len()
            && node.inputs.iter().all(|n| !n.is_empty());
        fits.then_some(Self {
            body,
            carried,
            cut: pairs("scan_input_axes", "scan_input_directions", num_cut)?,
            joined: pairs("scan_output_axes", "scan_output_directions", num_joined)?,
        })
    }
}

/// Whether a loop of `body` goes on as long as it may: its condition is the one that a pass is given.
fn never_stops(body: &Graph) -> bool {
    let Some(mut name) = body.outputs.first().map(|o| &o.name) else {
        return false;
    };
    for node in body.nodes.iter().rev() {
        match &node.inputs[..] {
            [from] if node.op == "Identity" && node.outputs.first() == Some(name) => name = from,
            _ => {}
        }
    }
    body.inputs.get(1).is_some_and(|i| i.name == *name)
}

impl Flattener<'_> {
    /// Puts the passes of a `Loop` one after another; false if their number is not known.
    pub(super) fn unroll_loop(&mut self, node: &Node, outer: &mut Names) -> Result<bool, Error> {
        let Some(Attr::Graph(body)) = node.attrs.get("body") else {
            return Ok(false);
        };
        let operand = |i: usize| node.inputs.get(i).filter(|n| !n.is_empty());
        let most = operand(0).map_or(Some(i128::MAX), |n| self.number(n));
        let starts = operand(1).map_or(Some(1), |n| self.number(n));
        let most = match (most, starts) {
            (_, Some(0)) => 0,
            (Some(most), Some(_)) => most.max(0),
            _ => return Ok(false),
        };
        if most > MAX_PASSES && never_stops(body) {
            return Ok(false);
        }
        let mut carried: Vec<String> = node.inputs.iter().skip(2).cloned().collect();
        let num = carried.len();
        if body.inputs.len() != num + 2 || body.outputs.len() < num + 1 {
            return Ok(false);
        }
        let rows = node.outputs.iter().skip(num).find(|o| !o.is_empty());
        if let Some(name) = rows.filter(|_| most == 0) {
            let place = format!("node {} (Loop)", node.name);
            let expected = format!("at least one, for the rows of its result {name}");
            return Err(Error::invalid(place, "passes", expected, "none"));
        }
        if !self.decide(node, most) {
            return Ok(false);
        }
        let before = self.mark();
        for (i, what) in [(0, Looked::Number), (1, Looked::Truth)] {
            if let Some(name) = operand(i).filter(|_| i == 1 || starts != Some(0)) {
                self.ask(node, name, what);
            }
        }
        let mut joined = vec![Vec::new(); body.outputs.len() - num - 1];
        let (mut pass, mut goes_on) = (0, most > 0);
        while goes_on {
            if i128::from(pass) == MAX_PASSES {
                self.back_to(before);
                return Ok(false);
            }
            let at = format!("{}.{}.pass", node.name, self.inlined);
            let go = format!("{at}.go");
            self.know(&at, Array::scalar(Data::I64(vec![pass])))?;
            self.know(&go, Array::scalar(Data::Bool(vec![true])))?;
            let given = [at, go].into_iter().chain(carried).collect();
            let mut results = self.pass(node, body, outer, given)?.into_iter();
            let condition = results.next();
            carried = results.by_ref().take(num).collect();
            for (list, value) in joined.iter_mut().zip(results) {
                list.push(value);
            }
            pass += 1;
            // What the last pass says of another does not count.
            goes_on = i128::from(pass) < most;
            if let Some(name) = condition.filter(|_| goes_on) {
                let Some(go) = self.number(&name) else {
                    self.back_to(before);
                    return Ok(false);
                };
                self.ask(node, &name, Looked::Truth);
                goes_on = go != 0;
            }
        }
        self.decide(node, pass.into());
        self.hand_out(node, outer, &carried);
        for (output, parts) in node.outputs.iter().skip(num).zip(joined) {
            self.stack(output, &parts, 0)?;
        }
        Ok(true)
    }

    /// Puts the passes of a `Scan` one after another; false if their number is not known.
    pub(super) fn unroll_scan(&mut self, node: &Node, outer: &mut Names) -> Result<bool, Error> {
        let Some(scan) = Scan::of(node).filter(|_| self.opset >= 9) else {
            return Ok(false);
        };
        let (carried, sequences) = node.inputs.split_at(scan.carried);
        let axes: Option<Vec<(usize, usize)>> = sequences
            .iter()
            .zip(&scan.cut)
            .map(|(name, (axis, _))| {
                let dims = self.known.get(name)?.dims();
                let back = if *axis < 0 { dims.len() } else { 0 };
                let axis = usize::try_from(axis.checked_add_unsigned(back as u64)?).ok()?;
                Some((axis, *dims.get(axis)?))
            })
            .collect();
        let Some(axes) = axes.filter(|axes| !axes.is_empty()) else {
            return Ok(false);
        };
        let num = axes[0].1;
        let equal = axes.iter().all(|(_, n)| *n == num);
        if !equal || num == 0 || num as i128 > MAX_PASSES || !self.decide(node, num as i128) {
            return Ok(false);
        }
        for (name, (axis, _)) in sequences.iter().zip(&axes) {
            self.ask(node, name, Looked::Size(*axis));
        }
        let mut carried = carried.to_vec();
        let mut joined = vec![Vec::new(); scan.joined.len()];
        for pass in 0..num {
            let mut given = carried;
            for (k, (name, (axis, back))) in sequences.iter().zip(&scan.cut).enumerate() {
                let at = if *back { num - 1 - pass } else { pass };
                let part = format!("{}.{}.part{k}", node.name, self.inlined);
                let place = format!("{part}.place");
                self.know(&place, Array::scalar(Data::I64(vec![at as i64])))?;
                self.plain(made(
                    "Gather",
                    vec![name.clone(), place],
                    &part,
                    Some(*axis),
                ))?;
                given.push(part);
            }
            let mut results = self.pass(node, scan.body, outer, given)?.into_iter();
            carried = results.by_ref().take(scan.carried).collect();
            for (list, value) in joined.iter_mut().zip(results) {
                list.push(value);
            }
        }
        self.hand_out(node, outer, &carried);
        let outputs = node.outputs.iter().skip(scan.carried);
        for ((output, mut parts), (axis, back)) in outputs.zip(joined).zip(scan.joined) {
            if back {
                parts.reverse();
            }
            self.stack(output, &parts, axis)?;
        }
        Ok(true)
    }

    /// One pass of `body` over the values `given`; returns the names of its results.
    fn pass(
        &mut self,
        node: &Node,
        body: &Graph,
        outer: &Names,
        given: Vec<String>,
    ) -> Result<Vec<String>, Error> {
        let mut names = outer.clone();
        for (input, value) in body.inputs.iter().zip(given) {
            names.insert(input.name.clone(), value);
        }
        let names = self.inline(node, body, names)?;
        let results = body.outputs.iter().map(|o| resolve(&names, &o.name));
        Ok(results.map(str::to_owned).collect())
    }

    /// Lets the first results of `node` stand for the values of the last pass.
    fn hand_out(&self, node: &Node, outer: &mut Names, carried: &[String]) {
        for (output, value) in node.outputs.iter().zip(carried) {
            outer.insert(output.clone(), value.clone());
        }
    }

    /// `output` as `parts` along a new axis.
    fn stack(&mut self, output: &str, parts: &[String], axis: i64) -> Result<(), Error> {
        if output.is_empty() {
            return Ok(());
        }
        let axes = format!("{output}.axis");
        self.know(&axes, Array::vector(vec![axis]))?;
        let mut rows = Vec::new();
        for (i, part) in parts.iter().enumerate() {
            let to = format!("{output}.{i}");
            let mut row = made("Unsqueeze", vec![part.clone()], &to, None);
            if self.opset < 13 {
                row.attrs.insert("axes".into(), Attr::Ints(vec![axis]));
            } else {
                row.inputs.push(axes.clone());
            }
            self.plain(row)?;
            rows.push(to);
        }
        self.plain(made("Concat", rows, output, Some(axis)))
    }
}
