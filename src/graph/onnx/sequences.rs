//! Sequences and optionals, which exist only while a model is imported: a list of tensors becomes
//! the nodes that make and read its elements. Its length may depend on a run only if a tensor is
//! split evenly, or if a loop collects one tensor in each iteration.

use super::proto::{AttributeProto, GraphProto, NodeProto, ValueInfoProto};
use crate::graph::op::{OpError, OpResult};
use crate::num;
use std::cell::Cell;
use std::collections::HashMap;

/// What the name of a sequence or an optional stands for.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Sequence {
    /// These tensors.
    List(Vec<String>),
    /// Parts of a tensor along an axis, each `chunk` long; the last may be shorter. If not `keep`,
    /// `chunk` is 1 and the parts lack the axis.
    Parts {
        tensor: String,
        axis: i64,
        chunk: i64,
        keep: bool,
    },
    /// An optional that holds nothing.
    Nothing,
    /// An optional that holds a tensor. One that holds a sequence is that sequence.
    Tensor(String),
}

/// The sequences of a graph by name.
pub(super) type Sequences = HashMap<String, Sequence>;

/// The opset of the nodes that replace those of sequences.
pub(super) const OPSET: i64 = 21;

/// Replaces one node.
pub(super) struct Replacement<'a> {
    pub node: &'a NodeProto,
    /// Begins the names of values in between.
    pub place: &'a str,
    pub known: &'a mut Sequences,
    /// The elements of a constant integer tensor.
    pub ints: &'a dyn Fn(&str) -> Option<Vec<i64>>,
    /// Elements of all sequences of the model so far, see [`MAX_ELEMENTS`].
    pub elements: &'a Cell<usize>,
    /// The nodes that take its place.
    pub made: Vec<NodeProto>,
}

/// Maximum number of elements of all sequences together: each edit of a sequence copies it.
const MAX_ELEMENTS: usize = 1 << 20;

/// Why a node that reads a sequence is not replaced.
const AN_OPTIONAL: &str = "an optional where a sequence is expected";

fn ints(name: &str, list: &[i64]) -> AttributeProto {
    AttributeProto {
        name: name.to_owned(),
        ints: list.to_vec(),
        r#type: 7,
        ..AttributeProto::default()
    }
}

fn int(name: &str, v: i64) -> AttributeProto {
    AttributeProto {
        name: name.to_owned(),
        i: v,
        r#type: 2,
        ..AttributeProto::default()
    }
}

fn unsupported<T>(what: &str) -> OpResult<T> {
    Err(OpError::Unsupported(what.to_owned()))
}

