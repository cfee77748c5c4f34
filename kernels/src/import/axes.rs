//! Which axes of the inputs count samples and positions.
//!
//! By name first: what the user says, else names that contain `batch` or are `n` or `b`, and names
//! that contain `seq`, `len`, `time`, `frame` or `token` or are `s`, `t` or `l`. Then by place: an
//! axis 0 that is open (or 1, where no input has an open axis 0) counts samples, and so does the
//! open one of three axes, as states of recurrent layers have it; another open axis positions. The
//! comparison behind an import refuses what this guesses wrong.

use std::collections::{BTreeMap, BTreeSet};

use lazybatch_graph::onnx::{Dim, Elem, Error, Graph, Limits, Node, ValueInfo, ValueType};
use lazybatch_graph::{Layout, Part};

use super::options::{AxisSpec, Options};

/// An input of a request.
#[derive(Clone, Debug)]
pub(super) struct Input {
    /// Its name.
    pub name: String,
    /// Element type.
    pub elem: Elem,
    /// Its axes, one part each.
    pub layout: Layout,
    /// Ids lie below this, for inputs that look up rows of a table.
    pub id_bound: Option<usize>,
}

/// Reads the axes of all inputs of `graph`. With `one_is_batch` a first axis of size 1 counts samples
/// where no input has an open one, unless the user says its size.
///
/// # Errors
/// Inputs whose rank or element type cannot be served, and axes that the user named and that are
/// not there.
pub(super) fn read(
    graph: &Graph,
    options: &Options,
    one_is_batch: bool,
) -> Result<Vec<Input>, Error> {
    let mut tensors = Vec::new();
    for info in &graph.inputs {
        tensors.push(tensor(info)?);
    }
    check_specs(&tensors, options)?;
    for sized in &options.sizes {
        for (name, _, dims) in &mut tensors {
            for (axis, dim) in dims.iter_mut().enumerate() {
                let meant = match &sized.axis {
                    AxisSpec::Named(n) => *dim == Dim::Named(n.clone()),
                    AxisSpec::At { input, axis: a } => input == name && *a == axis,
                };
                if meant {
                    *dim = Dim::Fixed(sized.size);
                }
            }
        }
    }
    let batch = names(&tensors, &options.batch, is_batch);
    let sequence = names(&tensors, &options.sequence, is_sequence);
    let named =
        |dim: &Dim, names: &BTreeSet<String>| matches!(dim, Dim::Named(n) if names.contains(n));
    let open = |dim: &Dim| !matches!(dim, Dim::Fixed(_));
    let any_batch = tensors
        .iter()
        .any(|t| t.2.iter().any(|d| named(d, &batch)) || t.2.first().is_some_and(open));
    let by_place = |specs: &[AxisSpec]| specs.is_empty();
    let mut inputs = Vec::new();
    for (name, elem, dims) in &tensors {
        let told = |specs: &[AxisSpec]| {
            specs.iter().find_map(|s| match s {
                AxisSpec::At { input, axis } if input == name => Some(*axis),
                _ => None,
            })
        };
        let find = |names: &BTreeSet<String>| dims.iter().position(|d| named(d, names));
        let mut len = told(&options.sequence).or_else(|| find(&sequence));
        let mut sample = told(&options.batch).or_else(|| find(&batch));
        if sample.is_none() && len != Some(0) && by_place(&options.batch) {
            let first = dims.first();
            let is_sized = options.sizes.iter().any(|s| match &s.axis {
                AxisSpec::At { input, axis } => input == name && *axis == 0,
                AxisSpec::Named(_) => false,
            });
            let may_be = one_is_batch && !any_batch && !is_sized;
            let fixed_one = may_be && first == Some(&Dim::Fixed(1)) && dims.len() > 1;
            sample = (first.is_some_and(open) || fixed_one).then_some(0);
            // The states of recurrent layers: [layers, batch, features].
            if let [Dim::Fixed(_), middle, Dim::Fixed(_)] = &dims[..]
                && any_batch
                && open(middle)
                && len.is_none()
            {
                sample = Some(1);
            }
        }
        if len.is_none() && by_place(&options.sequence) {
            len = dims
                .iter()
                .enumerate()
                .position(|(i, d)| Some(i) != sample && open(d));
        }
        let mut axes = Vec::new();
        for (axis, dim) in dims.iter().enumerate() {
            axes.push(vec![match dim {
                _ if Some(axis) == sample => Part::Batch,
                _ if Some(axis) == len => Part::Len,
                Dim::Fixed(n) => Part::Fixed(*n),
                other => {
                    let what = format!("axis {axis}");
                    let expected = "a number, the batch or the sequence";
                    let got = match other {
                        Dim::Named(n) => {
                            format!(
                                "{n} (name it with --batch-axis or --sequence-axis, or say its size \
                                 with --size {n}=N)"
                            )
                        }
                        _ => format!("an open size (--size {name}:{axis}=N says which)"),
                    };
                    return Err(Error::invalid(format!("input {name}"), what, expected, got));
                }
            }]);
        }
        inputs.push(Input {
            name: name.clone(),
            elem: *elem,
            layout: Layout(axes),
            id_bound: None,
        });
    }
    Ok(inputs)
}

