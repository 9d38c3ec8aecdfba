//! Padding of a length, so that the sizes of a plan change rarely.

use super::compile::Compiler;
use crate::graph::{NodeId, ValueId};
use crate::lower::Field;
use crate::shape::{Dim, Shape, Symbol, product};

/// Padding of a length: sizes are computed as if `symbol + beyond` were the next multiple (paper,
/// section 2.1, "Reduce shape updating time consumption"). Kernels read the exact value from the
/// table of [`LowerCx::live`](crate::lower::LowerCx::live).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Padding {
    /// The symbol, a number of tokens.
    pub symbol: Symbol,
    /// Added before rounding up: the tokens of this run.
    pub beyond: i64,
    /// The multiple, above 0.
    pub multiple: i64,
}

impl Padding {
    /// The padded value for `value`, at most `bound`.
    pub fn apply(&self, value: i64, bound: i64) -> i64 {
        let up = |v: i64| {
            Some(
                v.checked_add(self.beyond + self.multiple - 1)?
                    .div_euclid(self.multiple)
                    * self.multiple,
            )
        };
        up(value).map_or(value, |v| v - self.beyond).min(bound).max(value)
    }
}

/// Why no length of a plan is padded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoPadding {
    /// [`super::Options::padding`] is not set.
    #[error("not requested")]
    NotAsked,
    /// Something in the plan needs the exact length; the reason.
    #[error("{0}")]
    Exact(String),
    /// A kernel has a size that depends on the length as a parameter.
    #[error("kernel {kernel} of node \"{node}\" computes over {size} itself")]
    Kernel {
        kernel: &'static str,
        /// The node that it computes.
        node: String,
        size: Dim,
    },
    /// The length is not the outermost size of an input or output.
    #[error("\"{value}\" of shape {shape} does not grow at its end")]
    Inner {
        /// The input or output.
        value: String,
        shape: Shape,
    },
    /// A view has the elements of its source in other places once they are padded.
    #[error("\"{value}\" of shape {shape} would store the elements of {source_shape} at other positions")]
    Moved {
        value: String,
        shape: Shape,
        /// That of its source.
        source_shape: Shape,
    },
}

/// Layout of a tensor's elements with respect to one symbol: `outer` blocks of `length * inner`
/// elements.
#[derive(PartialEq, Eq)]
struct LengthLayout {
    /// There is more than one block.
    blocks: bool,
    /// The size with the symbol and the number of elements after it, if there is exactly one such
    /// size.
    length: Option<(Dim, Dim)>,
}

impl LengthLayout {
    /// `None` if no size contains the symbol.
    fn of(shape: &Shape, symbol: &Symbol) -> Option<Self> {
        let at = shape.0.iter().position(|d| d.depends_on(symbol))?;
        let (outer, inner) = (shape.0.get(..at)?, shape.0.get(at + 1..)?);
        let once = inner.iter().all(|d| !d.depends_on(symbol));
        let inner = product(inner).ok().filter(|_| once);
        Some(Self {
            blocks: !outer.iter().all(|d| d.is(1)),
            length: shape.0.get(at).cloned().zip(inner),
        })
    }

    /// Whether the elements of a smaller length are the first ones of a larger length.
    fn in_front(&self) -> bool {
        !self.blocks && self.length.is_some()
    }
}

impl Compiler<'_> {
    /// The padding asked for, if everything that depends on the length supports it: dispatches may
    /// compute extra elements, and live elements keep their positions.
    pub fn padding(&self) -> Result<Padding, NoPadding> {
        let Some(p) = &self.options.padding else {
            return Err(NoPadding::NotAsked);
        };
        let refuse = |why: String| Err(NoPadding::Exact(why));
        if self.options.fixed.get(&p.symbol).is_some() {
            return refuse(format!("{} is fixed", p.symbol));
        }
        if self.options.bounds.get(&p.symbol).is_none() {
            return refuse(format!("{} has no bound", p.symbol));
        }
        if p.multiple < 1 {
            return refuse(format!("{} is not a valid multiple", p.multiple));
        }
        let name = |id: NodeId| self.graph.node(id).map_or("", |n| n.name.as_str());
        for e in self.collected.calls.iter().filter(|e| !e.call.padded) {
            let fields = e.call.fields.iter().filter_map(|f| match f {
                Field::Dim(d) => Some(d),
                Field::F32(_) => None,
            });
            if let Some(d) = fields.chain(&e.call.grid).find(|d| d.depends_on(&p.symbol)) {
                return Err(NoPadding::Kernel {
                    kernel: e.call.kernel.name,
                    node: name(e.node).to_owned(),
                    size: d.clone(),
                });
            }
        }
        if let Some((id, _)) = self.host.iter().next() {
            return refuse(format!("node \"{}\" runs on the host", name(*id)));
        }
        let shape = |v: ValueId| self.fact(v).map(|f| &f.shape);
        // A caller reads and writes live elements, which are contiguous at the front only if the
        // length is the outermost size.
        let ports = self.graph.inputs().iter().chain(self.graph.outputs());
        for v in ports.filter(|v| self.needed_values[v.index()]) {
            let Some(shape) = shape(*v) else { continue };
            if LengthLayout::of(shape, &p.symbol).is_some_and(|l| !l.in_front()) {
                return Err(NoPadding::Inner {
                    value: self.graph.value(*v).name.clone(),
                    shape: shape.clone(),
                });
            }
        }
        for v in self.collected.alias.keys() {
            let source = self.graph.producer(*v).and_then(|(_, n)| *n.inputs.first()?);
            let (Some(new), Some(old)) = (shape(*v), source.and_then(shape)) else {
                continue;
            };
            let layouts = (LengthLayout::of(new, &p.symbol), LengthLayout::of(old, &p.symbol));
            if layouts.0 != layouts.1
                && !matches!(&layouts, (Some(a), Some(b)) if a.in_front() && b.in_front())
            {
                return Err(NoPadding::Moved {
                    value: self.graph.value(*v).name.clone(),
                    shape: new.clone(),
                    source_shape: old.clone(),
                });
            }
        }
        Ok(p.clone())
    }
}