impl Replacement<'_> {
    /// Adds a node with one result.
    fn add(&mut self, op: &str, inputs: &[&str], to: &str, attribute: Vec<AttributeProto>) {
        self.made.push(NodeProto {
            input: inputs.iter().map(|i| (*i).to_owned()).collect(),
            output: vec![to.to_owned()],
            name: format!("{}/{op}_{}", self.place, self.made.len()),
            op_type: op.to_owned(),
            attribute,
            ..NodeProto::default()
        });
    }

    /// Adds a node whose result has a new name.
    fn value(&mut self, op: &str, inputs: &[&str], attribute: Vec<AttributeProto>) -> String {
        let to = format!("{}/{}", self.place, self.made.len());
        self.add(op, inputs, &to, attribute);
        to
    }

    fn constant(&mut self, list: &[i64]) -> String {
        self.value("Constant", &[], vec![ints("value_ints", list)])
    }

    fn attribute(&self, name: &str, default: i64) -> i64 {
        let found = self.node.attribute.iter().find(|a| a.name == name);
        found.map_or(default, |a| a.i)
    }

    fn input(&self, i: usize) -> Option<&str> {
        self.node
            .input
            .get(i)
            .map(String::as_str)
            .filter(|i| !i.is_empty())
    }

    /// The constant integer in operand `i`; `None` if omitted, an error if not constant.
    fn position(&self, i: usize) -> OpResult<Option<i64>> {
        let Some(name) = self.input(i) else {
            return Ok(None);
        };
        match (self.ints)(name).as_deref() {
            Some([one]) => Ok(Some(*one)),
            _ => unsupported("a sequence position that is not a constant"),
        }
    }

    fn sequence(&self, i: usize) -> OpResult<Sequence> {
        let found = self.input(i).and_then(|name| self.known.get(name)).cloned();
        found.ok_or_else(|| OpError::Unsupported("a sequence from a model input, loop or branch".to_owned()))
    }

    fn list(&self, i: usize) -> OpResult<Vec<String>> {
        match self.sequence(i)? {
            Sequence::List(list) => {
                let all = self.elements.get().saturating_add(list.len());
                self.elements.set(all);
                if all > MAX_ELEMENTS {
                    return unsupported("sequences of more than a million elements in all");
                }
                Ok(list)
            }
            _ => unsupported("inserting into or erasing from a sequence of variable length"),
        }
    }

    /// The index for `position`, which may count from the end, in a list of `count` elements.
    fn place(position: i64, count: usize) -> OpResult<usize> {
        let at = usize::try_from(position).ok().or_else(|| {
            let back = usize::try_from(position.checked_neg()?).ok()?;
            count.checked_sub(back)
        });
        at.filter(|at| *at < count).ok_or_else(|| {
            let valid = match count {
                0 => "a non-empty sequence".to_owned(),
                _ => format!("-{count} to {}", count - 1),
            };
            OpError::expected("position in a sequence", valid, position)
        })
    }

    /// Replaces a node that makes or reads a sequence or optional. Returns false for other nodes.
    pub fn run(&mut self) -> OpResult<bool> {
        let result = self.node.output.first().cloned().unwrap_or_default();
        let made = match self.node.op_type.as_str() {
            "SequenceEmpty" => Sequence::List(Vec::new()),
            "SequenceConstruct" => Sequence::List(self.node.input.clone()),
            "SequenceInsert" => {
                let (mut list, position) = (self.list(0)?, self.position(2)?);
                let at = match position {
                    Some(at) if usize::try_from(at) == Ok(list.len()) => list.len(),
                    Some(at) => Self::place(at, list.len())?,
                    None => list.len(),
                };
                list.insert(at, self.input(1).unwrap_or_default().to_owned());
                Sequence::List(list)
            }
            "SequenceErase" => {
                let mut list = self.list(0)?;
                list.remove(Self::place(self.position(1)?.unwrap_or(-1), list.len())?);
                Sequence::List(list)
            }
            "SplitToSequence" => self.split()?,
            "Optional" => match self.input(0) {
                None => Sequence::Nothing,
                Some(name) => {
                    let tensor = || Sequence::Tensor(name.to_owned());
                    self.known.get(name).cloned().unwrap_or_else(tensor)
                }
            },
            "Identity" if self.input(0).is_some_and(|i| self.known.contains_key(i)) => self.sequence(0)?,
            "OptionalGetElement" => {
                let given = self.input(0).unwrap_or_default().to_owned();
                let tensor = match self.known.get(&given) {
                    None => given,
                    Some(Sequence::Tensor(tensor)) => tensor.clone(),
                    Some(Sequence::Nothing) => return unsupported("the element of an empty optional"),
                    Some(_) => {
                        let same = self.sequence(0)?;
                        self.known.insert(result, same);
                        return Ok(true);
                    }
                };
                self.add("Identity", &[&tensor], &result, Vec::new());
                return Ok(true);
            }
            "OptionalHasElement" => {
                let holds = match self.input(0) {
                    None => false,
                    Some(name) => self.known.get(name) != Some(&Sequence::Nothing),
                };
                let number = self.value("Constant", &[], vec![int("value_int", i64::from(holds))]);
                self.add("Cast", &[&number], &result, vec![int("to", 9)]);
                return Ok(true);
            }
            "SequenceAt" => return self.at(&result).map(|()| true),
            "SequenceLength" => return self.length(&result).map(|()| true),
            "ConcatFromSequence" => return self.concat(&result).map(|()| true),
            "Loop" => return self.collect(),
            _ => return Ok(false),
        };
        self.known.insert(result, made);
        Ok(true)
    }

    fn split(&mut self) -> OpResult<Sequence> {
        let (tensor, axis) = (
            self.input(0).unwrap_or_default().to_owned(),
            self.attribute("axis", 0),
        );
        let parts = |chunk, keep| Sequence::Parts {
            tensor: tensor.clone(),
            axis,
            chunk,
            keep,
        };
        let Some(sizes) = self.input(1).map(str::to_owned) else {
            return Ok(parts(1, self.attribute("keepdims", 1) != 0));
        };
        match (self.ints)(&sizes).as_deref() {
            None => unsupported("`split` sizes that are not constant"),
            // A single number may also be a list of one size, which is the whole axis.
            Some([chunk]) if *chunk > 0 => Ok(parts(*chunk, true)),
            Some([chunk]) => Err(OpError::expected("size of parts", "above 0", chunk)),
            Some(list) => {
                let sizes = self.constant(list);
                let output: Vec<String> = (0..list.len())
                    .map(|i| format!("{}/part{i}", self.place))
                    .collect();
                self.add("Split", &[&tensor, &sizes], "", vec![int("axis", axis)]);
                if let Some(node) = self.made.last_mut() {
                    node.output.clone_from(&output);
                }
                Ok(Sequence::List(output))
            }
        }
    }

    fn at(&mut self, result: &str) -> OpResult<()> {
        match self.sequence(0)? {
            Sequence::Nothing | Sequence::Tensor(_) => unsupported(AN_OPTIONAL),
            Sequence::List(list) => {
                let at = self.position(1)?.unwrap_or(0);
                let element = &list[Self::place(at, list.len())?];
                self.add("Identity", &[element], result, Vec::new());
                Ok(())
            }
            Sequence::Parts {
                tensor,
                axis,
                chunk: 1,
                keep,
            } => {
                // The position may be computed in a run; it may be a list of one number.
                let index = self.input(1).unwrap_or_default().to_owned();
                let none = self.constant(&[]);
                let index = self.value("Reshape", &[&index, &none], Vec::new());
                if !keep {
                    self.add("Gather", &[&tensor, &index], result, vec![int("axis", axis)]);
                    return Ok(());
                }
                let element = self.value("Gather", &[&tensor, &index], vec![int("axis", axis)]);
                let axis = self.constant(&[axis]);
                self.add("Unsqueeze", &[&element, &axis], result, Vec::new());
                Ok(())
            }
            Sequence::Parts {
                tensor, axis, chunk, ..
            } => {
                let at = self.position(1)?.unwrap_or(0);
                let start = at.checked_mul(chunk).filter(|_| at >= 0);
                let end = start.and_then(|start| start.checked_add(chunk));
                let (Some(start), Some(end)) = (start, end) else {
                    return unsupported("a negative position in an evenly split tensor");
                };
                let range = [start, end, axis].map(|v| self.constant(&[v]));
                let [start, end, axis] = &range;
                self.add("Slice", &[&tensor, start, end, axis], result, Vec::new());
                Ok(())
            }
        }
    }

    fn length(&mut self, result: &str) -> OpResult<()> {
        match self.sequence(0)? {
            Sequence::Nothing | Sequence::Tensor(_) => unsupported(AN_OPTIONAL),
            Sequence::List(list) => {
                let count = num::signed(list.len());
                self.add("Constant", &[], result, vec![int("value_int", count)]);
                Ok(())
            }
            Sequence::Parts {
                tensor, axis, chunk, ..
            } => {
                let shape = self.value("Shape", &[&tensor], Vec::new());
                let axis = self.value("Constant", &[], vec![int("value_int", axis)]);
                let size = self.value("Gather", &[&shape, &axis], Vec::new());
                let rest = self.value("Constant", &[], vec![int("value_int", chunk - 1)]);
                let size = self.value("Add", &[&size, &rest], Vec::new());
                let chunk = self.value("Constant", &[], vec![int("value_int", chunk)]);
                self.add("Div", &[&size, &chunk], result, Vec::new());
                Ok(())
            }
        }
    }

    fn concat(&mut self, result: &str) -> OpResult<()> {
        let (along, new) = (self.attribute("axis", 0), self.attribute("new_axis", 0) != 0);
        match self.sequence(0)? {
            Sequence::Nothing | Sequence::Tensor(_) => unsupported(AN_OPTIONAL),
            Sequence::List(list) if list.is_empty() => unsupported("the elements of an empty sequence"),
            Sequence::List(_) => {
                let mut list = self.list(0)?;
                if new {
                    let axis = self.constant(&[along]);
                    list = list
                        .iter()
                        .map(|x| self.value("Unsqueeze", &[x, &axis], Vec::new()))
                        .collect();
                }
                let list: Vec<&str> = list.iter().map(String::as_str).collect();
                self.add("Concat", &list, result, vec![int("axis", along)]);
                Ok(())
            }
            Sequence::Parts {
                tensor, axis, keep, ..
            } if axis == along && keep != new => {
                self.add("Identity", &[&tensor], result, Vec::new());
                Ok(())
            }
            // Elements that lost axis 0 are put behind one another.
            Sequence::Parts {
                tensor,
                axis: 0,
                keep: false,
                ..
            } if along == 0 => {
                let shape = self.value("Shape", &[&tensor], Vec::new());
                let (from, to) = (self.constant(&[2]), self.constant(&[i64::MAX]));
                let rest = self.value("Slice", &[&shape, &from, &to], Vec::new());
                let whole = self.constant(&[-1]);
                let shape = self.value("Concat", &[&whole, &rest], vec![int("axis", 0)]);
                self.add("Reshape", &[&tensor, &shape], result, Vec::new());
                Ok(())
            }
            Sequence::Parts { .. } => unsupported("concatenating the parts of a split along another axis"),
        }
    }

    /// Replaces a loop that appends one tensor per iteration to each of its sequences. Each such
    /// sequence becomes a result with an axis for the iterations.
    fn collect(&mut self) -> OpResult<bool> {
        let carried = self.node.input.iter().enumerate().skip(2);
        let lists: Vec<usize> = carried
            .filter(|(_, name)| self.known.contains_key(*name))
            .map(|(i, _)| i - 2)
            .collect();
        if lists.is_empty() {
            return Ok(false);
        }
        let mut node = self.node.clone();
        let body = node.attribute.iter_mut().find_map(|a| a.g.as_mut());
        let Some(body) = body else {
            return unsupported("a loop without a body");
        };
        let results = body.output.len().saturating_sub(1);
        node.output.resize(node.output.len().max(results), String::new());
        for i in lists.into_iter().rev() {
            if !self.list(i + 2)?.is_empty() {
                return unsupported("a loop whose initial sequence is not empty");
            }
            let inserted = inserted(body, i);
            let Some(element) = inserted else {
                return unsupported(
                    "a loop that does not just append one tensor to the sequence per iteration",
                );
            };
            node.input.remove(i + 2);
            let sequence = node.output.remove(i);
            let stacked = format!("{}/stacked{i}", self.place);
            node.output.push(stacked.clone());
            body.output.push(ValueInfoProto {
                name: element,
                ..ValueInfoProto::default()
            });
            let parts = Sequence::Parts {
                tensor: stacked,
                axis: 0,
                chunk: 1,
                keep: false,
            };
            self.known.insert(sequence, parts);
        }
        self.made.push(node);
        Ok(true)
    }
}

/// Removes carried value `i` of a loop's body, if it is a sequence to which the body only appends.
/// Returns what is appended.
fn inserted(body: &mut GraphProto, i: usize) -> Option<String> {
    let (given, result) = (
        body.input.get(i + 2)?.name.clone(),
        body.output.get(i + 1)?.name.clone(),
    );
    let at = body.node.iter().position(|n| n.output.first() == Some(&result))?;
    let node = body.node.get(at)?;
    let appends =
        node.op_type == "SequenceInsert" && node.input.first() == Some(&given) && node.input.len() == 2;
    let reads = |name: &String| {
        body.node
            .iter()
            .flat_map(|n| &n.input)
            .filter(|i| *i == name)
            .count()
    };
    if !appends || reads(&given) != 1 || reads(&result) != 0 {
        return None;
    }
    let element = node.input.get(1).cloned();
    body.node.remove(at);
    body.input.remove(i + 2);
    body.output.remove(i + 1);
    element
}