/// Whether an axis of size 1 counts samples, and only by its place.
pub(super) fn takes_one_for_batch(graph: &Graph, options: &Options) -> bool {
    let layouts = |one_is_batch| {
        let inputs = read(graph, options, one_is_batch).ok()?;
        Some(inputs.into_iter().map(|i| i.layout).collect::<Vec<_>>())
    };
    layouts(true) != layouts(false)
}

/// Says so where axes of several names count positions of the one sequence.
pub(super) fn merged(graph: &Graph, inputs: &[Input]) -> Option<String> {
    let mut names = BTreeSet::new();
    for info in &graph.inputs {
        let input = inputs.iter().find(|i| i.name == info.name);
        if let (
            Some(input),
            ValueType::Tensor {
                dims: Some(dims), ..
            },
        ) = (input, &info.ty)
        {
            let axes = input.layout.0.iter().zip(dims);
            names.extend(axes.filter_map(|(axis, dim)| match dim {
                Dim::Named(name) if axis[..] == [Part::Len] => Some(name.as_str()),
                _ => None,
            }));
        }
    }
    let names: Vec<&str> = names.into_iter().collect();
    (names.len() > 1).then(|| {
        format!(
            "the axes {} count as one sequence: a request brings one length for all of them",
            names.join(", ")
        )
    })
}

/// Batch size and length at which inputs must be within the limits: the largest of those at which an
/// import runs.
const LARGEST: (usize, usize) = (3, 9);

/// Refuses inputs without elements, and such as are larger than the limits.
///
/// # Errors
/// The input, its dimensions and the limit.
pub(super) fn check_sizes(inputs: &[Input], limits: &Limits) -> Result<(), Error> {
    let mut held = 0_usize;
    for input in inputs {
        let place = format!("input {}", input.name);
        let (batch, len) = LARGEST;
        let dims = super::trace::dims_at(&input.layout, batch, len);
        if let Some(axis) = dims.iter().position(|&n| n == 0) {
            let what = format!("size of axis {axis}");
            return Err(Error::invalid(place, what, "at least 1", 0));
        }
        held = held.saturating_add(limits.num_elems(&place, &dims)?);
        if held > limits.held {
            let expected = format!("at most {}", limits.held);
            return Err(Error::invalid(
                place,
                "elements of all inputs",
                expected,
                held,
            ));
        }
    }
    Ok(())
}

type Tensor = (String, Elem, Vec<Dim>);

fn tensor(info: &ValueInfo) -> Result<Tensor, Error> {
    let place = format!("input {}", info.name);
    match &info.ty {
        ValueType::Tensor {
            elem,
            dims: Some(dims),
        } if !matches!(elem, Elem::U64 | Elem::U32) => Ok((info.name.clone(), *elem, dims.clone())),
        ValueType::Tensor {
            elem,
            dims: Some(_),
        } => {
            let expected = "floats, booleans or integers that i32 holds";
            Err(Error::invalid(place, "element type", expected, elem))
        }
        ValueType::Tensor { dims: None, .. } | ValueType::Unknown => Err(Error::invalid(
            place,
            "type",
            "a tensor of stated rank",
            "an open one",
        )),
        ValueType::Other(what) => Err(Error::invalid(place, "type", "a tensor", what)),
    }
}

