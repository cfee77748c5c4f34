//! Einsum of two operands where it is a product of matrices, with transposes where axes stand in another
//! order: attention is written so too.

use std::collections::{BTreeMap, BTreeSet};

use lazybatch_graph::onnx::{Attr, Graph, Node};

/// A product of matrices: how the axes of both operands are turned for it, and those of its result.
struct Product {
    /// Whether the second operand is the left one.
    is_swapped: bool,
    a: Vec<usize>,
    b: Vec<usize>,
    result: Vec<usize>,
}

/// Replaces each Einsum that is such a product.
pub(super) fn replace(graph: &mut Graph) {
    let outputs = graph.nodes.iter().flat_map(|n| &n.outputs);
    let inputs = graph.inputs.iter().map(|i| &i.name);
    let constants = graph.initializers.keys();
    let mut taken: BTreeSet<String> = outputs.chain(inputs).chain(constants).cloned().collect();
    let mut nodes = Vec::with_capacity(graph.nodes.len());
    for node in std::mem::take(&mut graph.nodes) {
        match product(&node) {
            Some(product) => nodes.extend(product.nodes(&node, &mut taken)),
            None => nodes.push(node),
        }
    }
    graph.nodes = nodes;
}

/// The product that `node` is. Axes are those of all samples, of the rows of the first, of the columns
/// of the second, and one that is summed over.
fn product(node: &Node) -> Option<Product> {
    let Some(Attr::Str(equation)) = node.attrs.get("equation") else {
        return None;
    };
    if node.op != "Einsum" || !node.domain.is_empty() || node.inputs.len() != 2 {
        return None;
    }
    let equation: String = equation.chars().filter(|c| *c != ' ').collect();
    let (operands, result) = equation.split_once("->")?;
    let (a, b) = operands.split_once(',')?;
    let letters = |term: &str| -> Option<Vec<char>> {
        let all: Vec<char> = term.chars().collect();
        let distinct: BTreeSet<&char> = all.iter().collect();
        let good = distinct.len() == all.len() && all.iter().all(char::is_ascii_alphabetic);
        good.then_some(all)
    };
    let (mut a, mut b, result) = (letters(a)?, letters(b)?, letters(result)?);
    // The operand whose own axis comes first in the result is the left one.
    let own = |of: &[char], other: &[char]| {
        let mut places = result.iter();
        places.position(|c| of.contains(c) && !other.contains(c))
    };
    let is_swapped = own(&b, &a) < own(&a, &b);
    if is_swapped {
        (a, b) = (b, a);
    }
    let of_result = |in_a: bool, in_b: bool| -> Vec<char> {
        let meant = |c: &&char| a.contains(c) == in_a && b.contains(c) == in_b;
        result.iter().filter(meant).copied().collect()
    };
    let (batch, rows, columns) = (
        of_result(true, true),
        of_result(true, false),
        of_result(false, true),
    );
    let summed: Vec<char> = a.iter().filter(|c| !result.contains(c)).copied().collect();
    let of_both = summed.len() == 1 && b.contains(&summed[0]);
    let one_each = columns.len() == 1 && !rows.is_empty() && (batch.is_empty() || rows.len() == 1);
    let all = batch.len() + rows.len() + columns.len() == result.len();
    let none_left = b.iter().all(|c| result.contains(c) || summed.contains(c));
    if !of_both || !one_each || !all || !none_left {
        return None;
    }
    let turned = |from: &[char], to: &[&[char]]| -> Option<Vec<usize>> {
        let places = to.concat().into_iter();
        places.map(|c| from.iter().position(|f| *f == c)).collect()
    };
    let made = [&batch[..], &rows, &columns].concat();
    Some(Product {
        is_swapped,
        a: turned(&a, &[&batch, &rows, &summed])?,
        b: turned(&b, &[&batch, &summed, &columns])?,
        result: turned(&made, &[&result])?,
    })
}

impl Product {
    fn nodes(&self, node: &Node, taken: &mut BTreeSet<String>) -> Vec<Node> {
        let mut fresh = |what: &str| {
            let mut name = format!("{}.{what}", node.outputs[0]);
            while !taken.insert(name.clone()) {
                name.push('~');
            }
            name
        };
        let make = |op: &str, what: &str, inputs: Vec<String>, output: String| Node {
            name: format!("{}{what}", node.name),
            domain: String::new(),
            op: op.into(),
            inputs,
            outputs: vec![output],
            attrs: BTreeMap::new(),
        };
        let turn = |what: &str, from: &str, to: String, perm: &[usize]| {
            let mut turn = make("Transpose", what, vec![from.to_owned()], to);
            let perm = perm.iter().map(|&i| i as i64).collect();
            turn.attrs.insert("perm".into(), Attr::Ints(perm));
            turn
        };
        let is_kept = |perm: &[usize]| perm.iter().enumerate().all(|(i, &p)| i == p);
        let mut nodes = Vec::new();
        let mut operands = Vec::new();
        let [left, right] = match self.is_swapped {
            true => [&node.inputs[1], &node.inputs[0]],
            false => [&node.inputs[0], &node.inputs[1]],
        };
        for (from, perm, what) in [(left, &self.a, "a"), (right, &self.b, "b")] {
            if is_kept(perm) {
                operands.push(from.clone());
                continue;
            }
            let to = fresh(what);
            nodes.push(turn(&format!(".{what}"), from, to.clone(), perm));
            operands.push(to);
        }
        let y = node.outputs[0].clone();
        if is_kept(&self.result) {
            nodes.push(make("MatMul", "", operands, y));
            return nodes;
        }
        let made = fresh("product");
        nodes.push(make("MatMul", "", operands, made.clone()));
        nodes.push(turn(".turned", &made, y, &self.result));
        nodes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(equation: &str) -> Option<[Vec<usize>; 3]> {
        let node = Node {
            name: "e".into(),
            domain: String::new(),
            op: "Einsum".into(),
            inputs: vec!["a".into(), "b".into()],
            outputs: vec!["y".into()],
            attrs: BTreeMap::from([("equation".to_owned(), Attr::Str(equation.into()))]),
        };
        product(&node).map(|p| [p.a, p.b, p.result])
    }

    #[test]
    fn products_of_matrices_are_found() {
        let four = |b: &[usize]| Some([vec![0, 1, 2, 3], b.to_vec(), vec![0, 1, 2, 3]]);
        assert_eq!(of("bhid,bhjd->bhij"), four(&[0, 1, 3, 2]));
        assert_eq!(of("bhij, bhjd -> bhid"), four(&[0, 1, 2, 3]));
        let turned = vec![0, 2, 1, 3];
        let keys = vec![0, 2, 3, 1];
        let found = of("bthd,bshd->bhts").unwrap();
        assert_eq!(found, [turned.clone(), keys, vec![0, 1, 2, 3]]);
        let found = of("bhts,bshd->bthd").unwrap();
        assert_eq!(found, [vec![0, 1, 2, 3], turned.clone(), turned]);
        assert!(of("bnd,de->bne").is_some());
        for other in [
            "bij,bij->bi",
            "bii,bij->bj",
            "bij->bji",
            "bsd,dhk->bshk",
            "ab,cd->abcd",
        ] {
            assert!(of(other).is_none(), "{other}");
        }
        assert!(of("...ij,...jk->...ik").is_none());
    }
}