fn check_specs(tensors: &[Tensor], options: &Options) -> Result<(), Error> {
    let sized: Vec<AxisSpec> = options.sizes.iter().map(|s| s.axis.clone()).collect();
    for (option, specs) in [
        ("--batch-axis", &options.batch),
        ("--sequence-axis", &options.sequence),
        ("--size", &sized),
    ] {
        for spec in specs {
            let known: Vec<String> = match spec {
                AxisSpec::Named(name) => {
                    let dims = tensors.iter().flat_map(|t| &t.2);
                    let names: BTreeSet<String> = dims
                        .filter_map(|d| match d {
                            Dim::Named(n) => Some(n.clone()),
                            _ => None,
                        })
                        .collect();
                    if names.contains(name) {
                        continue;
                    }
                    names.into_iter().collect()
                }
                AxisSpec::At { input, axis } => {
                    if tensors.iter().any(|t| t.0 == *input && *axis < t.2.len()) {
                        continue;
                    }
                    let shown = |t: &Tensor| format!("{}:0 to {}", t.0, t.2.len().max(1) - 1);
                    tensors.iter().map(shown).collect()
                }
            };
            let expected = match known.is_empty() {
                true => "INPUT:AXIS, no axis has a name".into(),
                false => format!("one of {}", known.join(", ")),
            };
            return Err(Error::invalid(option, "axis", expected, spec));
        }
    }
    Ok(())
}

fn is_batch(name: &str) -> bool {
    name.contains("batch") || matches!(name, "n" | "b" | "bs")
}

fn is_sequence(name: &str) -> bool {
    let parts = ["seq", "len", "time", "frame", "token", "step"];
    parts.iter().any(|p| name.contains(p)) || matches!(name, "s" | "t" | "l")
}

/// Names of axes that the user gave, or that speak for themselves where none are given.
fn names(tensors: &[Tensor], specs: &[AxisSpec], speaks: fn(&str) -> bool) -> BTreeSet<String> {
    if !specs.is_empty() {
        let named = specs.iter().filter_map(|s| match s {
            AxisSpec::Named(name) => Some(name.clone()),
            AxisSpec::At { .. } => None,
        });
        return named.collect();
    }
    let dims = tensors.iter().flat_map(|t| &t.2);
    dims.filter_map(|d| match d {
        Dim::Named(n) if speaks(&n.to_lowercase()) => Some(n.clone()),
        _ => None,
    })
    .collect()
}

/// Ops behind which an id is still the same id.
const PASSES_IDS: [&str; 6] = [
    "Cast",
    "Identity",
    "Reshape",
    "Squeeze",
    "Unsqueeze",
    "Transpose",
];

/// Notes for each input how many rows the smallest table has that it looks up.
pub(super) fn id_bounds(inputs: &mut [Input], graph: &Graph) {
    let mut from: BTreeMap<&str, usize> = BTreeMap::new();
    for (i, input) in inputs.iter().enumerate() {
        if !input.elem.is_float() {
            from.insert(&input.name, i);
        }
    }
    let mut bounds = vec![None; inputs.len()];
    for node in &graph.nodes {
        let first = node.inputs.first().and_then(|n| from.get(n.as_str()));
        if let Some(&i) = first.filter(|_| PASSES_IDS.contains(&node.op.as_str())) {
            node.outputs.iter().for_each(|o| {
                from.insert(o, i);
            });
        }
        if let Some((rows, ids)) = lookup(node, graph)
            && let Some(&i) = from.get(ids)
        {
            bounds[i] = Some(bounds[i].map_or(rows, |b: usize| b.min(rows)));
        }
    }
    for (input, bound) in inputs.iter_mut().zip(bounds) {
        input.id_bound = bound;
    }
}

/// Rows of the table that `node` looks up, and the name of its ids.
fn lookup<'a>(node: &'a Node, graph: &Graph) -> Option<(usize, &'a str)> {
    use lazybatch_graph::onnx::Attr;
    let axis = match node.attrs.get("axis") {
        None => 0,
        Some(Attr::Int(axis)) => *axis,
        Some(_) => return None,
    };
    let table = graph.initializers.get(node.inputs.first()?)?;
    let rows = *table.dims().first()?;
    (node.op == "Gather" && axis == 0)
        .then(|| (rows, node.inputs.get(1).map(String::as_str)))
        .and_then(|(rows, ids)| Some((rows, ids?)))
}
